package replica

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
)

// Growth is the part of a replica by which its shard splits or adopts a part: see DESIGN.md and
// shard/GROWTH.md. Its methods are safe for concurrent use unless their comments say otherwise.
type Growth struct {
	of *Replica
	// splitting is set from the proposal of an entry until its outcome is known, or until this node has lost the
	// leadership. A later leadership begins with a barrier, so an earlier entry is applied by then.
	splitting atomic.Bool
	asking    atomic.Bool // Voters waits for its barrier
	fencing   atomic.Bool // Begun waits for its barrier
}

// ApplyHangs reports whether the state machine hangs.
func (g *Growth) ApplyHangs() bool { return g.of.applyHangs.Load() }

// Unborn reports whether the shard has not adopted its part yet.
func (g *Growth) Unborn() bool {
	m := g.of.cfg.Machine
	return m != nil && m.Unborn()
}

// Elected reports whether this node leads the group, and has applied all committed entries of earlier terms
// or is stuck. Unlike Ready, it can be true for an unborn shard.
func (g *Growth) Elected() bool {
	return g.of.raft.State() == raft.Leader && g.of.readyTerm.Load() == g.of.raft.CurrentTerm()
}

// keepsMembers reports whether the members must not change: this node has proposed an entry and does not
// know its outcome, or the parts of an applied Split have not all begun.
func (g *Growth) keepsMembers() bool {
	m := g.of.cfg.Machine
	return g.splitting.Load() || m != nil && m.Barred()
}

// Voters returns the voters of the committed configuration, for the caller to compare them before Split.
// It returns an error while a change is in progress, even if raft has accepted the change and not
// stored it yet. It waits at most Timing.soon. Only the goroutine that calls MembersStep may call Voters.
func (g *Growth) Voters() ([]raft.ServerID, error) {
	if err := g.of.awaitSoon(g.once(&g.asking, g.barrier)); err != nil {
		return nil, err
	}
	inForce := g.of.ConfigurationInForce()
	if inForce == nil {
		return nil, ErrMembersChange
	}
	var voters []raft.ServerID
	for _, s := range inForce.Servers {
		if s.Suffrage == raft.Voter {
			voters = append(voters, s.ID)
		}
	}
	return voters, nil
}

// ErrMembersChange is returned by Voters while the members of the group change.
var ErrMembersChange = errors.New("the members of the group are changing")

// Propose proposes an entry by which the shard grows, and waits for its outcome, but at most Timing.soon. From
// the call until the outcome is known or this node no longer leads, MembersStep changes nothing. If the outcome
// is void, Propose returns raftfsm.ErrVoid. Only the goroutine that calls MembersStep may call it.
func (g *Growth) Propose(entry []byte) error {
	return g.of.awaitSoon(g.once(&g.splitting, func() error {
		future := g.of.Apply(entry)
		err := g.of.await(future)
		if err == nil {
			answer := future.Response()
			if timed, is := answer.(interface{ Answer() any }); is { // of propose.TimedFSM
				answer = timed.Answer()
			}
			err, _ = answer.(error)
		}
		return err
	}))
}

// once calls f in a goroutine, which sets busy. If an earlier call has not returned, it does not call f, and the
// result is errBusy. f must return once its entry is applied here, this node has lost the leadership, or the
// group has failed.
func (g *Growth) once(busy *atomic.Bool, f func() error) outcomeFuture {
	outcome := make(outcomeFuture, 1)
	if busy.Swap(true) {
		outcome <- errBusy
		return outcome
	}
	go func() { // ends with f
		err := f()
		busy.Store(false)
		outcome <- err
	}()
	return outcome
}

// barrier proposes a barrier and waits for it. Reads then need not wait for its index.
func (g *Growth) barrier() error {
	index, err := g.of.barrier()
	if err == nil {
		g.noteBarrier(index)
	}
	return err
}

// noteBarrier records that a barrier was applied here.
func (g *Growth) noteBarrier(index uint64) {
	at := &g.of.barrierIndex
	for before := at.Load(); before < index && !at.CompareAndSwap(before, index); {
		before = at.Load()
	}
}

// mayBeBarrier reports whether the entry at a commit index may be a barrier of Voters or Begun. No read must wait
// for it.
func (g *Growth) mayBeBarrier(committed uint64, applied func() uint64) bool {
	return g.awaitsBarrier() && applied() < committed && g.of.barrierIndex.Load() < committed
}

// awaitsBarrier reports whether a barrier of Voters or Begun is under way. Once it is not, barrierIndex is not below
// the index of that barrier.
func (g *Growth) awaitsBarrier() bool { return g.asking.Load() || g.fencing.Load() }

// errBusy is returned by Propose and Voters while an earlier call waits for raft.
var errBusy = errors.New("an earlier call waits for raft")

// outcomeFuture is a raft.Future of a channel that gets one value.
type outcomeFuture chan error

func (f outcomeFuture) Error() error { return <-f }

// Begun records that all parts of an attempt to split this shard have begun, or no attempt for 0. The parent's
// replica may take snapshots then. Begun makes the replica take one at once if its shard has grown since
// its newest snapshot. The owner calls Begun repeatedly, with what its catalog shows.
func (g *Growth) Begun(attempt uint32) {
	m := g.of.cfg.Machine
	if m == nil {
		return
	}
	m.Begun(attempt)
	if at := m.AdoptedAt(); at > 0 && at == g.of.raft.LastIndex() && g.Elected() {
		g.once(&g.fencing, g.barrier) // an entry after Adopt, for which the first snapshots wait
	}
	if g.of.snapshotter.growthDue() {
		select {
		case g.of.snapshotter.grew <- struct{}{}:
		default:
		}
	}
}

// ErrKeepsOlder is returned by Settled for a replica that still needs the last Split or Adopt of its shard.
var ErrKeepsOlder = errors.New("it keeps a snapshot, or a log without one, from before the shard last grew")

// Settled returns nil if each snapshot on this replica's disk has the present route of its shard, and there
// is one. Then the replica never again applies the last Split or Adopt of its shard.
func (g *Growth) Settled(kind codec.Kind, first, now codec.Route) error {
	stored := g.of.snapshotter.stored
	if stored.OldestIndex() == 0 {
		return ErrKeepsOlder
	}
	names, err := stored.Names() // finished ones first, ascending
	if err != nil {
		return err
	}
	_, state, err := stored.Open(names[0])
	if err != nil {
		return fmt.Errorf("cannot read its oldest snapshot: %w", err)
	}
	defer state.Close()
	oldest, err := kinds.All.OpenSnapshot(state, kind, first)
	if err != nil {
		return fmt.Errorf("cannot read its oldest snapshot: %w", err)
	}
	if oldest.Route() != now {
		return ErrKeepsOlder
	}
	return nil
}

var _ Machine = (raftfsm.Machine)(nil)
