package counters

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

const (
	coldParent  = 5 // group of the shard that splits into three; its children have the next numbers
	coldParts   = 3
	coldAttempt = 3
)

// coldNode is a node with replicas of a shard with rows on disk, and of the shards that its parts become. counts has what
// the rows must be.
type coldNode struct {
	t         testing.TB
	r         *rand.Rand
	hash      bool
	fs        *vfs.MemFS
	store     *cold.Store
	parking   *raftfsm.Parking
	logs      map[uint32][][]byte // by group
	replicas  map[uint32]*Machine
	snapshots map[uint32][]namedSnapshot // the last two of each group
	counts    map[uint64]int64           // by key
	made      int
	left      bool // the parent's replica has left the node
}

type namedSnapshot struct {
	name   string
	stream []byte
}

func (n *coldNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// routes returns the route of a group before and after the split.
func (n *coldNode) routes(group uint32) (first, later codec.Route) {
	later = codec.Route{Modulus: coldParts, Residue: group - coldParent}
	if group == coldParent {
		return codec.Whole, later
	}
	return later, later
}

func (n *coldNode) by() raftfsm.Partition {
	by := raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: coldParts}
	if n.hash {
		by.Divisor = 0
	}
	return by
}

func (n *coldNode) openStore() {
	var err error
	n.store, err = cold.Open(cold.Config{Dir: "cold", FS: n.fs, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { n.t.Error(err) }})
	n.must(err)
}

// open opens a replica from its newest snapshot and its log, as after a start.
func (n *coldNode) open(group uint32) *Machine {
	n.t.Helper()
	rows, err := n.store.Group(group)
	n.must(err)
	c := New(raftfsm.Places{Cold: rows})
	first, _ := n.routes(group)
	c.SetRoute(first)
	c.SetGrowth(raftfsm.Growth{Parking: n.parking, Unborn: group != coldParent, NewPart: func() raftfsm.Machine { return New(raftfsm.Places{}) }})
	if all := n.snapshots[group]; len(all) > 0 {
		n.must(rafttest.Restore(c, all[len(all)-1].stream))
	}
	n.replicas[group] = c
	n.sweep(group)
	for log := n.logs[group]; c.Applied() < uint64(len(log)); {
		if err, failed := c.Apply(rafttest.Next(c, log[c.Applied()])).(error); failed {
			n.t.Fatalf("group %d, entry %d: %v", group, c.Applied()+1, err)
		}
	}
	if c.Stuck() != nil {
		n.t.Fatal(c.Stuck())
	}
	return c
}

// crash opens all replicas again. Some unsynced data is lost.
func (n *coldNode) crash() {
	n.t.Helper()
	left := n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: n.r})
	n.must(n.store.Close())
	n.fs, n.parking = left, new(raftfsm.Parking)
	n.openStore()
	groups := slices.Sorted(maps.Keys(n.replicas))
	if len(n.snapshots[coldParent+1])*len(n.snapshots[coldParent+2]) > 0 { // then no child needs the parent
		slices.Reverse(groups)
	}
	for _, group := range groups {
		n.open(group)
	}
}

func (n *coldNode) apply(group uint32, entry []byte) {
	n.t.Helper()
	n.logs[group] = append(n.logs[group], entry)
	c := n.replicas[group]
	if err, failed := c.Apply(rafttest.Next(c, entry)).(error); failed {
		n.t.Fatalf("group %d: %v", group, err)
	}
}

// groupOf returns the group that has a key now.
func (n *coldNode) groupOf(key uint64) uint32 {
	if len(n.replicas) == 1 && !n.left {
		return coldParent
	}
	return coldParent + uint32(n.by().Of(key))
}

// write adds to rows, and deletes some.
func (n *coldNode) write(keys []uint64) {
	n.t.Helper()
	of := map[uint32]Ops{}
	for _, key := range keys {
		group := n.groupOf(key)
		if n.replicas[group] == nil {
			continue
		}
		if op := add(key, uint8(key%5), 1+n.r.Int64N(9)); n.r.IntN(5) > 0 {
			of[group] = append(of[group], op)
			n.counts[key] += op.Cells[0].Value
		} else {
			of[group] = append(of[group], engine.Op{ID: key, Kind: engine.OpDelete})
			delete(n.counts, key)
		}
	}
	for group, ops := range of {
		var w raftfsm.RequestWriter
		w.Reset(nil, n.replicas[group].Route(), &dedup.RequestID{})
		for _, op := range ops {
			Ops{op}.AppendTo(&w, op.ID, 0)
		}
		n.apply(group, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindCounters, 0), w.Section()...)))
	}
}

