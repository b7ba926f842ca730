package counters

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// The model test of counts and sets takes and restores snapshots, exchanges them between two
// replicas, and simulates crashes that lose unsynced data, with replays of the log. It checks:
//
//  1. After each entry, counts, results and sets equal those of a model, which keeps them in maps.
//  2. A replay of an entry has the same result and digest as before, even if ops were refused
//     because they overflow, or if the request is a repeat.
//  3. Two replicas at the same index have the same digest.

// setsReplica is the state machine of a shard of counters, with a disk and the newest snapshot.
type setsReplica struct {
	fs       *vfs.MemFS
	store    *members.Store
	fsm      *Machine
	index    uint64
	snapshot []byte // the stored snapshot; nil if there is none
	stored   uint64 // the snapshot's index
}

// setsGroup is the number of a setsReplica's group in its store.
const setsGroup = 3

func (r *setsReplica) open(t rapid.TB) {
	var err error
	r.store, err = members.Open(members.Config{Dir: "m", FS: r.fs, MemoryBytes: members.MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		t.Fatal(err)
	}
	sets, err := r.store.Group(setsGroup)
	if err != nil {
		t.Fatal(err)
	}
	r.fsm, r.index = New(raftfsm.Places{Members: sets}), 0
	if r.snapshot == nil {
		return
	}
	if err := errors.Join(r.fsm.Restore(io.NopCloser(bytes.NewReader(r.snapshot))), r.fsm.Stuck()); err != nil {
		t.Fatal(err)
	}
	r.index = r.stored
}

func (r *setsReplica) close(t rapid.TB) {
	r.fsm.Close()
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
}

// setsWorld is the log, with the result of each entry when it was first applied, and the model.
type setsWorld struct {
	log     [][]byte
	results []*raftfsm.Result
	digests []uint64
	ops     [][]engine.Op // of each entry; nil for a repeat

	sets     map[members.Pair]bool
	contents map[uint64]*[2]int64
}

func (r *setsReplica) apply(t *rapid.T, w *setsWorld, to uint64) {
	for r.index < to {
		r.index++
		got, ok := r.fsm.Apply(rafttest.Command(r.index, w.log[r.index-1])).(*raftfsm.Result)
		if !ok {
			t.Fatalf("entry %d: %v", r.index, r.fsm.Stuck())
		}
		digest := r.fsm.State().Digest
		if int(r.index) > len(w.results) {
			w.results, w.digests = append(w.results, got), append(w.digests, digest)
			continue
		}
		want := w.results[r.index-1]
		if !slices.Equal(got.Rows, want.Rows) || !slices.Equal(got.Changed, want.Changed) || !slices.Equal(got.Overflows, want.Overflows) ||
			!slices.Equal(got.Cuts, want.Cuts) || got.Outcome(0) != want.Outcome(0) || digest != w.digests[r.index-1] {
			t.Fatalf("entry %d: %+v, digest %x, the first time %+v, %x", r.index, got, digest, want, w.digests[r.index-1])
		}
	}
}

func (r *setsReplica) takeSnapshot(t rapid.TB) {
	r.snapshot, r.stored = rafttest.Persisted(t, r.fsm), r.index
	if err := r.fsm.Members().Trim(r.index); err != nil {
		t.Fatal(err)
	}
}

// receive installs the stored snapshot of another replica, in the way that raft does.
func (r *setsReplica) receive(t rapid.TB, from *setsReplica) {
	carried, err := CarryBlocks(bytes.NewReader(from.snapshot), nil, from.fsm.Members())
	if err != nil {
		t.Fatal(err)
	}
	defer carried.Close()
	b, err := io.ReadAll(carried)
	if err != nil || int64(len(b)) != int64(len(from.snapshot))+carried.Added() {
		t.Fatalf("%d bytes, %v, want %d and %d", len(b), err, len(from.snapshot), carried.Added())
	}
	if _, err := self.VisitSnapshot(bytes.NewReader(b), codec.KindCounters, codec.Whole, raftfsm.SnapshotVisitor{}); err != nil {
		t.Fatal(err)
	}
	r.snapshot, r.stored = b, from.stored
	if err := errors.Join(r.fsm.Restore(io.NopCloser(bytes.NewReader(b))), r.fsm.Stuck()); err != nil {
		t.Fatal(err)
	}
	r.index = r.stored
}

const (
	setsRows    = 3
	setsMembers = 4
)

// drawSetOps draws the ops of one request.
func drawSetOps(t *rapid.T) (ops []engine.Op) {
	kinds := rapid.SampledFrom([]byte("jjjjjjjlllllasdm"))
	for range rapid.IntRange(1, 10).Draw(t, "ops") {
		row, column := rapid.Uint64Range(0, setsRows-1).Draw(t, "row"), uint8(rapid.IntRange(0, 1).Draw(t, "column"))
		member := rapid.Uint64Range(0, setsMembers-1).Draw(t, "member")
		op := engine.Op{ID: row, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: 1}}}
		switch kinds.Draw(t, "kind") {
		case 'j':
			op = engine.Join(row, column, member)
		case 'l':
			op = engine.Leave(row, column, member)
		case 's':
			op.Kind, op.Cells[0].Value = engine.OpSet, rapid.SampledFrom([]int64{0, 5, 70_000, math.MaxInt64, math.MinInt64}).Draw(t, "value")
		case 'd':
			op = engine.Op{ID: row, Kind: engine.OpDelete}
		case 'm':
			op = engine.Copy(row, column, member, uint64(members.StampOf(19_999*(24*time.Hour).Milliseconds())))
		}
		ops = append(ops, op)
	}
	return ops
}

