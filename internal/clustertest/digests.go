package clustertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/client"
)

// watchEvery is how often digests are compared: several times in the least fault.
const watchEvery = 250 * time.Millisecond

// Digests collects the states that replicas report, and compares those of one group at one
// index, even if they were reported at different times.
type Digests struct {
	t       testing.TB
	cluster *Cluster
	stop    context.CancelFunc
	watcher sync.WaitGroup

	mu struct {
		sync.Mutex
		seen    map[place]sighting
		matched int // that another replica had shown before
		wrong   []string
	}
}

// place is a point in a group's log.
type place struct {
	group uint32
	index uint64
}

type sighting struct{ node, digest string }

// WatchDigests starts to poll all nodes; Check stops that.
func (c *Cluster) WatchDigests() *Digests {
	c.t.Helper()
	d := &Digests{t: c.t, cluster: c}
	d.mu.seen = map[place]sighting{}
	ctx, cancel := context.WithCancel(c.t.Context())
	d.stop = cancel
	c.t.Cleanup(func() { cancel(); d.watcher.Wait() })
	d.watcher.Go(func() { d.run(ctx) })
	return d
}

func (d *Digests) run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		var asked sync.WaitGroup
		for _, n := range d.cluster.Nodes() {
			asked.Go(func() {
				if s, err := n.status(ctx); err == nil {
					d.note(n.Name, s.Groups)
				}
			})
		}
		asked.Wait()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// note compares the report of one node with all earlier ones.
func (d *Digests) note(node string, groups []client.Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range groups {
		at := place{g.ID, g.AppliedIndex}
		before, known := d.mu.seen[at]
		switch {
		case !known:
			d.mu.seen[at] = sighting{node, g.Digest}
		case before.digest != g.Digest:
			d.mu.wrong = append(d.mu.wrong, fmt.Sprintf("group %d at index %d: digest %s at %s, %s at %s",
				g.ID, g.AppliedIndex, before.digest, before.node, g.Digest, node))
		case before.node != node:
			d.mu.matched++
		}
	}
}

// Check fails the test if replicas ever differed.
func (d *Digests) Check() {
	d.t.Helper()
	d.stop()
	d.watcher.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, wrong := range d.mu.wrong {
		d.t.Error(wrong)
	}
	if d.mu.matched == 0 {
		d.t.Error("no two replicas were ever seen at one index")
	}
	d.t.Logf("digests: %d places seen, %d by a second replica", len(d.mu.seen), d.mu.matched)
}

// AwaitAgreement waits until all replicas of each group are at one index and have one
// digest, and returns how long that took. There must be no writes meanwhile.
func (c *Cluster) AwaitAgreement(timeout time.Duration, nodes ...*Node) time.Duration {
	c.t.Helper()
	return c.await(timeout, func() string {
		v := look(nodes)
		for _, n := range nodes {
			if _, answers := v.status[n]; !answers {
				return n.Name + " does not say what it knows"
			}
		}
		for id, replicas := range v.replicas {
			var first *Node
			for n, g := range replicas {
				if first == nil {
					first = n
				}
				if of := replicas[first]; of.AppliedIndex != g.AppliedIndex || of.Digest != g.Digest {
					return fmt.Sprintf("group %d: %s is at index %d with digest %s, %s at %d with %s",
						id, first.Name, of.AppliedIndex, of.Digest, n.Name, g.AppliedIndex, g.Digest)
				}
			}
		}
		return ""
	})
}
