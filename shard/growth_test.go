package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
)

// growingCluster is a cluster of three nodes with a keyspace that grows from one shard to three, under writers.
type growingCluster struct {
	*testing.T
	nodes [3]atomic.Pointer[Node]
	cfgs  [3]Config
	name  string
	acked []atomic.Int64 // by id: increments that were acknowledged
	tried []atomic.Int64 // by id: increments that may have been applied
}

const growingIDs = 30

func newGrowingCluster(t *testing.T) *growingCluster {
	t.Helper()
	c := &growingCluster{T: t, name: "songs", acked: make([]atomic.Int64, growingIDs), tried: make([]atomic.Int64, growingIDs)}
	var all []*Node
	for i := range c.nodes {
		cfg := memberConfig(t, t.TempDir(), i+1, len(c.nodes))
		all = append(all, joinAs(t, all, cfg))
	}
	for i, n := range all {
		c.nodes[i].Store(n)
		c.cfgs[i] = n.cfg
		c.cfgs[i].ClusterAddr = n.mux.Addr().String()
	}
	mustMake(t, c.node(0), c.name, 1, "plays")
	return c
}

func (c *growingCluster) node(i int) *Node { return c.nodes[i].Load() }

func (c *growingCluster) keyspace() catalog.Keyspace { return c.node(0).Catalog().Keyspaces[c.name] }

// grow makes the catalog intend the growth.
func (c *growingCluster) grow() {
	c.Helper()
	mustGrow(c.T, c.node(0), c.name)
}

// mustGrow makes the catalog intend the growth of a keyspace from one shard to three.
func mustGrow(t *testing.T, n *Node, keyspace string) {
	t.Helper()
	k := n.Catalog().Keyspaces[keyspace]
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	mustDo(t, n.catalogClient.MustChange(ctx, &catalog.Command{Grow: &catalog.GrowEntry{Keyspace: keyspace, FirstGroup: k.FirstGroup(), From: 1, To: 3}}))
}

func (c *growingCluster) grown() {
	c.Helper()
	eventually(c, "the keyspace has grown", func() bool {
		k := c.keyspace()
		return k.Growth == nil && len(k.Groups) == 3
	})
}

// restart closes a node, as a process that ends, and opens it again.
func (c *growingCluster) restart(i int) {
	c.Helper()
	c.stop(i)
	c.start(i)
}

func (c *growingCluster) stop(i int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
	defer cancel()
	mustDo(c, c.node(i).Close(ctx))
}

func (c *growingCluster) start(i int) {
	c.Helper()
	cfg := c.cfgs[i]
	cfg.Metrics, cfg.Bootstrap = prometheus.NewRegistry(), false
	n, err := Open(cfg)
	mustDo(c, err)
	c.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
		defer cancel()
		mustDo(c, n.Close(ctx))
	})
	c.nodes[i].Store(n)
}

// write writes through all nodes until stop closes: with keys, with producers, and plainly.
func (c *growingCluster) write(stop <-chan struct{}) *sync.WaitGroup {
	var writers sync.WaitGroup
	for i := range c.nodes {
		for kind := range 3 {
			writers.Go(func() {
				for sequence := uint64(1); ; sequence++ {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
					c.writeOnce(i, kind, sequence)
				}
			})
		}
	}
	return &writers
}

// writeOnce writes to two ids, in most cases of two shards.
func (c *growingCluster) writeOnce(i, kind int, sequence uint64) {
	n := c.node(i)
	ks := n.Keyspace(c.name)
	ids := []uint64{(sequence*2 + uint64(i)) % growingIDs, (sequence*7 + 1 + uint64(kind)) % growingIDs}
	if ids[0] == ids[1] {
		ids = ids[:1]
	}
	w := &Write{Deadline: soon()}
	switch kind {
	case 1:
		w.ID = dedup.ByKey(fmt.Appendf(nil, "key-%d-%d", i, sequence))
	case 2:
		w.ID = dedup.ByProducer(fmt.Appendf(nil, "producer-%d", i), sequence)
	}
	for _, id := range ids {
		w.Ops = append(rowOps(w), addTo(id, 0, 1))
		c.tried[id].Add(1)
	}
	err := n.Write(ks, w)
	if err != nil && kind > 0 { // a repeat decides
		w.Deadline = soon()
		err = n.Write(ks, w)
	}
	if err == nil {
		for _, id := range ids {
			c.acked[id].Add(1)
		}
	}
}

