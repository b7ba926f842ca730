package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// TestClusterRollingRestart stops and starts one node after the other, as an operator does for an
// upgrade, during writes. The clients wait for each answer as long as the API's default timeout.
// Then
//
//  1. no request fails, because none takes longer than that timeout;
//  2. each count is the sum of the answered writes, and one order explains all other answers;
//  3. replicas never differed at one index, and soon become equal.
func TestClusterRollingRestart(t *testing.T) {
	long(t)
	beside(t)
	rounds, quietFor := short(1, 3), short(time.Second, 10*time.Second)
	for _, store := range stores("boltdb") {
		t.Run(store, func(t *testing.T) {
			c := newCluster(t, proctest.Options{LogStore: store})
			load := faultLoad(c)
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
			took := load.End(c.Nodes()...)
			during := load.Between(began, ended)
			if during.Late > 0 {
				t.Errorf("%d requests took longer than %v", during.Late, proctest.RequestDeadline)
			}
			t.Logf("all replicas alike %v after the load", took)
			t.Logf("quiet:  %v", load.Between(quiet, began))
			t.Logf("during: %v", during)
			stopsSlowly(t, c.Nodes()[0])
		})
	}
}

// stopsSlowly stops a node that has a shutdown delay. During the delay, the node is not ready, but
// it still serves clients.
func stopsSlowly(t *testing.T, n *proctest.Member) {
	t.Helper()
	const delay = 2 * time.Second
	n.Stop()
	n.Env = append(n.Env, "COUNTD_SHUTDOWN_DELAY="+delay.String())
	n.StartReady()
	eventually(t, "the start is complete", func() bool { return strings.Contains(n.Log(), "msg=ready") })
	n.Signal(syscall.SIGTERM)
	began := time.Now()
	eventually(t, "the node that stops is not ready", func() bool {
		status, err := n.Call("GET", "/readyz", nil, nil)
		return err == nil && status == http.StatusServiceUnavailable
	})
	served := 0
	for {
		_, err := n.Call("POST", "/v1/counters/posts/incr", map[string]any{"ops": []any{map[string]any{"id": served, "add": map[string]int{"view": 1}}}}, nil)
		if err != nil { // the port is closed
			break
		}
		served++
	}
	if took := time.Since(began); took < delay {
		t.Errorf("a node with --shutdown-delay %v refused requests after %v", delay, took)
	}
	if code := n.Exited(); code != 0 || served == 0 {
		t.Errorf("the node ended with %d after %d writes", code, served)
	}
}

// TestClusterAllKilled kills all nodes at once, during writes, and starts them again.
func TestClusterAllKilled(t *testing.T) {
	long(t)
	beside(t)
	rounds := short(1, 5)
	for _, store := range stores("shared") {
		t.Run(store, func(t *testing.T) {
			c := proctest.NewCluster(t, bin, proctest.Options{LogStore: store})
			load := faultLoad(c)
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
			load.End(c.Nodes()...)
		})
	}
}
