package replica

import (
	"log/slog"
	"time"
)

const (
	// detectEvery is the least pause between two checks.
	detectEvery = 10 * time.Millisecond
)

// FailureDetector makes followers check for a silent leader in time. raft itself checks at random
// moments, one to two heartbeat timeouts apart, and all voters must have checked before one is
// elected. Those checks take two to three times as long as those of FailureDetector.
type FailureDetector struct {
	Replicas func() []*Replica
	Logger   *slog.Logger // rate-limited
	Stopping <-chan struct{}
}

// Run checks until the node is stopping. Open starts it; Close waits for it.
func (d FailureDetector) Run() {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-due.C:
		case <-d.Stopping:
			return
		}
		next := TimingDefault.DetectAfter() // for a replica that is opened meanwhile
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
