package shard

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm"
)

const (
	// memberPurgeTick is how often a step is taken in each shard that this node leads, while it
	// has members of deleted rows. They hide already; what is left takes disk.
	memberPurgeTick = 200 * time.Millisecond
	// memberPurgePairs bounds a step, and so the delay of the entries behind it: some
	// milliseconds. A row of a million members is gone within 2 minutes.
	memberPurgePairs = 2048
	// memberPurgeTimeout bounds the wait for one step.
	memberPurgeTimeout = 5 * time.Second
	// memberViewKept is how long the sets of a snapshot are kept beside the present ones: a
	// backup opens the snapshot that it has just taken.
	memberViewKept = time.Minute
)

// memberPurger frees the disk of members of deleted rows, through the log, and of those that
// older snapshots show.
type memberPurger struct {
	registry *registry
	diskFull *atomic.Bool
	logger   *slog.Logger
	stopping <-chan struct{}
}

// run takes steps until the node is stopping. Open starts it, Close waits for it.
func (p memberPurger) run() {
	tick := time.NewTicker(memberPurgeTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.stopping:
			return
		}
		for _, g := range p.registry.groups.Load().all {
			r := g.replica.Load()
			if r == nil || r.counters == nil {
				continue
			}
			sets := r.counters.Members()
			sets.ReleaseViews(time.Now().Add(-memberViewKept))
			if p.diskFull.Load() || sets.Dying() == 0 || r.group.Ready() != nil {
				continue
			}
			if err := p.step(r); err != nil {
				p.logger.Debug("members of deleted rows could not be removed; the next step retries", "group", g.number, "err", err)
			}
		}
	}
}

func (p memberPurger) step(r *localReplica) error {
	var w raftfsm.RequestWriter
	w.Reset(nil, &RequestID{})
	w.PurgeMembers(memberPurgePairs)
	q, err := r.proposer.Submit(w.Section(), w.Ops(), true, 0)
	if err != nil {
		return err
	}
	timer := time.NewTimer(memberPurgeTimeout)
	defer timer.Stop()
	return q.Wait(timer)
}
