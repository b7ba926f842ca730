package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// memberTimeout bounds the wait for room in raft's queue for one change of a
	// group's members. The change itself is waited for as long as the group has
	// a quorum, without which its leader soon steps down and the wait ends.
	memberTimeout = time.Second
	// CaughtUpEntries is how far behind its leader's log a replica may be to be
	// made a voter: what one call of raft brings it.
	CaughtUpEntries = appendEntriesMax
)

// MembersStep brings the group's members one change nearer to the voters of
// target and, besides, the non-voters of others. This node must lead the group.
// It returns what it did, "" when nothing is left to be done now. raft takes one
// change at a time, and none of a node that no longer leads.
//
// The order keeps as many voters as there were. A replica that joins is a non-voter until
// it has caught up, and nobody leaves before all that join are voters. Only a member whose
// address a joining replica has leaves before: its node is lost, or has another replica now.
func (g *Replica) MembersStep(ctx context.Context, target, others []Member, behind func(context.Context, raft.ServerID) (uint64, error)) (string, error) {
	step := NextStep(g.ID(), g.Configuration().Servers, target, others, func(id raft.ServerID) (uint64, error) { return behind(ctx, id) })
	id, addr := step.Member.ID, raft.ServerAddress(step.Member.Addr)
	switch step.Do {
	case StepAdd:
		return step.What, g.changed(g.raft.AddNonvoter(id, addr, 0, memberTimeout))
	case StepPromote:
		return step.What, g.changed(g.raft.AddVoter(id, addr, 0, memberTimeout))
	case StepDemote:
		return step.What, g.changed(g.raft.DemoteVoter(id, 0, memberTimeout))
	case StepRemove:
		return step.What, g.changed(g.raft.RemoveServer(id, 0, memberTimeout))
	case StepHandOver:
		return step.What, g.Transfer(step.Member)
	}
	return "", nil
}

// MemberStep is one change of a group's members, or a handover, with what it is for
// people. The zero value does nothing.
type MemberStep struct {
	Do     StepKind
	Member Member
	What   string
}

type StepKind uint8

const (
	StepNone    StepKind = iota
	StepAdd              // as a non-voter, or with a new address and the suffrage that it has
	StepPromote          // to a voter
	StepDemote           // to a non-voter
	StepRemove
	StepHandOver
)

// NextStep decides for a leader what MembersStep does. behind returns how far a member is
// behind its log, and an error unless it answers and has applied the configuration in
// force.
func NextStep(self raft.ServerID, servers []raft.Server, target, others []Member, behind func(raft.ServerID) (uint64, error)) MemberStep {
	if step := moveStep(servers, slices.Concat(target, others)); step.Do != StepNone {
		return step
	}
	if step := admitStep(self, servers, target, others, behind); step.Do != StepNone {
		return step
	}
	for _, m := range target { // all are voters, or the group waits for them
		if SuffrageOf(servers, m.ID) != raft.Voter {
			return MemberStep{}
		}
	}
	surplus := surplusOf(servers, target, others)
	if len(surplus) == 0 {
		return MemberStep{}
	}
	up := map[raft.ServerID]bool{self: true} // as upOf
	var there []Member                       // of the target, those that could go on without the rest
	for _, s := range servers {
		if s.Suffrage != raft.Voter || s.ID == self {
			continue
		}
		lag, err := behind(s.ID)
		up[s.ID] = err == nil
		if i := slices.IndexFunc(target, func(m Member) bool { return m.ID == s.ID }); i >= 0 && err == nil && lag <= CaughtUpEntries {
			there = append(there, target[i])
		}
	}
	if i := slices.IndexFunc(target, func(m Member) bool { return m.ID == self }); i >= 0 {
		there = append(there, target[i])
	}
	if 2*len(there) <= len(target) {
		return MemberStep{} // whoever is left over may be needed
	}
	return dismissStep(self, servers, surplus, others, there, up)
}

// upOf returns the voters that answer and have applied the configuration in force, the leader
// among them. One that has not may be far behind: if the others need it, nothing is committed
// until it has caught up.
func upOf(self raft.ServerID, servers []raft.Server, behind func(raft.ServerID) (uint64, error)) map[raft.ServerID]bool {
	up := map[raft.ServerID]bool{self: true}
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != self {
			_, err := behind(s.ID)
			up[s.ID] = err == nil
		}
	}
	return up
}

// canLose reports whether a majority of the voters that are left without one of them is
// up. Without one, the leader commits neither the new configuration, which is in force at once,
// nor anything else, and nobody can take its place (see DESIGN.md).
func canLose(servers []raft.Server, lost raft.ServerID, up map[raft.ServerID]bool) bool {
	voters, there := 0, 0
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != lost {
			voters++
			if up[s.ID] {
				there++
			}
		}
	}
	return 2*there > voters
}

// Member is a replica that is to be in a group, and the address of its node.
type Member struct {
	ID   raft.ServerID
	Addr string
}

const Absent = raft.ServerSuffrage(-1)

func SuffrageOf(servers []raft.Server, id raft.ServerID) raft.ServerSuffrage {
	for _, s := range servers {
		if s.ID == id {
			return s.Suffrage
		}
	}
	return Absent
}

// moveStep gives the first member that has moved its new address: raft takes no
// address twice, so the old one would keep out the next node that has it.
func moveStep(servers []raft.Server, all []Member) MemberStep {
	for _, m := range all {
		taken := slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.Address) == m.Addr })
		if taken || m.Addr == "" || SuffrageOf(servers, m.ID) == Absent {
			continue
		}
		return MemberStep{StepAdd, m, "moved " + string(m.ID) + " to " + m.Addr}
	}
	return MemberStep{}
}

