package e2e

import (
	"testing"
	"time"

	"github.com/countd/countd/internal/clustertest"
)

// TestClusterRollingRestart stops and starts each node in its turn, as an operator
// does to upgrade, under writers whose clients wait for as long as the API does by
// default. Then
//
//  1. no request took longer than that: none failed;
//  2. each count is what the answered writes add up to, and one order explains all
//     other answers;
//  3. replicas never differed at one index, and are alike soon after.
func TestClusterRollingRestart(t *testing.T) {
	beside(t)
	rounds, quietFor := short(1, 3), short(time.Second, 10*time.Second)
	for _, store := range stores("boltdb") {
		t.Run(store, func(t *testing.T) {
			c := clustertest.New(t, bin, clustertest.Options{LogStore: store})
			load, history, digests := c.StartLoad(clustertest.LoadConfig{}), c.StartHistory(0), c.WatchDigests()
			quiet := time.Now()
			time.Sleep(quietFor)
			began := time.Now()
			for range rounds {
				for _, n := range c.Nodes() {
					stopping := time.Now()
					n.Stop()
					stopped := time.Now()
					n.Start()
					c.AwaitReady(n)
					t.Logf("%s stopped in %v, ready after %v", n.Name, stopped.Sub(stopping), time.Since(stopped))
				}
			}
			ended := time.Now()
			load.Stop()
			history.Stop()
			took := c.AwaitAgreement(agreeTimeout(), c.Nodes()...)
			load.Check(c.Nodes()...)
			history.Check()
			digests.Check()
			during := load.Between(began, ended)
			if during.Late > 0 {
				t.Errorf("%d requests took longer than %v", during.Late, clustertest.RequestDeadline)
			}
			t.Logf("all replicas alike %v after the load", took)
			t.Logf("quiet:  %v", load.Between(quiet, began))
			t.Logf("during: %v", during)
		})
	}
}

// TestClusterAllKilled kills all nodes at once, under writers, and starts them.
func TestClusterAllKilled(t *testing.T) {
	beside(t)
	rounds := short(1, 5)
	for _, store := range stores("shared") {
		t.Run(store, func(t *testing.T) {
			c := clustertest.New(t, bin, clustertest.Options{LogStore: store})
			load, history, digests := c.StartLoad(clustertest.LoadConfig{}), c.StartHistory(0), c.WatchDigests()
			for range rounds {
				time.Sleep(time.Second)
				began := time.Now()
				for _, n := range c.Nodes() {
					n.Kill()
				}
				for _, n := range c.Nodes() {
					n.Start()
				}
				c.AwaitReady(c.Nodes()...)
				t.Logf("ready %v after all were killed", time.Since(began))
			}
			load.Stop()
			history.Stop()
			c.AwaitAgreement(agreeTimeout(), c.Nodes()...)
			load.Check(c.Nodes()...)
			history.Check()
			digests.Check()
		})
	}
}