func (n *coldNode) sweep(group uint32) {
	n.t.Helper()
	rows, err := n.store.Group(group)
	n.must(err)
	n.must(rows.Sweep(func() (names []string, _ error) {
		for _, s := range n.snapshots[group] {
			names = append(names, s.name)
		}
		return names, nil
	}))
}

func (n *coldNode) snapshot(group uint32) {
	n.t.Helper()
	c := n.replicas[group]
	captured, err := c.Snapshot()
	if errors.Is(err, raftfsm.ErrNotNow) {
		return
	}
	n.must(err)
	n.made++
	sink := &namedSink{name: fmt.Sprintf("%06d", n.made/2)} // groups may have snapshots of the same name
	n.made++
	n.must(captured.Persist(sink))
	captured.Release()
	all := append(n.snapshots[group], namedSnapshot{sink.name, sink.Bytes()})
	n.snapshots[group] = all[max(0, len(all)-2):]
	n.sweep(group)
}

// check compares all replicas with counts, and what they send to other nodes with them.
func (n *coldNode) check() {
	n.t.Helper()
	rows := map[uint64]int64{}
	for group, c := range n.replicas {
		n.must(rafttest.CheckTable(c.Table()))
		n.must(c.Table().Scan(0, engine.ColumnsMax, func(p *engine.Page) bool {
			for i, key := range p.IDs {
				if n.groupOf(key) != group {
					n.t.Fatalf("group %d has key %d", group, key)
				}
				rows[key] = p.Row(i)[key%5]
			}
			return true
		}))
		if s := n.snapshots[group]; len(s) > 0 {
			n.sent(group, s[len(s)-1].stream, c)
		}
	}
	for key, count := range n.counts {
		if n.replicas[n.groupOf(key)] != nil && rows[key] != count {
			n.t.Fatalf("key %d has %d, want %d", key, rows[key], count)
		}
		delete(rows, key)
	}
	if len(rows) > 0 {
		n.t.Fatalf("%d rows too many: %v", len(rows), rows)
	}
}

// sent opens a snapshot on another node, and applies the rest of the log there.
func (n *coldNode) sent(group uint32, stored []byte, want *Machine) {
	n.t.Helper()
	rows, err := n.store.Group(group)
	n.must(err)
	c, err := CarryBlocks(bytes.NewReader(stored), rows, nil)
	n.must(err)
	stream, err := io.ReadAll(c)
	n.must(err)
	c.Close()
	if size := int64(len(stored)) + c.Added(); int64(len(stream)) != size {
		n.t.Fatalf("a stream of %d bytes, said to be of %d", len(stream), size)
	}
	_, later := n.routes(group)
	visited := 0
	facts, err := self.VisitSnapshot(bytes.NewReader(stream), codec.KindCounters, codec.Whole,
		raftfsm.SnapshotVisitor{Rows: func(_ raftfsm.Table, p *engine.Page) error { visited += len(p.IDs); return nil }})
	if first, _ := n.routes(group); first == codec.Whole && (err != nil || uint64(visited) != facts.Rows) {
		n.t.Fatalf("%+v, %d rows, %v", facts, visited, err)
	}
	other := newColdReplica(n.t, "other")
	first, _ := n.routes(group)
	other.fsm.SetRoute(first)
	other.fsm.SetGrowth(raftfsm.Growth{Parking: new(raftfsm.Parking), NewPart: func() raftfsm.Machine { return New(raftfsm.Places{}) }})
	n.must(rafttest.Restore(other.fsm, stream))
	for log := n.logs[group]; other.fsm.Applied() < uint64(len(log)); {
		if err, failed := other.fsm.Apply(rafttest.Next(other.fsm, log[other.fsm.Applied()])).(error); failed {
			n.t.Fatal(err)
		}
	}
	if got := other.fsm.State(); got.Digest != want.State().Digest || got.Rows != want.State().Rows || want.Routed(later) != other.fsm.Routed(later) {
		n.t.Fatalf("group %d elsewhere: %+v, want %+v", group, got, want.State())
	}
	if other.fsm.Shares() && !want.Routed(later) {
		n.t.Fatal("another node has shares")
	}
}

