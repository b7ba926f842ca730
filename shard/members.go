package shard

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
	// caughtUpEntries is how far behind its leader's log a replica may be to be
	// made a voter: what one call of raft brings it.
	caughtUpEntries = appendEntriesMax
)

// membersStep brings the group's members one change nearer to the voters of
// target and, besides, the non-voters of others. This node must lead the group.
// It returns what it did, "" when nothing is left to be done now. raft takes one
// change at a time, and none of a node that no longer leads.
//
// The order keeps as many voters as there were. A replica that joins is a non-voter until
// it has caught up, and nobody leaves before all that join are voters. Only a member whose
// address a joining replica has leaves before: its node is lost, or has another replica now.
func (g *group) membersStep(ctx context.Context, target, others []member, behind func(context.Context, raft.ServerID) (uint64, error)) (string, error) {
	step := nextStep(g.id(), g.configuration().Servers, target, others, func(id raft.ServerID) (uint64, error) { return behind(ctx, id) })
	id, addr := step.member.id, raft.ServerAddress(step.member.addr)
	switch step.do {
	case stepAdd:
		return step.what, g.changed(g.raft.AddNonvoter(id, addr, 0, memberTimeout))
	case stepPromote:
		return step.what, g.changed(g.raft.AddVoter(id, addr, 0, memberTimeout))
	case stepDemote:
		return step.what, g.changed(g.raft.DemoteVoter(id, 0, memberTimeout))
	case stepRemove:
		return step.what, g.changed(g.raft.RemoveServer(id, 0, memberTimeout))
	case stepHandOver:
		return step.what, g.transfer(step.member)
	}
	return "", nil
}

// memberStep is one change of a group's members, or a handover, with what it is for
// people. The zero value does nothing.
type memberStep struct {
	do     stepKind
	member member
	what   string
}

type stepKind uint8

const (
	stepNone    stepKind = iota
	stepAdd              // as a non-voter, or with a new address and the suffrage that it has
	stepPromote          // to a voter
	stepDemote           // to a non-voter
	stepRemove
	stepHandOver
)

// nextStep decides for a leader what membersStep does. behind returns how far a member is
// behind its log, and an error unless it answers and has applied the configuration in
// force.
func nextStep(self raft.ServerID, servers []raft.Server, target, others []member, behind func(raft.ServerID) (uint64, error)) memberStep {
	if step := moveStep(servers, slices.Concat(target, others)); step.do != stepNone {
		return step
	}
	if step := admitStep(self, servers, target, others, behind); step.do != stepNone {
		return step
	}
	for _, m := range target { // all are voters, or the group waits for them
		if suffrageOf(servers, m.id) != raft.Voter {
			return memberStep{}
		}
	}
	surplus := surplusOf(servers, target, others)
	if len(surplus) == 0 {
		return memberStep{}
	}
	up := map[raft.ServerID]bool{self: true} // voters that answer and know the members
	var there []member                       // of the target, those that could go on without the rest
	for _, s := range servers {
		if s.Suffrage != raft.Voter || s.ID == self {
			continue
		}
		lag, err := behind(s.ID)
		up[s.ID] = err == nil
		if i := slices.IndexFunc(target, func(m member) bool { return m.id == s.ID }); i >= 0 && err == nil && lag <= caughtUpEntries {
			there = append(there, target[i])
		}
	}
	if i := slices.IndexFunc(target, func(m member) bool { return m.id == self }); i >= 0 {
		there = append(there, target[i])
	}
	if 2*len(there) <= len(target) {
		return memberStep{} // whoever is left over may be needed
	}
	return dismissStep(self, servers, surplus, others, there, up)
}

// upOf returns the voters that answer and know the members, the leader among them.
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
// up. A leader that cannot reach a majority of the new configuration does not commit it,
// and if it fails meanwhile, those that have it and those that do not refuse each other.
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

// member is a replica that is to be in a group, and the address of its node.
type member struct {
	id   raft.ServerID
	addr string
}

const absent = raft.ServerSuffrage(-1)

func suffrageOf(servers []raft.Server, id raft.ServerID) raft.ServerSuffrage {
	for _, s := range servers {
		if s.ID == id {
			return s.Suffrage
		}
	}
	return absent
}

