package replica

import (
	"log/slog"
	"time"
)

const (
	// detectEvery is the shortest pause between two checks.
	detectEvery = 10 * time.Millisecond
)

// FailureDetector makes followers detect a silent leader two to three times sooner than raft. raft
// alone checks only once in a random interval of one to two heartbeat timeouts, and no voter is
// elected before a majority has noticed the silence.
type FailureDetector struct {
	Replicas func() []*Replica
	Logger   *slog.Logger // rate-limited
	Stopping <-chan struct{}
}

// Run checks the replicas until the node stops. The node's Open starts it; its Close waits for it.
func (d FailureDetector) Run() {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-due.C:
		case <-d.Stopping:
			return
		}
		next := TimingDefault.DetectAfter() // without a replica, still check after this time, because a replica may be opened during the pause
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
