package leadership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// This file has what leaders of parents and children ask the other voters, see shard/GROWTH.md.

// Grower prepares this node's replicas of parents for a split, and knows the parts on this node.
type Grower interface {
	// Prepare returns nil once the replica is ready for the split of the attempt. The first call
	// begins the preparation.
	Prepare(group, attempt uint32) error
	// Parked reports whether the part of a child is parked on this node.
	Parked(child uint32) bool
	// Check returns why the shard of a local replica is too large to split into a number of parts, or is closed, as this
	// node knows it.
	Check(group uint32, parts int) error
}

// growthQuestion asks a voter about its replica of a parent or child.
type growthQuestion struct {
	Replica raftstore.ReplicaID
	Attempt uint32 // the voter of a parent prepares for this attempt; 0 for a child
	Check   bool   // asks only Grower.Check
	Parts   int    // of the split, for Check
}

type growthAnswer struct {
	Saved   bool   // the replica has a snapshot. It keeps one for ever
	Parked  bool   // the part of the group is parked on the node
	Unready string // why the replica is not ready for the attempt, or must not split; "" if it may
	// TooLarge means that the replica would have to copy more than Apply may copy. No leader splits the shard then.
	TooLarge bool
	Steps    uint64 // while the replica is not ready, the steps of parting that it has done for the attempt
}

// serveGrowth answers methodGrowth.
func (m *Membership) serveGrowth(_ context.Context, q growthQuestion) (a growthAnswer, err error) {
	g := m.cfg.Replicas.Replica(q.Replica.Group)
	if g == nil || g.Number() != q.Replica.Number {
		return a, fmt.Errorf("%w: replica %d of group %d is not here", errs.ErrNoLeader, q.Replica.Number, q.Replica.Group)
	}
	a.Saved = g.Snapshots().NewestIndex() > 0
	a.Parked = m.cfg.Grower != nil && m.cfg.Grower.Parked(q.Replica.Group)
	if q.Attempt == 0 && !q.Check {
		return a, nil
	}
	switch {
	case m.cfg.Grower == nil:
		err = errors.New("this node splits no shards")
	case g.Growth.ApplyHangs(): // the other questions would wait for it
		err = errors.New("its state machine hangs")
	case q.Check:
		err = m.cfg.Grower.Check(q.Replica.Group, q.Parts)
	case m.cfg.Replicas.Damaged(q.Replica.Group):
		err = errors.New("it is damaged")
	default:
		if err = g.Stuck(); err == nil {
			err = m.cfg.Grower.Prepare(q.Replica.Group, q.Attempt)
		}
	}
	if err != nil {
		a.Unready, a.TooLarge = err.Error(), errors.Is(err, raftfsm.ErrTooLarge)
	}
	if preparing := (*tiering.PreparingError)(nil); errors.As(err, &preparing) {
		a.Steps = preparing.Steps
	}
	return a, nil
}

// askVoters asks each voter of a group, this node's replica too, and returns the answers by Raft id. It sets the
// replica of the question.
func (m *Membership) askVoters(ctx context.Context, group uint32, voters []raft.ServerID, q growthQuestion) map[raft.ServerID]growthAnswer {
	ids := map[string]raft.ServerID{}
	for _, id := range voters {
		ids[replica.NodeOf(id)] = id
	}
	answers := map[raft.ServerID]growthAnswer{}
	for node, a := range rpc.AskAll(ctx, maps.Keys(ids), func(ctx context.Context, node string) (growthAnswer, error) {
		_, number := catalog.ParseReplicaID(string(ids[node]))
		q := q
		q.Replica = raftstore.ReplicaID{Group: group, Number: number}
		if node == m.cfg.Key {
			return m.askSelf(ctx, q)
		}
		return rpc.CallJSON[growthAnswer](ctx, m.cfg.Calls, node, methodGrowth, q)
	}) {
		answers[ids[node]] = a
	}
	return answers
}

// askSelf is like serveGrowth, but ends with ctx. An answer may have to wait for Apply, which may wait for a full
// disk.
func (m *Membership) askSelf(ctx context.Context, q growthQuestion) (growthAnswer, error) {
	type result struct {
		a   growthAnswer
		err error
	}
	answered := make(chan result, 1)
	go func() { // ends with Apply at the latest
		a, err := m.serveGrowth(ctx, q)
		answered <- result{a, err}
	}()
	select {
	case r := <-answered:
		return r.a, r.err
	case <-ctx.Done():
		return growthAnswer{}, ctx.Err()
	}
}

// ErrUnready is returned by MaySplit while a condition of R2 does not hold.
var ErrUnready = errors.New("the shard cannot split yet")

