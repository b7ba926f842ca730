package shard

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
)

// A toy kind, which keeps a maximum for each id. All of it is up to TestToyKind.

type toyKind struct{}

func init() { kinds.All = append(kinds.All, toyKind{}) }

func (toyKind) Number() codec.Kind     { return codec.KindTest }
func (toyKind) Traits() raftfsm.Traits { return raftfsm.Traits{} }
func (toyKind) New(raftfsm.Places) raftfsm.Machine {
	m := &toyMachine{}
	m.Init(codec.KindTest, func() raftfsm.Contents { return &toyContents{most: map[uint64]int64{}} }, func(c raftfsm.Contents) { m.current.Store(c.(*toyContents)) })
	return m
}
func (toyKind) Check(_ *dedup.RequestID, p []byte, _ raftfsm.Visitor) (int, bool, error) {
	ops, err := (&toyContents{}).Decode(nil, p, false)
	return ops, false, err
}
func (toyKind) Walk(_ *raftfsm.SnapshotVisitor, facts *raftfsm.SnapshotFacts) raftfsm.Walk {
	return func(_ *codec.StreamReader, _ byte, p []byte) error { facts.Rows = uint64(len(p) / 16); return nil }
}
func (toyKind) ParseQuery(byte, *wire.Reader) raftfsm.Query { return &toyQuery{} }

type toyMachine struct {
	raftfsm.Base
	current atomic.Pointer[toyContents]
}

func (m *toyMachine) Bytes() uint64         { return 0 }
func (m *toyMachine) SnapshotBytes() uint64 { return 0 }

type toyContents struct {
	raftfsm.InMemory
	mu   sync.Mutex
	most map[uint64]int64
	ops  []toyOp
}

func (c *toyContents) Begin() { c.ops = c.ops[:0] }
func (c *toyContents) Decode(_ *dedup.RequestID, p []byte, _ bool) (int, error) {
	return raftfsm.ParseOps(p, func(p []byte) ([]byte, error) {
		r := wire.Reader{Rest: p}
		c.ops = append(c.ops, toyOp{r.Fixed64(), int64(r.Fixed64())})
		return r.Rest, r.Err
	})
}
func (c *toyContents) Void(n int) { // an op of 0 changes nothing
	for i := range c.ops[len(c.ops)-n:] {
		c.ops[len(c.ops)-n+i].value = 0
	}
}
func (c *toyContents) Apply(_ int64, _ bool, r *raftfsm.Result) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, op := range c.ops {
		c.most[op.id] = max(c.most[op.id], op.value)
		copy(r.Rows[i*r.Width:], []int64{c.most[op.id]}[:min(1, r.Width)])
	}
	return nil
}
func (c *toyContents) Digest() (sum uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, most := range c.most {
		sum += id*31 + uint64(most)*7919
	}
	return sum
}
func (c *toyContents) Stats() engine.Stats { return engine.Stats{Rows: uint64(len(c.copied().most))} }
func (c *toyContents) copied() *toyContents {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &toyContents{most: maps.Clone(c.most)}
}
func (c *toyContents) Capture() raftfsm.Captured { return c.copied() }
func (c *toyContents) Write(w *codec.StreamWriter) error {
	return w.Section(codec.StreamBoard, func(b []byte) []byte {
		for _, id := range slices.Sorted(maps.Keys(c.most)) {
			b = toyOp{id, c.most[id]}.appendTo(b)
		}
		return b
	})
}
func (c *toyContents) Split(s *raftfsm.Split, parts []raftfsm.Contents) error {
	for id, most := range c.most {
		parts[s.PartOf(id)].(*toyContents).most[id] = most
	}
	return nil
}
func (c *toyContents) Rows() uint64 { return uint64(len(c.most)) }
func (c *toyContents) Release()     {}
func (c *toyContents) Load(_ *codec.StreamReader, _ byte, p []byte) error {
	_, err := c.Decode(nil, p, false)
	return cmp.Or(err, c.Apply(0, false, &raftfsm.Result{}))
}
func (c *toyContents) Loaded(codec.Totals) error { return nil }

type toyOp struct {
	id    uint64
	value int64
}

