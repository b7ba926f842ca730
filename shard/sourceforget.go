package shard

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
)

const (
	// sourceForgetTick is how often the shards that this node leads are looked at for
	// positions of deleted sources. They take some bytes each and do no harm.
	sourceForgetTick = time.Second
	// sourceForgetTimeout bounds the wait for one entry.
	sourceForgetTimeout = 5 * time.Second
)

// sourceForgetter drops the positions of deleted sources, through the log.
type sourceForgetter struct {
	registry *registry
	view     func() *catalog.View
	cluster  uint32 // hash of the cluster's id
	diskFull *atomic.Bool
	logger   *slog.Logger
	stopping <-chan struct{}
}

// run looks until the node is stopping. Open starts it, Close waits for it.
func (f sourceForgetter) run() {
	tick := time.NewTicker(sourceForgetTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-f.stopping:
			return
		}
		if f.diskFull.Load() {
			continue
		}
		for _, g := range f.registry.groups.Load().all {
			r, err := g.led()
			if err != nil {
				continue
			}
			for _, source := range r.fsm.Sources() {
				if !f.view().SourceDeleted(f.cluster, source) {
					continue
				}
				if err := forgetSource(r.proposer, source); err != nil {
					f.logger.Debug("positions of a deleted source could not be dropped and are looked for again", "group", g.number, "err", err)
					break
				}
			}
		}
	}
}

// forgetSource proposes an entry that drops the positions of a source.
func forgetSource(p *propose.Proposer, source uint64) error {
	section := sectionOf(dedup.SourceSection{PositionKey: dedup.PositionKey{Source: source}, Mode: dedup.SectionForget})
	q, err := p.Submit(section, 0, true, 0)
	if err != nil {
		return err
	}
	timer := time.NewTimer(sourceForgetTimeout)
	defer timer.Stop()
	return q.Wait(timer)
}

// sectionOf writes a section of a source without ops.
func sectionOf(s dedup.SourceSection) []byte {
	id := dedup.BySource(s)
	var w raftfsm.RequestWriter
	w.Reset(nil, &id)
	return w.Section()
}
