package shard

import (
	"log/slog"
	"time"

	"github.com/countd/countd/shard/replica"
)

const (
	// detectEvery is between two looks at least: one that comes early is followed by
	// few.
	detectEvery = 10 * time.Millisecond
)

// failureDetector makes followers check for their leader when its silence lasts. By
// itself raft checks at random moments, one or two heartbeat timeouts apart, and all voters
// must have checked before one is elected: two to three times as late as they might know.
type failureDetector struct {
	registry *registry
	logger   *slog.Logger // limits what repeats
	stopping <-chan struct{}
}

// run checks until the node is stopping. Open starts it, Close waits for it.
func (d failureDetector) run() {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-due.C:
		case <-d.stopping:
			return
		}
		next := replica.TimingDefault.DetectAfter() // of a replica that is opened meanwhile
		for _, g := range d.registry.Replicas() {
			again, err := g.DetectFailure()
			if err != nil {
				d.logger.Warn("a group's leader is missed", "group", g.Group(), "err", err)
			}
			next = min(next, again)
		}
		due.Reset(max(next, detectEvery))
	}
}
