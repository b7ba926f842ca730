package leadership

import (
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
)

const (
	// cleanTick is the interval at which Clean checks each shard that this node leads for useless
	// state.
	cleanTick = 200 * time.Millisecond
	// Normally the log's time decides whether a step is due, but it stops while there are no
	// writes. So every wallEvery, this machine's clock decides instead. This must not happen at
	// every tick, because a clock that is wrongly ahead would cause useless steps.
	wallEvery = 10 * time.Minute
	// memberViewKept is how long a replica keeps the sets of a snapshot beside the present sets, so
	// that a backup can open the snapshot that it has just taken.
	memberViewKept = time.Minute
	// forgetTick is the interval at which ForgetSources searches the shards that this node leads
	// for positions of deleted sources.
	forgetTick = time.Second
	// stepTimeout bounds the wait for the entry of one step.
	stepTimeout = 5 * time.Second
)

// UpkeepShard is a replica of a shard on this node.
type UpkeepShard struct {
	Group    *replica.Replica
	Proposer *propose.Proposer
	Machine  raftfsm.Machine
}

// Upkeep removes useless state from the shards that this node leads: cursors of idle users, members
// of deleted rows, and positions of deleted sources. It works in small steps, and changes a shard
// only through its log. Set its fields before the first run.
//
// Invariant: a step removes only useless state, so a failed or repeated step is harmless. A later
// tick repeats a failed step.
type Upkeep struct {
	Shards     iter.Seq2[uint32, UpkeepShard] // by group number
	View       func() *catalog.View
	Cluster    uint32        // hash of the cluster's id
	CursorIdle time.Duration // see raftfsm.Machine.Cleanup
	DiskFull   *atomic.Bool
	Logger     *slog.Logger
	Stopping   <-chan struct{}
}

// each calls step with each shard at each tick until the node is stopping.
func (u *Upkeep) each(every time.Duration, what string, step func(group uint32, s *UpkeepShard) error) {
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

// Clean takes the steps that raftfsm.Machine.Cleanup returns. Open starts it; Close waits for it.
func (u *Upkeep) Clean() {
	next, byWall := map[uint32]time.Time{}, map[uint32]time.Time{} // by group: when the next step is due, and when this machine's clock last decided
	u.each(cleanTick, "removal of useless state", func(group uint32, s *UpkeepShard) error {
		wall := time.Now()
		if sets := s.Machine.Members(); sets != nil {
			sets.ReleaseViews(wall.Add(-memberViewKept))
		}
		if wall.Before(next[group]) || u.DiskFull.Load() || s.Group.Ready() != nil {
			return nil
		}
		now := s.Machine.LogTime()
		if wall.After(now) && wall.Sub(byWall[group]) >= wallEvery {
			now, byWall[group] = wall, wall
		}
		step := s.Machine.Cleanup(now, u.CursorIdle)
		if next[group] = wall.Add(step.Pause); step.Append == nil {
			return nil
		}
		return s.propose(&dedup.RequestID{}, step.Append)
	})
}

// ForgetSources removes the positions of deleted sources. Open starts it; Close waits for it.
func (u *Upkeep) ForgetSources() {
	u.each(forgetTick, "removal of positions of deleted sources", func(_ uint32, s *UpkeepShard) error {
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
func (s *UpkeepShard) propose(id *dedup.RequestID, write func(*raftfsm.RequestWriter)) error {
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