// model applies the ops of an entry to the maps, and compares the result with r.
func (w *setsWorld) model(t *rapid.T, ops []engine.Op, floors bool, r *raftfsm.Result) {
	var changed []int
	for i := range ops {
		op := &ops[i]
		row := w.contents[op.ID]
		if row == nil {
			row = new([2]int64)
			w.contents[op.ID] = row
		}
		refused := false
		add := func(column uint8, delta int64) {
			switch c := &row[column]; {
			case floors && delta < 0 && column == 1 && *c <= 0:
			case delta > 0 && *c == math.MaxInt64, delta < 0 && *c == math.MinInt64:
				refused = true
			default:
				*c += delta
			}
		}
		switch {
		case op.Kind == engine.OpDelete:
			*row = [2]int64{}
			maps.DeleteFunc(w.sets, func(p members.Pair, _ bool) bool { return p.Row == op.ID })
		case op.Kind == engine.OpSet:
			row[op.Cells[0].Column] = op.Cells[0].Value
		case op.Kind == engine.OpAdd:
			add(op.Cells[0].Column, op.Cells[0].Value)
		default:
			p := members.Pair{Row: op.ID, Column: op.Cells[0].Column, Member: uint64(op.Cells[0].Value)}
			if w.sets[p] == (op.Kind == engine.OpJoin) {
				break
			}
			if _, copied := op.Copied(); !copied {
				delta := int64(1)
				if op.Kind == engine.OpLeave {
					delta = -1
				}
				add(p.Column, delta)
			}
			if refused {
				break
			}
			changed = append(changed, i)
			if op.Kind == engine.OpJoin {
				w.sets[p] = true
			} else {
				delete(w.sets, p)
			}
		}
		if got := r.Rows[2*i : 2*i+2]; !slices.Equal(got, row[:]) {
			t.Fatalf("op %d of %+v: row %v, want %v", i, ops, got, *row)
		}
		if was := slices.ContainsFunc(r.Overflows, func(o engine.Overflow) bool { return o.Op == i }); was != refused {
			t.Fatalf("op %d of %+v: refused %v, want %v", i, ops, was, refused)
		}
	}
	if !slices.Equal(changed, r.Changed) {
		t.Fatalf("ops %v of %+v changed a set, want %v", r.Changed, ops, changed)
	}
}

