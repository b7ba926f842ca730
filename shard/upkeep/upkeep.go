// Package upkeep owns the small steps that a leader takes in its shards while nobody asks for
// them: it drops the cursors of idle users, members of deleted rows, and positions of deleted
// sources. It changes a shard through its log alone.
//
// Invariant: a step drops only state that is already useless, so a step that fails or runs
// twice does no harm. The next tick repeats it.
package upkeep

import (
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
)

const (
	// SweepTick is how often a step of the sweep of idle cursors is taken in each
	// shard that this node leads, while a round is under way.
	SweepTick = time.Second
	// sweepRows bounds the rows that one step checks. At one step a tick, a round of 25
	// million users takes 3.4 hours; there is one a day.
	sweepRows = 2048
	// sweepWallEvery is how often this machine's clock, instead of the log's time, decides
	// whether a round is due: the log's time stands still while nobody writes. A step does
	// nothing while that clock is wrongly ahead, so it is not taken at every tick.
	sweepWallEvery = 10 * time.Minute
	// purgeTick is how often a step is taken in each shard that this node leads, while the
	// shard has members of deleted rows. Reads do not return them; they only take disk.
	purgeTick = 200 * time.Millisecond
	// purgePairs bounds a step, and so the delay of the entries behind it: some
	// milliseconds. A row of a million members is gone within 2 minutes.
	purgePairs = 2048
	// memberViewKept is how long the sets of a snapshot are kept beside the present ones: a
	// backup opens the snapshot that it has just taken.
	memberViewKept = time.Minute
	// forgetTick is how often the shards that this node leads are searched for positions of
	// deleted sources. They take some bytes each and do no harm.
	forgetTick = time.Second
	// stepTimeout bounds the wait for the entry of one step.
	stepTimeout = 5 * time.Second
)

// Shard is a replica of a shard on this node.
type Shard struct {
	Group    *replica.Replica
	Proposer *propose.Proposer
	Machine  raftfsm.Machine
	Counters *counters.Machine // the machine, if it is of this kind
	Unread   *unread.Machine   // likewise
}

// Upkeep takes the steps. Its fields are set before the first run.
type Upkeep struct {
	Shards     iter.Seq2[uint32, Shard] // by number of the group
	View       func() *catalog.View
	Cluster    uint32        // hash of the cluster's id
	CursorIdle time.Duration // after which a user's cursors are dropped
	DiskFull   *atomic.Bool
	Logger     *slog.Logger
	Stopping   <-chan struct{}
}

// each calls step with each shard at each tick until the node is stopping.
func (u *Upkeep) each(every time.Duration, what string, step func(group uint32, s *Shard) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-u.Stopping:
			return
		}
		for group, s := range u.Shards {
			if err := step(group, &s); err != nil {
				u.Logger.Debug("a step of upkeep failed and is tried again", "step", what, "group", group, "err", err)
			}
		}
	}
}

// SweepCursors drops the cursors of users who moved none for long. Open starts it, Close waits
// for it.
func (u *Upkeep) SweepCursors() {
	asked := map[uint32]time.Time{} // this machine's clock, by group
	u.each(SweepTick, "sweep of cursors", func(group uint32, s *Shard) error {
		if s.Unread == nil || s.Group.Ready() != nil {
			return nil
		}
		now := s.Unread.LogTime()
		if wall := time.Now(); wall.After(now) && time.Since(asked[group]) >= sweepWallEvery {
			now, asked[group] = wall, wall
		}
		if s.Unread.Cursors().Stats().Rows == 0 || !s.Unread.Sweep().Due(now, u.CursorIdle) || u.DiskFull.Load() {
			return nil
		}
		return s.propose(&dedup.RequestID{}, func(w *raftfsm.RequestWriter) { unread.AppendSweep(w, u.CursorIdle, sweepRows) })
	})
}

// PurgeMembers frees the disk of members of deleted rows, and of those that older snapshots
// show. Open starts it, Close waits for it.
func (u *Upkeep) PurgeMembers() {
	u.each(purgeTick, "removal of members of deleted rows", func(_ uint32, s *Shard) error {
		if s.Counters == nil {
			return nil
		}
		sets := s.Counters.Members()
		sets.ReleaseViews(time.Now().Add(-memberViewKept))
		if u.DiskFull.Load() || sets.Dying() == 0 || s.Group.Ready() != nil {
			return nil
		}
		return s.propose(&dedup.RequestID{}, func(w *raftfsm.RequestWriter) { counters.AppendPurge(w, purgePairs) })
	})
}

// ForgetSources drops the positions of deleted sources. Open starts it, Close waits for it.
func (u *Upkeep) ForgetSources() {
	u.each(forgetTick, "removal of positions of deleted sources", func(_ uint32, s *Shard) error {
		if u.DiskFull.Load() || s.Group.Ready() != nil {
			return nil
		}
		for _, source := range s.Machine.Sources() {
			if !u.View().SourceDeleted(u.Cluster, source) {
				continue
			}
			id := dedup.BySource(dedup.SourceSection{PositionKey: dedup.PositionKey{Source: source}, Mode: dedup.SectionForget})
			if err := s.propose(&id, func(*raftfsm.RequestWriter) {}); err != nil {
				return err
			}
		}
		return nil
	})
}

// propose proposes a request and waits for its entry.
func (s *Shard) propose(id *dedup.RequestID, write func(*raftfsm.RequestWriter)) error {
	var w raftfsm.RequestWriter
	w.Reset(nil, s.Machine.Route(), id)
	write(&w)
	q, err := s.Proposer.Submit(w.Section(), w.Ops(), true, 0)
	if err != nil {
		return err
	}
	timer := time.NewTimer(stepTimeout)
	defer timer.Stop()
	return q.Wait(timer)
}
