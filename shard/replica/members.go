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
	// memberTimeout bounds the wait for space in raft's queue for a change of members.
	// Replica.changed bounds the wait for the change itself.
	memberTimeout = time.Second
	// CaughtUpEntries is the largest lag at which a replica may become a voter: raft sends that
	// many entries in one call.
	CaughtUpEntries = appendEntriesMax
)

// MembersStep makes one change towards the voters in target and the non-voters in others. This
// node must lead the group, because raft accepts changes only from the leader, one at a time.
// MembersStep returns a description of the change, or "" if none is possible now.
//
// While replicas join, the group keeps all its voters. A joining replica is a non-voter until it
// has caught up, and no member leaves before all joining replicas are voters. As an exception, a
// member leaves earlier if a joining replica has its address. That member's node is then lost, or
// has a new replica. While the shard splits, MembersStep changes nothing (Growth).
func (g *Replica) MembersStep(ctx context.Context, target, others []Member, behind func(context.Context, raft.ServerID) (uint64, error)) (string, error) {
	term, inForce := g.readyTerm.Load(), g.ConfigurationInForce()
	if inForce == nil || g.Growth.keepsMembers() {
		return "", nil // a change is in progress, and raft accepts no second one
	}
	step := NextStep(g.ID(), inForce.Servers, target, others, func(id raft.ServerID) (uint64, error) { return behind(ctx, id) })
	if g.readyTerm.Load() != term || g.raft.CurrentTerm() != term || g.Growth.keepsMembers() {
		return "", nil // another leader may have split the shard during the questions
	}
	// The change names the configuration that NextStep checked, so that raft refuses the change if
	// there is a newer configuration by then.
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

// MemberStep is one change of a group's members, or a handover of leadership, with a description.
// The zero value does nothing.
type MemberStep struct {
	Do     StepKind
	Member Member
	What   string
}

type StepKind uint8

const (
	StepNone    StepKind = iota
	StepAdd              // add as a non-voter, or change the address of a member
	StepPromote          // make a voter of a non-voter
	StepDemote           // make a non-voter of a voter
	StepRemove
	StepHandOver
)

// NextStep decides what MembersStep does. behind returns the lag of a member in entries. It
// returns an error if the member does not answer or has not applied the committed configuration.
func NextStep(self raft.ServerID, servers []raft.Server, target, others []Member, behind func(raft.ServerID) (uint64, error)) MemberStep {
	if step := moveStep(servers, slices.Concat(target, others)); step.Do != StepNone {
		return step
	}
	if step := admitStep(self, servers, target, others, behind); step.Do != StepNone {
		return step
	}
	for _, m := range target { // no member leaves before all replicas of target are voters
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
		return MemberStep{} // no majority of target has caught up, so the group may still need the surplus members
	}
	return dismissStep(self, servers, surplus, others, heirs, lags)
}

// progressOf returns the lag of each voter, in entries; 0 for the leader. It omits voters for
// which behind returns an error.
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

// caughtUp reports whether lags contains the voter id, with a lag of at most CaughtUpEntries.
func caughtUp(lags map[raft.ServerID]uint64, id raft.ServerID) bool {
	lag, answers := lags[id]
	return answers && lag <= CaughtUpEntries
}

// canLose reports whether the group can do without the voter in the argument lost. A removal takes
// effect at once, and the group then needs a majority of the other voters to commit and to elect a
// leader (see DESIGN.md). So a majority of them must have caught up, or lag no more than the
// removed voter. Then no commit waits longer than before. If the removed voter does not answer, a
// majority of the others must answer.
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

// moveStep returns the step that updates the address of the first member whose node has a new one.
// raft accepts no address twice, so a stale address would prevent another node with that address
// from joining.
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
// replica's address, the step removes the stale member, or hands over the leadership if the stale
// member is this leader. If no replica can be added, the step promotes the first caught-up replica
// of target.
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
		old := servers[at].ID // the stale member must leave first, because raft accepts no address twice
		wanted := slices.ContainsFunc(all, func(m Member) bool { return m.ID == old })
		if !wanted && old == self { // the leader must hand over first, because it never removes its own vote
			if heir := heirOf(self, servers, target, progressOf(self, servers, behind)); heir.ID != "" {
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
		if lag, err := behind(m.ID); err == nil && lag <= CaughtUpEntries { // if behind fails or the lag is too large, a later step asks this member again
			return MemberStep{StepPromote, m, "gave a vote to " + string(m.ID)}
		}
	}
	return MemberStep{}
}

// heirOf returns a caught-up voter to which this leader can hand over. It prefers voters of target.
// The zero Member means none.
func heirOf(self raft.ServerID, servers []raft.Server, target []Member, lags map[raft.ServerID]uint64) (heir Member) {
	for _, s := range servers {
		if s.ID == self || !caughtUp(lags, s.ID) {
			continue
		}
		if heir = (Member{s.ID, string(s.Address)}); isIn(target, s) {
			break
		}
	}
	return heir
}

// surplusOf returns the members that must leave the group or lose their vote.
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

// dismissStep returns the step that removes the first surplus member that the group can lose, or
// demotes it if others contains it. Members that have not caught up go first. If only the leader is
// left to remove, the step hands over the leadership to one of heirs.
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

// changed waits until a change of members is committed, but at most Timing.soon, because its
// caller changes all groups of the node in turn. After an error the change may still be committed
// later, so the caller must read the configuration again. Until then raft refuses another change.
func (g *Replica) changed(future raft.IndexFuture) error {
	if err := g.awaitSoon(future); err != nil {
		return fmt.Errorf("cannot change the members: %w", err)
	}
	return nil
}

// unstored handles a configuration for which the log has no space; see storage.Log.Unstored. raft's
// main loop calls it.
//
// A follower refuses the entry, and its leader sends it again. A leader already uses the
// configuration, and once there is space to store it, the checks of NextStep are outdated (see
// DESIGN.md). So the leader never stores that configuration: it requests that the replica be opened
// again, and waits here until then. Without Config.Reopen the leader waits for space and stores the
// configuration late.
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

// errTransferStuck is the cause given to Reopen if a handover of leadership does not end, because
// raft would then refuse every write for ever (hashicorp/raft#696).
var errTransferStuck = errors.New("a handover of leadership does not end")

// Transfer hands the leadership to another voter. raft refuses writes during the handover, which
// may take up to transferMax. If the handover takes longer than Timing.soon, Transfer returns an
// error, and the handover continues.
func (g *Replica) Transfer(to Member) error {
	if err := g.awaitSoon(g.raft.LeadershipTransferToServer(to.ID, raft.ServerAddress(to.Addr))); err != nil {
		return fmt.Errorf("cannot hand the leadership to %s: %w", to.ID, err)
	}
	return nil
}

// errRaftWaits is returned for a handover or a change of members that raft has not finished in
// time, because its main loop waits for the disk. raft may finish it later.
var errRaftWaits = errors.New("raft waits for the disk, and does it later")

// awaitSoon waits for a future, but at most Timing.soon.
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

// transferMax is when a handover counts as one that never ends. Only slow dials or answers make a
// handover that ends take longer. An append to the voter may delay a handover by reachMax and an
// rpcTimeout. raft waits two election timeouts for the voter to catch up, and then calls
// TimeoutNow, which takes an rpcTimeout at most on an open connection.
const transferMax = reachMax + 2*rpcTimeout