// read reads through all nodes until stop closes. Each read has all writes that were acknowledged before it.
func (c *growingCluster) read(stop <-chan struct{}) *sync.WaitGroup {
	var readers sync.WaitGroup
	for i := range c.nodes {
		readers.Go(func() {
			for round := uint64(0); ; round++ {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				c.readOnce(i, round)
				if round%5 == 0 {
					c.scanOnce(i)
				}
			}
		})
	}
	return &readers
}

func (c *growingCluster) readOnce(i int, round uint64) {
	ids, least, rows := []uint64{}, []int64{}, make([]int64, 4)
	for k := range 1 + round%4 {
		id := (round + 5*k) % growingIDs
		ids, least = append(ids, id), append(least, c.acked[id].Load())
	}
	n := c.node(i)
	err := n.Get(n.Keyspace(c.name), ids, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, rows[:len(ids)])
	if err != nil {
		return // check reads all rows again
	}
	for k, id := range ids {
		if most := c.tried[id].Load(); rows[k] < least[k] || rows[k] > most {
			c.Errorf("%s: id %d has %d, %d were acknowledged before and %d tried", n.cfg.NodeName, id, rows[k], least[k], most)
		}
	}
}

// scanOnce reads all rows. Each id is there once, with a count between those of the least and the most.
func (c *growingCluster) scanOnce(i int) {
	n, least := c.node(i), make([]int64, growingIDs)
	for id := range least {
		least[id] = c.acked[id].Load()
	}
	page, err := n.Scan(n.Keyspace(c.name), 0, false, growingIDs, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()})
	if err != nil {
		return
	}
	seen := make([]int64, growingIDs)
	for k, id := range page.IDs {
		if k > 0 && page.IDs[k-1] >= id {
			c.Errorf("%s: id %d follows id %d", n.cfg.NodeName, id, page.IDs[k-1])
		}
		seen[id] = page.Rows[k]
	}
	for id, got := range seen {
		if most := c.tried[id].Load(); got < least[id] || got > most {
			c.Errorf("%s: a scan has %d of id %d, %d were acknowledged before and %d tried", n.cfg.NodeName, got, id, least[id], most)
		}
	}
}

// check compares all rows with what was acknowledged and tried, and the replicas with each other.
func (c *growingCluster) check() {
	c.Helper()
	ids, rows := make([]uint64, growingIDs), make([]int64, growingIDs)
	for id := range ids {
		ids[id] = uint64(id)
	}
	for i := range c.nodes {
		n := c.node(i)
		eventually(c, n.cfg.NodeName+" reads all rows", func() bool {
			return n.Get(n.Keyspace(c.name), ids, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, rows) == nil
		})
		for id, got := range rows {
			if acked, tried := c.acked[id].Load(), c.tried[id].Load(); got < acked || got > tried {
				c.Errorf("%s: id %d has %d, %d were acknowledged and %d tried", n.cfg.NodeName, id, got, acked, tried)
			}
		}
	}
	eventually(c, "digests agree", func() bool { return digestsAgree([]*Node{c.node(0), c.node(1), c.node(2)}) })
}

// A keyspace grows from one shard to three under writers and readers through all nodes.
func TestGrowthUnderWriters(t *testing.T) {
	t.Parallel()
	c := newGrowingCluster(t)
	stop := make(chan struct{})
	writers, readers := c.write(stop), c.read(stop)
	eventually(t, "rows are written", func() bool { return c.acked[0].Load() > 0 })
	c.grow()
	c.grown()
	before := c.acked[1].Load()
	eventually(t, "rows are written after the growth", func() bool { return c.acked[1].Load() > before })
	close(stop)
	writers.Wait()
	readers.Wait()
	c.check()
	for i := range c.nodes { // after the growth, only a drop of the keyspace drops a part
		eventually(t, "the node's catalog shows that the growth has ended", func() bool {
			for _, group := range c.keyspace().Groups {
				if g := c.node(i).registry.shardOf(group); g == nil || !errors.Is(g.orAbandoned(errs.ErrUnknownKeyspace), errs.ErrUnknownKeyspace) {
					return false
				}
			}
			return true
		})
	}
	for id := range growingIDs {
		if acked, tried := c.acked[id].Load(), c.tried[id].Load(); acked != tried {
			t.Logf("id %d: %d of %d were acknowledged", id, acked, tried)
		}
	}
}