// MaySplit returns nil if the replica g, which this node leads, may propose the Split of an attempt now:
//
//   - The voters in force are on exactly the given nodes, those of the first voters of each child.
//   - All voters that answer are ready, or a majority is and patient is false. This node and a
//     majority are ready in each case. The question makes the voters prepare.
//   - No voter that answers has an ErrTooLarge, whatever patient is. It would be stuck at Split.
//
// steps are the steps of parting that voters have done which are not ready yet.
//
// Only the goroutine that calls Reconcile may call MaySplit, and it must propose Split, by
// replica.Growth.Propose, before its next call of Reconcile for the group. The caller checks that each child has a leader.
func (m *Membership) MaySplit(ctx context.Context, g *replica.Replica, attempt uint32, nodes []string, patient bool) (steps map[raft.ServerID]uint64, err error) {
	if err := g.Ready(); err != nil {
		return nil, err
	}
	voters, err := g.Growth.Voters()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnready, err)
	}
	on := make([]string, len(voters))
	for i, id := range voters {
		on[i] = replica.NodeOf(id)
	}
	want := slices.Sorted(slices.Values(nodes))
	if slices.Sort(on); !slices.Equal(on, want) {
		return nil, fmt.Errorf("%w: its voters are on %v, the first voters of its children on %v", ErrUnready, on, want)
	}
	answers, ready := m.askVoters(ctx, g.Group(), voters, growthQuestion{Attempt: attempt}), 0
	steps = map[raft.ServerID]uint64{}
	for id, a := range answers {
		steps[id] = a.Steps
		switch {
		case a.Unready == "":
			ready++
		case patient || a.TooLarge || id == g.ID():
			err = fmt.Errorf("%w: replica %s: %s", ErrUnready, id, a.Unready)
		}
	}
	if err != nil {
		return steps, err
	}
	if own, answered := answers[g.ID()]; !answered || own.Unready != "" || 2*ready <= len(voters) {
		return steps, fmt.Errorf("%w: %d of %d voters are ready", ErrUnready, ready, len(voters))
	}
	return steps, nil
}

// MayAllSplit returns nil if voters of all the groups answer, and each voter that answers finds that the shard may
// split into the parts: see Grower.Check. It asks the voters that the catalog wants. They answer for this moment, so a shard may
// still grow too large until its Split.
func (m *Membership) MayAllSplit(ctx context.Context, view *catalog.View, groups []uint32, parts int) error {
	problems := make([]error, len(groups))
	var asking sync.WaitGroup
	for i, group := range groups {
		asking.Go(func() { // ends after rpc.AskTimeout at the latest
			problems[i] = m.mayBeSplit(ctx, view, group, parts)
		})
	}
	asking.Wait()
	return errors.Join(problems...)
}

func (m *Membership) mayBeSplit(ctx context.Context, view *catalog.View, group uint32, parts int) error {
	target, _, _ := Wanted(view, group)
	var voters []raft.ServerID
	for _, member := range target {
		voters = append(voters, member.ID)
	}
	answers := m.askVoters(ctx, group, voters, growthQuestion{Check: true, Parts: parts})
	for id, a := range answers {
		if a.Unready != "" {
			return fmt.Errorf("%w: replica %s of group %d: %s", ErrUnready, id, group, a.Unready)
		}
	}
	if len(answers) == 0 {
		return fmt.Errorf("%w: no voter of group %d answers", ErrUnready, group)
	}
	return nil
}

// Saved reports whether a majority of the voters of a child, which this node leads, has a snapshot. The
// voters of a child are frozen, and a replica keeps a snapshot. So the result stays true.
func (m *Membership) Saved(ctx context.Context, g *replica.Replica) bool {
	voters, saved := g.Voters(), 0
	for _, a := range m.askVoters(ctx, g.Group(), voters, growthQuestion{}) {
		if a.Saved {
			saved++
		}
	}
	return 2*saved > len(voters)
}

// shedUnborn hands the leadership of an unborn shard to a voter that has adopted the part or, if this node lacks
// the part, to a voter whose node has it.
func (m *Membership) shedUnborn(ctx context.Context, g *replica.Replica, view *catalog.View) (string, error) {
	if !g.Growth.Unborn() {
		return "", nil
	}
	if to, _ := m.successor(ctx, g, view, methodProgress); to.ID != "" {
		return "handed over to " + string(to.ID) + ", which has adopted the part", g.Transfer(to)
	}
	if m.cfg.Grower == nil || m.cfg.Grower.Parked(g.Group()) {
		return "", nil
	}
	answers := m.askVoters(ctx, g.Group(), g.Voters(), growthQuestion{})
	for _, s := range g.Configuration().Servers {
		if answers[s.ID].Parked {
			return "handed over to " + string(s.ID) + ", whose node has the part", g.Transfer(replica.Member{ID: s.ID, Addr: string(s.Address)})
		}
	}
	return "", nil
}

// Remedy is what a node does about a replica of a child that is stuck at Adopt.
type Remedy uint8

const (
	RemedyWait   Remedy = iota // the parent may still park the part
	RemedyReopen               // opens the replica again, which then adopts the part
	RemedyRepair               // repairs the replica from another one
	RemedyParent               // opens the parent's replica again, which replays Split and parks the part
)

// adoptPatience is how long a replica waits for its part before it is repaired from another one.
const adoptPatience = time.Minute

// Adopting describes a replica of a child that is stuck at Adopt, and its node.
type Adopting struct {
	Stuck      error         // why the replica is stuck
	Since      time.Duration // how long
	Parked     bool          // the part is parked on this node
	HasParent  bool          // this node has a replica of the parent that applies entries
	HasSplit   bool          // that replica has split
	Replays    bool          // if opened again, it would apply Split again, because its snapshot is from before Split
	Unrepaired bool          // no other replica could repair this one
}

// Remedy returns what the node does about the replica.
func (a *Adopting) Remedy() Remedy {
	staged, differed := !errors.Is(a.Stuck, raftfsm.ErrNotStaged), errors.Is(a.Stuck, raftfsm.ErrOtherPart)
	switch {
	case !differed && !errors.Is(a.Stuck, raftfsm.ErrNoPart): // its members cannot be read
		return RemedyRepair
	case differed && !a.Unrepaired:
		return RemedyRepair
	case a.Parked && staged:
		return RemedyReopen
	case !a.HasParent:
		return RemedyRepair
	case a.HasSplit && a.Replays && a.Unrepaired: // the part was taken before, or differed, or its members are gone
		return RemedyParent
	case a.HasSplit, a.Since >= adoptPatience:
		return RemedyRepair
	}
	return RemedyWait
}