func (w *setsWorld) check(t *rapid.T, r *setsReplica) {
	if err := r.fsm.Members().Verify(); err != nil {
		t.Fatal(err)
	}
	if err := rafttest.CheckTable(r.fsm.Table()); err != nil {
		t.Fatal(err)
	}
	for row := range uint64(setsRows) {
		for column := range uint8(2) {
			for member := range uint64(setsMembers) {
				in := make([]bool, 1)
				if err := r.fsm.Members().Contains(member, column, []uint64{row}, in); err != nil {
					t.Fatal(err)
				}
				if in[0] != w.sets[members.Pair{Row: row, Column: column, Member: member}] {
					t.Fatalf("member %d of %d.%d: %v", member, row, column, in[0])
				}
			}
		}
	}
}

func TestSetsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &setsWorld{sets: map[members.Pair]bool{}, contents: map[uint64]*[2]int64{}}
		a, b := &setsReplica{fs: vfs.NewCrashableMem()}, &setsReplica{fs: vfs.NewCrashableMem()}
		a.open(t)
		b.open(t)
		defer func() { a.close(t); b.close(t) }()
		floors := raftfsm.SettingsOf([]string{"x", "y"}, column.Settings[int64]{Floors: map[string]int64{"y": 0}})
		entry := func(t *rapid.T, id dedup.RequestID, ops []engine.Op) {
			var req raftfsm.RequestWriter
			req.Reset(nil, codec.Whole, &id)
			req.SetSettings(floors)
			for i := range ops {
				Ops(ops).AppendTo(&req, ops[i].ID, i)
			}
			now := time.UnixMilli(20_000*(24*time.Hour).Milliseconds() + int64(len(w.log)/3))
			data := append(dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 2), now, testLimits), req.Section()...)
			w.log, w.ops = append(w.log, codec.AppendChecksum(data)), append(w.ops, ops)
			a.apply(t, w, uint64(len(w.log)))
		}
		restart := func(t *rapid.T, r *setsReplica) {
			before := r.index
			kept := rapid.IntRange(0, 100).Draw(t, "kept")
			clone := r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(2, uint64(kept)))})
			r.close(t)
			r.fs = clone
			r.open(t)
			r.apply(t, w, before)
		}
		t.Repeat(map[string]func(*rapid.T){
			"entry": func(t *rapid.T) {
				ops := drawSetOps(t)
				entry(t, dedup.ByProducer([]byte("p"), uint64(len(w.log)+1)), ops)
				w.model(t, ops, true, w.results[len(w.results)-1])
			},
			"repeat": func(t *rapid.T) {
				if len(w.log) == 0 {
					return
				}
				of := rapid.IntRange(max(0, len(w.log)-10), len(w.log)-1).Draw(t, "of")
				w.log = append(w.log, w.log[of])
				w.ops = append(w.ops, nil)
				a.apply(t, w, uint64(len(w.log)))
				if r := w.results[len(w.results)-1]; len(r.Changed) > 0 || r.Outcome(0) == dedup.Applied {
					t.Fatalf("a repeat of entry %d: %+v", of+1, r)
				}
			},
			"follow":     func(t *rapid.T) { b.apply(t, w, rapid.Uint64Range(b.index, uint64(len(w.log))).Draw(t, "to")) },
			"snapshot a": func(t *rapid.T) { a.takeSnapshot(t) },
			"snapshot b": func(t *rapid.T) { b.takeSnapshot(t) },
			"kill a":     func(t *rapid.T) { restart(t, a); w.check(t, a) },
			"kill b":     func(t *rapid.T) { restart(t, b) },
			"send": func(t *rapid.T) {
				if a.snapshot != nil && a.stored > b.index {
					b.receive(t, a)
				}
			},
		})
		w.check(t, a)
		b.apply(t, w, uint64(len(w.log)))
		w.check(t, b)
	})
}