// A node is closed and opened again after each step of a growth, under writers.
func TestRestartsDuringAGrowth(t *testing.T) {
	for name, reached := range map[string]func(c *growingCluster) bool{
		"after commit": func(c *growingCluster) bool { return c.attempt().Number > 0 },
		"after Split":  func(c *growingCluster) bool { return c.anySplit() },
		"after Adopt": func(c *growingCluster) bool {
			children := c.attempt().Children
			return len(children) > 0 && !c.unborn(children[0])
		},
		"after the growth": func(c *growingCluster) bool { return len(c.keyspace().Groups) == 3 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newGrowingCluster(t)
			stop := make(chan struct{})
			writers := c.write(stop)
			eventually(t, "rows are written", func() bool { return c.acked[0].Load() > 0 })
			c.grow()
			eventually(t, "the growth is "+name, func() bool { return reached(c) || len(c.keyspace().Groups) > 1 })
			for i := range c.nodes {
				c.restart(i)
			}
			c.grown()
			close(stop)
			writers.Wait()
			c.check()
		})
	}
}

func (c *growingCluster) attempt() (a catalog.Attempt) {
	k := c.keyspace()
	if k.Growth != nil {
		a = k.Growth.Attempts[k.FirstGroup()]
	}
	return a
}

// local returns the replicas of a group that are open.
func (c *growingCluster) local(group uint32) (all []*localReplica) {
	for i := range c.nodes {
		if r := c.node(i).registry.localOf(group); r != nil {
			all = append(all, r)
		}
	}
	return all
}

func (c *growingCluster) anySplit() bool {
	first := c.keyspace()
	return slices.ContainsFunc(c.local(first.FirstGroup()), func(r *localReplica) bool { return r.fsm.Route().Modulus == 3 })
}

// unborn reports whether all replicas of a group are unborn.
func (c *growingCluster) unborn(group uint32) bool {
	return !slices.ContainsFunc(c.local(group), func(r *localReplica) bool { return !r.group.Growth.Unborn() })
}

// While the disks of all nodes are full, no replica of the parent is ready. So its leader abandons each attempt, and the
// children are deleted. Once the disks have room, a later attempt succeeds.
func TestAbandonedAttempt(t *testing.T) {
	t.Parallel()
	c := newGrowingCluster(t)
	var full atomic.Bool
	full.Store(true)
	for i := range c.nodes {
		n := c.node(i)
		n.growth.Patience.Store(int64(300 * time.Millisecond))
		n.space.Free = func() (uint64, error) {
			if full.Load() {
				return 0, nil
			}
			return 1 << 30, nil
		}
	}
	stop := make(chan struct{})
	writers, readers := c.write(stop), c.read(stop)
	eventually(t, "rows are written", func() bool { return c.acked[0].Load() > 0 })
	c.grow()
	eventually(t, "an attempt is under way", func() bool { return c.attempt().Number > 0 })
	first := c.attempt()
	eventually(t, "its children are open", func() bool { return len(c.local(first.Children[0])) == 3 })
	eventually(t, "the attempt is abandoned", func() bool { return c.attempt().Number != first.Number })
	for _, child := range first.Children {
		eventually(t, "the child is deleted", func() bool {
			for i := range c.nodes {
				if n := c.node(i); n.registry.localOf(child) != nil || !isDeleted(t, n, child, 1) {
					return false
				}
			}
			return true
		})
	}
	k := c.keyspace()
	for _, r := range c.local(k.FirstGroup()) {
		if got := r.fsm.Route().Modulus; got != 1 {
			t.Errorf("the parent has modulus %d", got)
		}
	}
	before := c.acked[1].Load()
	eventually(t, "rows are written after the attempt", func() bool { return c.acked[1].Load() > before })
	full.Store(false)
	c.grown()
	close(stop)
	writers.Wait()
	readers.Wait()
	for _, group := range c.keyspace().Groups {
		if slices.Contains(first.Children, group) {
			t.Errorf("group %d of the abandoned attempt has a shard", group)
		}
	}
	c.check()
}

