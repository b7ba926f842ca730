package shard

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

const (
	// sweepTick is how often a step of the sweep of idle cursors is taken in each
	// shard that this node leads, while a round is under way.
	sweepTick = time.Second
	// sweepRows is what one step looks at. At one step a tick a round of 25 million
	// users takes 3.4 hours; there is one a day.
	sweepRows = 2048
	// sweepWallEvery is how often this machine's clock is asked whether a round is
	// due, beside the time in the log. That stands still while nobody writes, and
	// one that a wrong clock is ahead of is not to be asked for without end.
	sweepWallEvery = 10 * time.Minute
	// sweepTimeout bounds the wait for one step.
	sweepTimeout = 5 * time.Second
)

// sweeper drops the cursors of users who moved none for long, through the log.
type sweeper struct {
	registry *registry
	idle     time.Duration
	diskFull *atomic.Bool
	logger   *slog.Logger
	stopping <-chan struct{}
}

// run takes steps until the node is stopping. Open starts it, Close waits for it.
func (s sweeper) run() {
	tick := time.NewTicker(sweepTick)
	defer tick.Stop()
	asked := map[uint32]time.Time{} // this machine's clock, by group
	for {
		select {
		case <-tick.C:
		case <-s.stopping:
			return
		}
		for _, g := range s.registry.groups.Load().all {
			if r, err := g.led(); err == nil && g.kind == codec.KindUnread {
				s.shard(g, r, asked)
			}
		}
	}
}

// shard takes one step in a shard that this node leads, if a round is due.
func (s sweeper) shard(g *shardReplica, r *localReplica, asked map[uint32]time.Time) {
	fsm := r.unread
	now := fsm.LogTime()
	if wall := time.Now(); wall.After(now) && time.Since(asked[g.number]) >= sweepWallEvery {
		now, asked[g.number] = wall, wall
	}
	if fsm.Cursors().Stats().Rows == 0 || !fsm.Sweep().Due(now, s.idle) || s.diskFull.Load() {
		return
	}
	if err := s.step(r); err != nil {
		s.logger.Debug("a step of the sweep of cursors failed and is tried again", "group", g.number, "err", err)
	}
}

func (s sweeper) step(r *localReplica) error {
	var w raftfsm.RequestWriter
	w.Reset(nil, &RequestID{})
	w.Sweep(s.idle, sweepRows)
	q, err := r.proposer.Submit(w.Section(), w.Ops(), true, 0)
	if err != nil {
		return err
	}
	timer := time.NewTimer(sweepTimeout)
	defer timer.Stop()
	return q.Wait(timer)
}