// moveStep gives the first member that has moved its new address: raft takes no
// address twice, so the old one would keep out the next node that has it.
func moveStep(servers []raft.Server, all []member) memberStep {
	for _, m := range all {
		taken := slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.Address) == m.addr })
		if taken || m.addr == "" || suffrageOf(servers, m.id) == absent {
			continue
		}
		return memberStep{stepAdd, m, "moved " + string(m.id) + " to " + m.addr}
	}
	return memberStep{}
}

// admitStep adds the first replica that is missing, or removes the member that has its
// address; then it gives a vote to the first of those that have caught up.
func admitStep(self raft.ServerID, servers []raft.Server, target, others []member, behind func(raft.ServerID) (uint64, error)) memberStep {
	all := slices.Concat(target, others)
	for _, m := range all {
		if suffrageOf(servers, m.id) != absent {
			continue
		}
		at := slices.IndexFunc(servers, func(s raft.Server) bool { return string(s.Address) == m.addr })
		if at < 0 {
			return memberStep{stepAdd, m, "added " + string(m.id)}
		}
		old := servers[at].ID // raft takes no address twice
		wanted := slices.ContainsFunc(all, func(m member) bool { return m.id == old })
		if !wanted && (servers[at].Suffrage != raft.Voter || canLose(servers, old, upOf(self, servers, behind))) {
			return memberStep{stepRemove, member{id: old}, "removed " + string(old) + ", whose address " + string(m.id) + " has"}
		}
	}
	for _, m := range target {
		if suffrageOf(servers, m.id) == raft.Voter {
			continue
		}
		lag, err := behind(m.id)
		if err != nil || lag > caughtUpEntries {
			continue // it is asked again in the next step
		}
		return memberStep{stepPromote, m, "gave a vote to " + string(m.id)}
	}
	return memberStep{}
}

// surplusOf returns the members that are there, or have a vote, and should not.
func surplusOf(servers []raft.Server, target, others []member) []raft.Server {
	var surplus []raft.Server
	for _, s := range servers {
		if !isIn(target, s) && (s.Suffrage == raft.Voter || !isIn(others, s)) {
			surplus = append(surplus, s)
		}
	}
	return surplus
}

func isIn(list []member, s raft.Server) bool {
	return slices.ContainsFunc(list, func(m member) bool { return m.id == s.ID })
}

// dismissStep takes out, or the vote from, the first of those that should not have it and
// that the others can do without; the first of those that do not answer, if there is one.
// The leader itself goes last, and leads no longer by then: it hands over to one of those
// that are there.
func dismissStep(self raft.ServerID, servers, surplus []raft.Server, others, there []member, up map[raft.ServerID]bool) memberStep {
	leads := false
	for _, silent := range []bool{true, false} {
		for _, s := range surplus {
			switch {
			case s.ID == self:
				leads = true
			case silent && up[s.ID], s.Suffrage == raft.Voter && !canLose(servers, s.ID, up):
			case isIn(others, s):
				return memberStep{stepDemote, member{id: s.ID}, "took the vote from " + string(s.ID)}
			default:
				return memberStep{stepRemove, member{id: s.ID}, "removed " + string(s.ID)}
			}
		}
	}
	if !leads || len(surplus) > 1 {
		return memberStep{}
	}
	return memberStep{stepHandOver, there[0], "handed over to " + string(there[0].id)}
}

// changed waits for a change of members.
func (g *group) changed(future raft.IndexFuture) error {
	if err := g.await(future); err != nil {
		return fmt.Errorf("cannot change the members: %w", err)
	}
	return nil
}

// errTransferStuck ends a group whose leadership is being handed over for ever:
// raft refuses every write meanwhile (hashicorp/raft#696).
var errTransferStuck = errors.New("a handover of leadership does not end")

// transfer hands the leadership to another voter. raft refuses writes from its
// beginning to its end, for an election timeout at most, or, when the other
// takes the call and does not answer, for rpcTimeout.
func (g *group) transfer(to member) error {
	err := g.await(g.raft.LeadershipTransferToServer(to.id, raft.ServerAddress(to.addr)))
	if err != nil {
		return fmt.Errorf("cannot hand the leadership to %s: %w", to.id, err)
	}
	return nil
}

// transferMax is how long raft may refuse writes because it believes that it
// hands its leadership over: it waits for a call and two election timeouts,
// and past that it will for ever.
const transferMax = 3 * rpcTimeout
