package shard

import (
	"time"

	"github.com/countd/countd/shard/replica"
)

const (
	// suspectEvery is between two looks at least: one that comes early is followed by
	// few.
	suspectEvery = 10 * time.Millisecond
)

// runSuspect has followers look at their clocks when it is time to. By itself raft
// looks at random moments, each a heartbeat timeout or two after the one before,
// and all voters must have looked until one is elected: two to three times as late
// as they might know.
//
// Open starts it, Close stops and waits for it.
func (n *Node) runSuspect() {
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
		due.Reset(max(next, suspectEvery))
	}
}
