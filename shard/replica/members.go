package replica

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// memberTimeout bounds the wait for space in raft's queue for a change of members. The change
	// itself has three election timeouts (see changed).
	memberTimeout = time.Second
	// CaughtUpEntries is the largest lag at which a replica may become a voter: raft sends that
	// many entries in one call.
	CaughtUpEntries = appendEntriesMax
)

// MembersStep makes one change towards the voters in target and the non-voters in others. This
// node must lead the group. It returns what it did, or "" if no step is possible now. raft takes
// one change at a time, and only from the leader.
//
// While replicas join, the group keeps all its voters. A replica that joins is a non-voter until it
// has caught up, and nobody leaves before all joining replicas are voters. A member leaves earlier
// only if a joining replica has its address. That member's node is then lost, or has a new replica.
func (g *Replica) MembersStep(ctx context.Context, target, others []Member, behind func(context.Context, raft.ServerID) (uint64, error)) (string, error) {
	inForce := g.ConfigurationInForce()
	if inForce == nil {
		return "", nil // raft would take no other change
	}
	step := NextStep(g.ID(), inForce.Servers, target, others, func(id raft.ServerID) (uint64, error) { return behind(ctx, id) })
	// The change names the configuration that NextStep checked. raft refuses the change if a newer
	// configuration is in use by then.
	id, addr, checked := step.Member.ID, raft.ServerAddress(step.Member.Addr), inForce.Index
	switch step.Do {
	case StepAdd:
		return step.What, g.changed(g.raft.AddNonvoter(id, addr, checked, memberTimeout))
	case StepPromote:
		return step.What, g.changed(g.raft.AddVoter(id, addr, checked, memberTimeout))
	case StepDemote:
		return step.What, g.changed(g.raft.DemoteVoter(id, checked, memberTimeout))
	case StepRemove:
		return step.What, g.changed(g.raft.RemoveServer(id, checked, memberTimeout))
	case StepHandOver:
		return step.What, g.Transfer(step.Member)
	}
	return "", nil
}

// MemberStep is one change of a group's members, or a handover, with a description. The zero value
// does nothing.
type MemberStep struct {
	Do     StepKind
	Member Member
	What   string
}

type StepKind uint8

const (
	StepNone    StepKind = iota
	StepAdd              // as a non-voter, or with a new address and its present suffrage
	StepPromote          // to a voter
	StepDemote           // to a non-voter
	StepRemove
	StepHandOver
)

// NextStep decides what MembersStep does. behind returns the lag of a member. It returns an error
// unless the member answers and has applied the configuration in force.
func NextStep(self raft.ServerID, servers []raft.Server, target, others []Member, behind func(raft.ServerID) (uint64, error)) MemberStep {
	if step := moveStep(servers, slices.Concat(target, others)); step.Do != StepNone {
		return step
	}
	if step := admitStep(self, servers, target, others, behind); step.Do != StepNone {
		return step
	}
	for _, m := range target { // all must be voters first
		if SuffrageOf(servers, m.ID) != raft.Voter {
			return MemberStep{}
		}
	}
	surplus := surplusOf(servers, target, others)
	if len(surplus) == 0 {
		return MemberStep{}
	}
	lags := progressOf(self, servers, behind)
	heirs := slices.DeleteFunc(slices.Clone(target), func(m Member) bool { return !caughtUp(lags, m.ID) })
	if 2*len(heirs) <= len(target) {
		return MemberStep{} // the group may still need the surplus members
	}
	return dismissStep(self, servers, surplus, others, heirs, lags)
}

// progressOf has how many entries each voter lacks that answers and has applied the configuration in
// force. The leader lacks none.
func progressOf(self raft.ServerID, servers []raft.Server, behind func(raft.ServerID) (uint64, error)) map[raft.ServerID]uint64 {
	lags := map[raft.ServerID]uint64{self: 0}
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != self {
			if lag, err := behind(s.ID); err == nil {
				lags[s.ID] = lag
			}
		}
	}
	return lags
}

// caughtUp reports whether a voter answers and has caught up.
func caughtUp(lags map[raft.ServerID]uint64, id raft.ServerID) bool {
	lag, answers := lags[id]
	return answers && lag <= CaughtUpEntries
}

// canLose reports whether the group can lose the voter lost. The new configuration is in force at
// once, and without a majority of the other voters nothing commits and nobody can replace the leader
// (see DESIGN.md). So a majority of the others must have caught up, or lack no more entries than the
// one that leaves: then nothing waits for longer than before. If lost does not answer, a majority of
// the others must answer.
func canLose(servers []raft.Server, lost raft.ServerID, lags map[raft.ServerID]uint64) bool {
	lagMax := uint64(math.MaxUint64)
	if lag, answers := lags[lost]; answers {
		lagMax = max(lag, CaughtUpEntries)
	}
	voters, there := 0, 0
	for _, s := range servers {
		if s.Suffrage == raft.Voter && s.ID != lost {
			voters++
			if lag, answers := lags[s.ID]; answers && lag <= lagMax {
				there++
			}
		}
	}
	return 2*there > voters
}

// Member is a wanted replica of a group, with the address of its node.
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