// admitStep adds the first replica that is missing, or removes the member that has its
// address; then it gives a vote to the first of those that have caught up.
func admitStep(self raft.ServerID, servers []raft.Server, target, others []Member, behind func(raft.ServerID) (uint64, error)) MemberStep {
	all := slices.Concat(target, others)
	for _, m := range all {
		if SuffrageOf(servers, m.ID) != Absent {
			continue
		}
		at := slices.IndexFunc(servers, func(s raft.Server) bool { return string(s.Address) == m.Addr })
		if at < 0 {
			return MemberStep{StepAdd, m, "added " + string(m.ID)}
		}
		old := servers[at].ID // raft takes no address twice
		wanted := slices.ContainsFunc(all, func(m Member) bool { return m.ID == old })
		if !wanted && old == self { // which never takes its own vote
			if heir := heirOf(self, servers, target, behind); heir.ID != "" {
				return MemberStep{StepHandOver, heir, "handed over to " + string(heir.ID) + ": " + string(m.ID) + " has this address"}
			}
			continue
		}
		if !wanted && (servers[at].Suffrage != raft.Voter || canLose(servers, old, upOf(self, servers, behind))) {
			return MemberStep{StepRemove, Member{ID: old}, "removed " + string(old) + ", whose address " + string(m.ID) + " has"}
		}
	}
	for _, m := range target {
		if SuffrageOf(servers, m.ID) == raft.Voter {
			continue
		}
		if !isCaughtUp(m.ID, behind) {
			continue // it is asked again in the next step
		}
		return MemberStep{StepPromote, m, "gave a vote to " + string(m.ID)}
	}
	return MemberStep{}
}

// heirOf returns the voter to which a leader hands over whose address another replica has:
// one that has caught up, of the target if there is one. The zero Member means none.
func heirOf(self raft.ServerID, servers []raft.Server, target []Member, behind func(raft.ServerID) (uint64, error)) (heir Member) {
	for _, s := range servers {
		if s.ID == self || s.Suffrage != raft.Voter || !isCaughtUp(s.ID, behind) {
			continue
		}
		if heir = (Member{s.ID, string(s.Address)}); isIn(target, s) {
			break
		}
	}
	return heir
}

func isCaughtUp(id raft.ServerID, behind func(raft.ServerID) (uint64, error)) bool {
	lag, err := behind(id)
	return err == nil && lag <= CaughtUpEntries
}

// surplusOf returns the members that are there, or have a vote, and should not.
func surplusOf(servers []raft.Server, target, others []Member) []raft.Server {
	var surplus []raft.Server
	for _, s := range servers {
		if !isIn(target, s) && (s.Suffrage == raft.Voter || !isIn(others, s)) {
			surplus = append(surplus, s)
		}
	}
	return surplus
}

func isIn(list []Member, s raft.Server) bool {
	return slices.ContainsFunc(list, func(m Member) bool { return m.ID == s.ID })
}

// dismissStep takes out, or the vote from, the first of those that should not have it and
// that the others can do without; the first of those that do not answer, if there is one.
// The leader itself goes last, and leads no longer by then: it hands over to one of those
// that are there.
func dismissStep(self raft.ServerID, servers, surplus []raft.Server, others, there []Member, up map[raft.ServerID]bool) MemberStep {
	leads := false
	for _, silent := range []bool{true, false} {
		for _, s := range surplus {
			switch {
			case s.ID == self:
				leads = true
			case silent && up[s.ID], s.Suffrage == raft.Voter && !canLose(servers, s.ID, up):
			case isIn(others, s):
				return MemberStep{StepDemote, Member{ID: s.ID}, "took the vote from " + string(s.ID)}
			default:
				return MemberStep{StepRemove, Member{ID: s.ID}, "removed " + string(s.ID)}
			}
		}
	}
	if !leads || len(surplus) > 1 {
		return MemberStep{}
	}
	return MemberStep{StepHandOver, there[0], "handed over to " + string(there[0].ID)}
}

// changed waits for a change of members.
func (g *Replica) changed(future raft.IndexFuture) error {
	if err := g.await(future); err != nil {
		return fmt.Errorf("cannot change the members: %w", err)
	}
	return nil
}

// errTransferStuck is why a replica is opened again whose leadership is being handed over for
// ever: raft refuses every write meanwhile (hashicorp/raft#696).
var errTransferStuck = errors.New("a handover of leadership does not end")

// Transfer hands the leadership to another voter. raft refuses writes from its
// beginning to its end, for an election timeout at most, or, when the other
// takes the call and does not answer, for rpcTimeout. Transfer waits for three election
// timeouts at most.
func (g *Replica) Transfer(to Member) error {
	answer := make(chan error, 1)
	go func() { answer <- g.await(g.raft.LeadershipTransferToServer(to.ID, raft.ServerAddress(to.Addr))) }()
	err := errTransferWaits
	select {
	case err = <-answer:
	case <-time.After(3 * g.cfg.Timing.Election): // raft takes two at most, once it begins
	}
	if err != nil {
		return fmt.Errorf("cannot hand the leadership to %s: %w", to.ID, err)
	}
	return nil
}

// errTransferWaits is returned for a handover that raft has not begun in time, as its main
// loop waits for the disk. It may happen later.
var errTransferWaits = errors.New("raft waits for the disk, and hands over later")

// transferMax is how long raft may refuse writes because it believes that it
// hands its leadership over: it waits for a call and two election timeouts,
// and past that it will for ever.
const transferMax = 3 * rpcTimeout
