package e2e

import (
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	// readersAtOnce is how many reads wait in a node's sockets when it resumes.
	readersAtOnce = 16
	// restBeforeResume is the time between sending reads to a paused node and resuming it. It is
	// long enough for all these reads to arrive in the node's sockets.
	restBeforeResume = 300 * time.Millisecond
)

// TestClusterLeaderPaused pauses the node that leads most shards until others lead them, and
// resumes it. The node does not know how long it was paused, and first handles the reads that wait
// in its sockets. Then
//
//  1. at no node does a linearizable read miss a write that was acknowledged before the read, or a
//     bounded read miss a write from before its bound;
//  2. each count is the sum of the answered writes;
//  3. replicas never differed at one index, and soon become equal.
func TestClusterLeaderPaused(t *testing.T) {
	long(t)
	beside(t)
	pauses := short([]time.Duration{4 * time.Second}, []time.Duration{5 * time.Second, 2 * time.Second, 5 * time.Second, 60 * time.Second})
	for _, store := range stores("shared") {
		t.Run(store, func(t *testing.T) {
			c := proctest.NewCluster(t, bin, proctest.Options{LogStore: store})
			load := faultLoad(c)
			for _, pause := range pauses {
				victim, led := c.LeaderOfMost()
				others := c.Others(victim)
				reads := c.StartStaleReads(others...)
				began := time.Now()
				victim.Pause()
				resumed := c.WritesResume(began, led, others...)
				time.Sleep(time.Until(began.Add(pause - restBeforeResume)))
				atOnce := readAtOnce(t, load.History, victim, led)
				time.Sleep(time.Until(began.Add(pause)))
				victim.Resume()
				atOnce.Wait()
				readAtOnce(t, load.History, victim, led).Wait()
				reads.Check()
				t.Logf("%s paused for %v, shards %v: writes resume after %v", victim.Name, pause, led, resumed)
				c.AwaitReady(victim)
			}
			took := load.End(c.Nodes()...)
			t.Logf("all replicas alike %v after the load; load: %v", took, load.Between(time.Time{}, time.Now()))
		})
	}
}

// readAtOnce starts readersAtOnce reads of the shards' counts at one node.
func readAtOnce(t *testing.T, history *proctest.History, node *proctest.Member, shards []int) *sync.WaitGroup {
	t.Helper()
	var readers sync.WaitGroup
	for reader := range readersAtOnce {
		readers.Go(func() {
			consistency := [...]string{"linearizable", "linearizable", "linearizable", "bounded"}[reader%4]
			if err := history.Read(node, shards[reader%len(shards)], consistency); err != nil {
				t.Error(err)
			}
		})
	}
	return &readers
}