// A child whose part is gone, or differs from Adopt, has no snapshot, and no other replica can repair it, because the
// disks are full. So the node opens the parent again, which parks the part again.
func TestParentMakesAPartAgain(t *testing.T) {
	t.Parallel()
	for name, differs := range map[string]bool{"the part was taken": false, "the part differs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := openNode(t, t.TempDir(), nil)
			var full atomic.Bool
			n.space.Free = func() (uint64, error) {
				if full.Load() {
					return 0, nil
				}
				return 1 << 30, nil
			}
			mustMake(t, n, "songs", 1, "plays")
			ks := n.Keyspace("songs")
			for id := range uint64(growingIDs) {
				mustWrite(t, n, ks, addTo(id, 0, int64(id)+1))
			}
			mustGrow(t, n, "songs")
			eventually(t, "disk space is kept for the growth", func() bool { return n.space.Kept() > 0 })
			full.Store(true)
			children := n.Catalog().Keyspaces["songs"].Growth.Attempts[ks.FirstGroup].Children
			born := func() bool {
				for _, child := range children {
					if r := n.registry.localOf(child); r == nil || r.group.Growth.Unborn() {
						return false
					}
				}
				return true
			}
			eventually(t, "all children have their parts", born)
			parent, child := n.registry.shardOf(ks.FirstGroup), n.registry.shardOf(children[0])
			if child.replica.Load().group.Snapshots().NewestIndex() > 0 {
				t.Fatal("the child has a snapshot")
			}
			if differs {
				parking := n.growth.MachineConfig(child.kind, parent.number, nil).Parking
				mustDo(t, n.reopen(parent, parent.replica.Load()))
				eventually(t, "the part is parked again", func() bool { return parking.Of(child.number) != nil })
				parking.Of(child.number).Digest++
			}
			before := parent.replica.Load()
			mustDo(t, n.reopen(child, child.replica.Load()))
			eventually(t, "the child has its part", born)
			if parent.replica.Load() == before {
				t.Error("the parent was not opened again, so this test finds nothing")
			}
			full.Store(false)
			eventually(t, "the keyspace has grown", func() bool { return n.Catalog().Keyspaces["songs"].Growth == nil })
			for id := range uint64(growingIDs) {
				if got := mustGet(t, n, n.Keyspace("songs"), ReadOptions{}, id); got[0] != int64(id)+1 {
					t.Errorf("id %d has %d", id, got[0])
				}
			}
		})
	}
}

// A replica whose rows are parted in another way, and too many to be copied, is stuck at Split. The node opens it
// again, which makes its tables whole.
func TestSoleVoterIsNotStuckAtSplit(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), nil)
	mustMake(t, n, "songs", 1, "plays")
	ks := n.Keyspace("songs")
	const page = 50_000
	for first := uint64(0); first <= raftfsm.SplitRowsMax; first += page {
		var ops counters.Ops
		for id := first; id < first+page; id++ {
			ops = append(ops, addTo(id, 0, 1))
		}
		mustWrite(t, n, ks, ops...)
	}
	parent := n.registry.shardOf(ks.FirstGroup)
	before := parent.replica.Load()
	by := raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 2}
	if more, err := before.fsm.Part(by); !more || err != nil {
		t.Fatal(more, err)
	}
	term := before.group.ReadyTerm()
	e := raftfsm.SplitEntry{From: codec.Whole, Attempt: 900, Term: term, Group: parent.number, Divisor: 1, Children: []uint32{901, 902}}
	proposed := before.group.Growth.Propose(e.Entry(parent.kind))
	if route := before.fsm.Route(); route != codec.Whole || !errors.Is(proposed, raftfsm.ErrTooLarge) {
		t.Fatalf("the replica of %d rows copies them: %s, %v", before.fsm.State().Rows, route, proposed)
	}
	eventually(t, "the replica was opened again, and splits", func() bool {
		now := parent.replica.Load()
		return now != nil && now != before && now.fsm.Stuck() == nil && now.fsm.Route().Modulus == 3
	})
}
