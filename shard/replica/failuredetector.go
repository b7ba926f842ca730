package replica

import (
	"log/slog"
	"time"
)

const (
	// detectEvery is between two looks at least: one that comes early is followed by
	// few.
	detectEvery = 10 * time.Millisecond
)

// FailureDetector makes followers check for their leader when its silence lasts. By
// itself raft checks at random moments, one or two heartbeat timeouts apart, and all voters
// must have checked before one is elected: two to three times as late as they might know.
type FailureDetector struct {
	Replicas func() []*Replica
	Logger   *slog.Logger // limits what repeats
	Stopping <-chan struct{}
}

// Run checks until the node is stopping. Open starts it, Close waits for it.
func (d FailureDetector) Run() {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-due.C:
		case <-d.Stopping:
			return
		}
		next := TimingDefault.DetectAfter() // of a replica that is opened meanwhile
		for _, g := range d.Replicas() {
			again, err := g.DetectFailure()
			if err != nil {
				d.Logger.Warn("heard nothing from the leader of a group", "group", g.Group(), "err", err)
			}
			next = min(next, again)
		}
		due.Reset(max(next, detectEvery))
	}
}
