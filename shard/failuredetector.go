package shard

import (
	"time"

	"github.com/countd/countd/shard/replica"
)

const (
	// detectEvery is between two looks at least: one that comes early is followed by
	// few.
	detectEvery = 10 * time.Millisecond
)

// runFailureDetector makes followers check for their leader when its silence lasts. By
// itself raft checks at random moments, one or two heartbeat timeouts apart, and all voters
// must have checked before one is elected: two to three times as late as they might know.
//
// Open starts it, Close stops and waits for it.
func (n *Node) runFailureDetector() {
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-due.C:
		case <-n.stopping:
			return
		}
		next := replica.TimingDefault.DetectAfter() // of a replica that is opened meanwhile
		for _, g := range n.replicas() {
			again, err := g.DetectFailure()
			if err != nil {
				n.mux.Limited().Warn("a group's leader is missed", "group", g.Group(), "err", err)
			}
			next = min(next, again)
		}
		due.Reset(max(next, detectEvery))
	}
}