func (n *coldNode) freeze(group uint32) {
	n.t.Helper()
	for range 2 {
		_, err := freezeAll(n.replicas[group], func(uint64, uint64) bool { return true })
		n.must(err)
	}
}

// split applies the split and has the children adopt their parts. It crashes at some moments.
func (n *coldNode) split() {
	n.t.Helper()
	e := raftfsm.SplitEntry{From: codec.Whole, Attempt: coldAttempt, Group: coldParent, Divisor: n.by().Divisor, Children: []uint32{coldParent + 1, coldParent + 2}}
	n.apply(coldParent, e.Entry(codec.KindCounters))
	if n.r.IntN(2) == 0 {
		n.crash()
	}
	for _, group := range e.Children {
		n.open(group)
		n.apply(group, n.parking.Of(group).Entry(codec.KindCounters))
	}
	if all := n.parking.All(); len(all) > 0 {
		n.t.Fatalf("%d parts are still parked", len(all))
	}
}

// A shard with rows on disk splits, and its parts share the generations. At random moments before and after, the node
// writes, moves rows to disk, parts some rows, takes snapshots, sends them to other nodes, and crashes. All rows are always
// there. In the end the parent's replica leaves the node, and the parts share nothing any more.
func TestSplitOfRowsOnDisk(t *testing.T) {
	t.Parallel()
	worlds := uint64(12)
	if testing.Short() {
		worlds = 4
	}
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { t.Parallel(); splitRowsOnDisk(t, seed) })
	}
}

func splitRowsOnDisk(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 17))
	n := &coldNode{
		t: t, r: r, hash: seed%2 == 1, fs: vfs.NewCrashableMem(), parking: new(raftfsm.Parking), logs: map[uint32][][]byte{},
		replicas: map[uint32]*Machine{}, snapshots: map[uint32][]namedSnapshot{}, counts: map[uint64]int64{},
	}
	n.openStore()
	defer func() { n.must(n.store.Close()) }()
	n.open(coldParent)
	keys := make([]uint64, 45_000)
	for i := range keys {
		keys[i] = uint64(i)<<10 | wire.Mix(uint64(i))%1024
	}
	n.write(keys[:40_000])
	some := func() []uint64 {
		from := r.IntN(len(keys))
		return keys[from:min(len(keys), from+1+r.IntN(3000))]
	}
	n.freeze(coldParent)
	if n.replicas[coldParent].State().ColdRows < 10_000 {
		t.Fatalf("%+v", n.replicas[coldParent].State())
	}
	for range 12 {
		switch r.IntN(6) {
		case 0:
			n.write(some())
		case 1:
			n.freeze(coldParent)
		case 2, 3:
			_, err := n.replicas[coldParent].Part(n.by())
			n.must(err)
		case 4:
			n.snapshot(coldParent)
		case 5:
			n.crash()
		}
	}
	n.check()
	n.split()
	n.check()
	children := []uint32{coldParent + 1, coldParent + 2}
	begun := false
	for range 14 {
		group := coldParent + uint32(r.IntN(coldParts))
		switch r.IntN(6) {
		case 0, 1:
			n.write(some())
		case 2:
			if begun || group != coldParent { // until then, the parent's tiering pauses
				n.freeze(group)
			}
		case 3, 4:
			n.snapshot(group)
			if !begun && len(n.snapshots[children[0]])*len(n.snapshots[children[1]]) > 0 {
				n.replicas[coldParent].Begun(coldAttempt)
				begun = true
			}
		case 5:
			n.crash()
			if begun {
				n.replicas[coldParent].Begun(coldAttempt)
			}
		}
	}
	n.check()
	n.replicas[coldParent].Begun(coldAttempt)
	for _, group := range children {
		n.snapshot(group)
	}
	n.snapshot(coldParent)
	n.replicas[coldParent].Close()
	delete(n.replicas, coldParent)
	delete(n.snapshots, coldParent)
	n.left = true
	n.must(n.store.Drop(coldParent))
	n.check()
	n.crash()
	n.check()
	for _, group := range children {
		c := n.replicas[group]
		for range 50 {
			n.freeze(group)
		}
		if c.Shares() {
			t.Fatalf("group %d still shares generations", group)
		}
		for range 2 {
			n.write(some())
			n.snapshot(group)
		}
	}
	n.check()
	rows, err := n.store.Group(coldParent)
	n.must(err)
	if names := rows.Names(); len(names) > 0 {
		t.Errorf("of the parent there are %v", names)
	}
}