// moveStep updates the address of the first member that has moved. raft accepts no address twice,
// so the old address would keep out the next node that has it.
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

// admitStep returns the step that adds the first missing replica. If a stale member has that
// replica's address, the step removes this member, or hands the group over if it is the leader. If no
// replica can be added, the step promotes the first caught-up replica of the target to a voter.
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
		old := servers[at].ID // raft accepts no address twice
		wanted := slices.ContainsFunc(all, func(m Member) bool { return m.ID == old })
		if !wanted && old == self { // the leader never removes its own vote
			if heir := heirOf(self, servers, target, behind); heir.ID != "" {
				return MemberStep{StepHandOver, heir, "handed over to " + string(heir.ID) + ": " + string(m.ID) + " has this address"}
			}
			continue
		}
		if !wanted && (servers[at].Suffrage != raft.Voter || canLose(servers, old, progressOf(self, servers, behind))) {
			return MemberStep{StepRemove, Member{ID: old}, "removed " + string(old) + ", whose address " + string(m.ID) + " has"}
		}
	}
	for _, m := range target {
		if SuffrageOf(servers, m.ID) == raft.Voter {
			continue
		}
		if !isCaughtUp(m.ID, behind) {
			continue // the next step asks it again
		}
		return MemberStep{StepPromote, m, "gave a vote to " + string(m.ID)}
	}
	return MemberStep{}
}

// heirOf returns a caught-up voter to which the leader hands over because another replica has the
// leader's address. It prefers voters of the target. The zero Member means none.
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

// surplusOf returns the members that should leave the group or lose their vote.
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

// dismissStep removes the first surplus member without which the others keep a majority, or takes
// its vote. Members that have not caught up go first. The leader goes last, after it has handed the
// group over to one of heirs.
func dismissStep(self raft.ServerID, servers, surplus []raft.Server, others, heirs []Member, lags map[raft.ServerID]uint64) MemberStep {
	leads := false
	for _, late := range []bool{true, false} {
		for _, s := range surplus {
			switch {
			case s.ID == self:
				leads = true
			case late && caughtUp(lags, s.ID), s.Suffrage == raft.Voter && !canLose(servers, s.ID, lags):
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
	return MemberStep{StepHandOver, heirs[0], "handed over to " + string(heirs[0].ID)}
}

// changed waits until a change of members is committed, but at most three election timeouts,
// because its caller changes all groups of the node in turn. The change may happen later, so the
// caller reads the configuration again. raft refuses another change meanwhile.
func (g *Replica) changed(future raft.IndexFuture) error {
	if err := g.awaitSoon(future); err != nil {
		return fmt.Errorf("cannot change the members: %w", err)
	}
	return nil
}

// unstored decides what becomes of a configuration that the log has no space for. raft's main loop
// calls it.
//
// A follower refuses the entry, and its leader sends it again. A leader uses a configuration that
// it did not store, and by the time that it could store it, the checks of NextStep are old (see
// DESIGN.md). So the leader never stores it: the owner opens the replica again, and until then the
// main loop waits here. Without Config.Reopen the leader waits for space and stores it late.
func (g *Replica) unstored(err error) error {
	if r := g.trans.filter.raft.Load(); r == nil || r.State() != raft.Leader {
		return err
	}
	if g.cfg.Reopen == nil {
		return g.stop.Wait(err)
	}
	g.cfg.Logger.Warn("the log has no space for a change of members: the replica is opened again without it", "group", g.cfg.Group, "err", err)
	g.cfg.Reopen()
	for {
		if failure := g.stop.Wait(err); failure != nil {
			return failure
		}
	}
}

// errTransferStuck is the reason to open a replica again if its handover of leadership never ends:
// until then, raft refuses every write (hashicorp/raft#696).
var errTransferStuck = errors.New("a handover of leadership does not end")

// Transfer hands the leadership to another voter. raft refuses writes during the transfer, which
// takes at most transferMax. Transfer waits for three election timeouts, and the handover goes on.
func (g *Replica) Transfer(to Member) error {
	if err := g.awaitSoon(g.raft.LeadershipTransferToServer(to.ID, raft.ServerAddress(to.Addr))); err != nil {
		return fmt.Errorf("cannot hand the leadership to %s: %w", to.ID, err)
	}
	return nil
}

// errRaftWaits is returned for a handover or a change of members that raft has not ended in time,
// because its main loop waits for the disk. It may happen later.
var errRaftWaits = errors.New("raft waits for the disk, and does it later")

// awaitSoon waits for a future, but at most three election timeouts.
func (g *Replica) awaitSoon(future raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- g.await(future) }()
	select {
	case err := <-answer:
		return err
	case <-time.After(g.cfg.Timing.soon()):
		return errRaftWaits
	}
}

func (t Timing) soon() time.Duration { return 3 * t.Election }

// transferMax is longer than any handover that ends. raft refuses writes during a handover. A
// handover waits for two election timeouts and the call to campaign: the call may fail on an idle
// connection, then dial, then be answered, each within rpcTimeout. If an append to the same voter
// is under way since an earlier handover, it waits for that: reachMax and an rpcTimeout.
const transferMax = reachMax + 2*rpcTimeout
