package proctest

import (
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/client/admin"
)

// watchEvery is the interval between two polls of digests. The shortest fault lasts several
// intervals.
const watchEvery = 250 * time.Millisecond

// digests collects the digests that replicas report. It compares all digests of the same group at
// the same index, even if they were reported at different times.
type digests struct {
	*crew
	cluster *Cluster

	mu struct {
		sync.Mutex
		seen    map[place]sighting
		matched int // number of reports that equal an earlier report of another replica
		wrong   []string
	}
}

// place is a point in a group's log.
type place struct {
	group uint32
	index uint64
}

type sighting struct{ node, digest string }

// watchDigests starts to poll the digests of all nodes, until check.
func (c *Cluster) watchDigests() *digests {
	d := &digests{crew: newCrew(c.t), cluster: c}
	d.mu.seen = map[place]sighting{}
	d.work(d.run)
	return d
}

func (d *digests) run() error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for d.calm.Err() == nil {
		var asked sync.WaitGroup
		for _, n := range d.cluster.Nodes() {
			asked.Go(func() {
				if s, err := n.status(d.calm); err == nil {
					d.note(n.Name, s.Groups)
				}
			})
		}
		asked.Wait()
		select {
		case <-d.calm.Done():
		case <-tick.C:
		}
	}
	return nil
}

// note compares the report of one node with all earlier ones.
func (d *digests) note(node string, groups []admin.Group) {
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

// check fails the test if replicas ever differed, or if no two replicas were seen at the same
// index.
func (d *digests) check() {
	d.t.Helper()
	d.Stop()
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

// AwaitAgreement waits until all replicas of each group have the same index and digest, and returns
// how long that took. The test must not write in the meantime.
func (c *Cluster) AwaitAgreement(nodes ...*Member) time.Duration {
	c.t.Helper()
	return c.await(func() string {
		v := look(nodes)
		for _, n := range nodes {
			if _, answers := v.status[n]; !answers {
				return n.Name + " does not say what it knows"
			}
		}
		for id, replicas := range v.replicas {
			var first *Member
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