func (o toyOp) appendTo(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, o.id), uint64(o.value))
}

type toyOps []toyOp

func (o toyOps) Len() int         { return len(o) }
func (o toyOps) ID(op int) uint64 { return o[op].id }
func (o toyOps) Fits(kind codec.Kind, _ int) error {
	return raftfsm.FitsOnly(codec.KindTest, kind)
}
func (o toyOps) See(raftfsm.Visitor, uint64, int) error                                    { return nil }
func (o toyOps) Refusable(int, []int64, *raftfsm.Settings) (_ engine.Overflow, could bool) { return }
func (o toyOps) AppendTo(w *raftfsm.RequestWriter, key uint64, op int) {
	w.Put(toyOp{key, o[op].value}.appendTo(w.Buffer()), false)
}

type toyQuery struct {
	raftfsm.Defaults
	most []int64
}

func (q *toyQuery) Number() byte { return 0 }
func (q *toyQuery) Limits(keys int) raftfsm.Limits {
	return raftfsm.Limits{Keys: keys, Bytes: 16 * keys, Answer: 16 * keys}
}
func (q *toyQuery) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	p.Words = raftfsm.ParseWords(r, len(p.Keys))
}
func (q *toyQuery) Answer(m raftfsm.Machine, p *raftfsm.Part, _ bool, _ time.Time) error {
	p.Resize(len(p.Keys))
	c := m.(*toyMachine).current.Load().copied()
	for i, key := range p.Keys {
		p.Words[i] = c.most[key]
	}
	return nil
}
func (q *toyQuery) Join(read *raftfsm.Read) bool {
	q.most = make([]int64, len(read.IDs))
	for _, p := range read.Parts {
		for i, at := range p.At {
			q.most[at] = p.Words[i]
		}
	}
	return false
}

// A kind that this package has never heard of is replicated, read with each consistency on all nodes, also
// on one without a replica, verified, kept in snapshots, and restored from them.
func TestToyKind(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	mustDo(t, all[0].catalogClient.MustChange(t.Context(), &catalog.Command{Create: &catalog.CreateEntry{Keyspace: catalog.Keyspace{Name: "toy", Kind: "test", Divisor: 3}}}))
	for i, n := range all {
		eventually(t, "the keyspace is there", func() bool { return n.Keyspace("toy") != nil })
		w := once(&Write{Ops: toyOps{{7, int64(10 * i)}, {8, 5}, {7, 3}}, Width: 1, Rows: make([]int64, 3), Deadline: soon()})
		if mustDo(t, n.Write(n.Keyspace("toy"), w)); !slices.Equal(w.Rows, []int64{int64(10 * i), 5, int64(max(10*i, 3))}) {
			t.Errorf("rows %v after write %d", w.Rows, i)
		}
		for _, reader := range all {
			for _, opt := range []ReadOptions{{Consistency: Linearizable}, {Token: w.Token}, {Consistency: Stale, Token: w.Token}} {
				var q toyQuery
				opt.Deadline = soon()
				if mustDo(t, reader.Read(reader.Keyspace("toy"), &q, []uint64{8, 7, 9}, &opt)); !slices.Equal(q.most, []int64{5, int64(max(10*i, 3)), 0}) {
					t.Errorf("%s reads %v after write %d", reader.cfg.NodeName, q.most, i)
				}
			}
		}
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
	g := all[0].registry.shardOf(all[0].Keyspace("toy").FirstGroup + 1) // of id 7
	without := 0
	for _, n := range all {
		r := n.registry.localOf(g.number)
		if r == nil {
			without++
			continue
		}
		mustDo(t, r.group.Snapshotter().Take())
		stream := rafttest.Persisted(t, r.fsm.Machine)
		again := kinds.All.New(codec.KindTest, raftfsm.Places{})
		again.SetRoute(g.first)
		mustDo(t, rafttest.Restore(again, stream))
		if a, b := fmt.Sprint(again.State()), fmt.Sprint(r.fsm.State()); a != b {
			t.Errorf("restored %s, want %s", a, b)
		}
	}
	if without != 1 {
		t.Errorf("%d nodes have no replica", without)
	}
}
