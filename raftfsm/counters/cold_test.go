package counters

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// coldReplica is a replica with a disk of its own. After a crash, the disk has all synced data and
// some of the rest.
type coldReplica struct {
	t         testing.TB
	name      string
	fs        *vfs.MemFS
	crashing  crashPoint
	hung      atomic.Pointer[hungDisk] // not nil while reads of the disk hang
	store     *cold.Store
	rows      *cold.Group
	fsm       *Machine
	snapshots map[string][]byte // finished snapshots, by name
	newest    string
	made      int
	froze     int
	seals     bool // whether Restore packs all rows
}

func newColdReplica(t testing.TB, name string) *coldReplica {
	r := &coldReplica{t: t, name: name, fs: vfs.NewCrashableMem(), snapshots: map[string][]byte{}}
	r.open()
	t.Cleanup(func() {
		if err := rafttest.CheckTable(r.fsm.Table()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = r.store.Close()
	})
	return r
}

func (r *coldReplica) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", r.name, err)
	}
}

func (r *coldReplica) open() {
	r.t.Helper()
	var err error
	r.store, err = cold.Open(cold.Config{Dir: "cold", FS: r.watched(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { r.t.Error(err) }})
	r.must(err)
	r.rows, err = r.store.Group(1)
	r.must(err)
	r.fsm = New(raftfsm.Places{Cold: r.rows, Seal: func(uint64, uint64) bool { return r.seals }})
	if r.newest != "" {
		r.must(rafttest.Restore(r.fsm, r.snapshots[r.newest]))
	}
	r.sweep()
}

// crashPoint simulates a crash at a given write to the disk. Pebble's own goroutines write too, so
// the write may be one of theirs.
type crashPoint struct {
	mu   sync.Mutex
	left int        // number of writes until the crash; 0 for no crash
	kept *vfs.MemFS // the disk after the crash; nil before it
}

// begin makes crashPoint keep the state of the disk just before the n-th write from now.
func (c *crashPoint) begin(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.kept = n, nil
}

// write counts a write to fs.
func (c *crashPoint) write(fs *vfs.MemFS, rnd *rand.Rand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		return
	}
	if c.left--; c.left == 0 {
		c.kept = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rnd})
	}
}

// end returns the kept state, or nil if there were fewer than n writes.
func (c *crashPoint) end() *vfs.MemFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = 0
	return c.kept
}

// While a coldReplica has a hungDisk, all its reads wait until released is closed.
type hungDisk struct {
	reads    atomic.Int64 // number of reads so far
	released chan struct{}
}

// watched returns the replica's file system, which passes each write to crashing and lets reads
// hang.
func (r *coldReplica) watched() vfs.FS {
	fs, rnd := r.fs, rand.New(rand.NewPCG(7, 7))
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if hung := r.hung.Load(); hung != nil && op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			hung.reads.Add(1)
			<-hung.released
		}
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			r.crashing.write(fs, rnd)
		}
		return nil
	}))
}

// crashIn runs do, and restarts the replica as after a crash just before the n-th disk write. If
// there are fewer than n writes, the crash comes after do. A snapshot that do has taken exists only
// in the second case.
func (r *coldReplica) crashIn(n int, rnd *rand.Rand, do func()) {
	before, newest := maps.Clone(r.snapshots), r.newest
	r.crashing.begin(n)
	do()
	kept := r.crashing.end()
	if kept == nil {
		r.crash(rnd)
		return
	}
	r.snapshots, r.newest = before, newest
	_ = r.store.Close()
	r.fs = kept
	r.open()
}

// crash restarts the replica as after a crash, from its newest snapshot. Some of the unsynced data
// is lost. The caller must apply the log again.
func (r *coldReplica) crash(rnd *rand.Rand) {
	left := r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rnd})
	_ = r.store.Close()
	r.fs = left
	r.open()
}

func (r *coldReplica) sweep() {
	r.t.Helper()
	r.must(r.rows.Sweep(func() ([]string, error) {
		var names []string
		for name := range r.snapshots {
			names = append(names, name)
		}
		return names, nil
	}))
}

// snapshot takes a snapshot and keeps the last two.
func (r *coldReplica) snapshot() {
	r.t.Helper()
	r.persist()
	r.sweep()
}

func (r *coldReplica) persist() {
	r.t.Helper()
	captured, err := r.fsm.Snapshot()
	r.must(err)
	r.made++
	sink := &namedSink{name: fmt.Sprintf("%06d", r.made)}
	r.must(captured.Persist(sink))
	captured.Release()
	r.snapshots[sink.name], r.newest = sink.Bytes(), sink.name
	delete(r.snapshots, fmt.Sprintf("%06d", r.made-2))
}

type namedSink struct {
	bytes.Buffer
	name string
}

func (s *namedSink) ID() string    { return s.name }
func (s *namedSink) Cancel() error { return nil }
func (s *namedSink) Close() error  { return nil }

// freezeAll moves rows to disk: those of segments for which isOld returns true and that were idle
// since the previous call.
func freezeAll(c *Machine, isOld func(first, last uint64) bool) (rows int, err error) {
	for idle := c.Watch(isOld, true); idle.Segments() > 0; {
		some, err := c.FreezeSome(idle, idle.Segments())
		if rows += some; err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func (r *coldReplica) freeze() {
	r.t.Helper()
	old := func(uint64, uint64) bool { return true }
	for range 2 {
		rows, err := freezeAll(r.fsm, old)
		r.must(err)
		r.froze += rows
	}
}

// sealAll seals all rows.
func (r *coldReplica) sealAll() {
	for range 2 {
		for from, more := uint64(0), true; more; {
			_, from, more, _ = r.fsm.Seal(from, func(uint64, uint64) bool { return true })
		}
	}
}

// carried returns the newest snapshot as the stream that the replica would send to a follower.
func (r *coldReplica) carried() []byte {
	r.t.Helper()
	c, err := CarryBlocks(bytes.NewReader(r.snapshots[r.newest]), r.rows, nil)
	r.must(err)
	defer c.Close()
	stream, err := io.ReadAll(c)
	r.must(err)
	if want := int64(len(r.snapshots[r.newest])) + c.Added(); int64(len(stream)) != want {
		r.t.Fatalf("%s: a stream of %d bytes, said to be of %d", r.name, len(stream), want)
	}
	return stream
}

// Two replicas apply one log. They seal rows and move rows to disk at different times, crash,
// restore their own snapshots, and receive those of the other replica. At every index they have the
// same digest and rows as a replica with all rows in memory.
func TestReplicasOfDifferentTiering(t *testing.T) {
	t.Parallel()
	worlds := uint64(3)
	if testing.Short() {
		worlds = 1
	}
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { t.Parallel(); replicasOfDifferentTiering(t, seed) })
	}
}

func replicasOfDifferentTiering(t *testing.T, seed uint64) {
	// Crashes have a random source of their own, left. How many numbers a crash draws depends on
	// what Pebble has written, and this must not change the steps of the test.
	r, left := rand.New(rand.NewPCG(seed, 3)), rand.New(rand.NewPCG(seed, 4))
	plain := New(raftfsm.Places{})
	replicas := []*coldReplica{newColdReplica(t, "a"), newColdReplica(t, "b")}
	replicas[1].seals = true
	var log []*raft.Log
	var keys []uint64
	apply := func(ops []engine.Op) {
		entry := rafttest.Command(uint64(len(log)+1), entryOf(4, ops))
		log = append(log, entry)
		want := plain.Apply(entry).(*raftfsm.Result)
		for _, replica := range replicas {
			got := replica.fsm.Apply(entry).(*raftfsm.Result)
			if !slices.Equal(got.Rows, want.Rows) || !slices.Equal(got.Overflows, want.Overflows) {
				t.Fatalf("%s answers entry %d otherwise", replica.name, entry.Index)
			}
		}
	}
	replay := func(replica *coldReplica) {
		for _, entry := range log[replica.fsm.Applied():] {
			replica.fsm.Apply(entry)
		}
	}
	fill := func() {
		for range 3 {
			var ops []engine.Op
			for range 8_000 {
				keys = append(keys, uint64(len(keys))<<20|r.Uint64N(1<<20))
				ops = append(ops, add(keys[len(keys)-1], uint8(r.IntN(4)), 1+r.Int64N(500)))
			}
			apply(ops)
		}
	}
	fill()
	for step := range 80 {
		var ops []engine.Op
		for range 1 + r.IntN(200) {
			key := keys[r.IntN(len(keys))]
			switch r.IntN(8) {
			case 0:
				ops = append(ops, engine.Op{ID: key, Kind: engine.OpDelete})
			case 1:
				ops = append(ops, engine.Op{ID: key, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 1, Value: r.Int64N(9) - 1}}})
			default:
				ops = append(ops, add(key, uint8(r.IntN(4)), r.Int64N(1<<r.IntN(62))-1))
			}
		}
		apply(ops)
		one := replicas[r.IntN(len(replicas))]
		switch r.IntN(10) {
		case 8, 9:
			one.sealAll()
		case 6:
			one.crashIn(1+r.IntN(6), left, one.freeze)
			replay(one)
		case 7:
			one.crashIn(1+r.IntN(3), left, one.persist)
			replay(one)
		case 0, 1:
			one.freeze()
		case 2:
			one.snapshot()
		case 3:
			one.crash(left)
			replay(one)
		case 5:
			other := replicas[r.IntN(len(replicas))]
			if other.newest == "" {
				continue
			}
			stream := other.carried()
			one.made++ // raft stores a received snapshot and then restores it
			one.newest = fmt.Sprintf("%06d", one.made)
			one.snapshots[one.newest] = stream
			one.must(rafttest.Restore(one.fsm, stream))
			one.sweep()
			replay(one)
		}
		for _, replica := range replicas {
			got, want := replica.fsm.State(), plain.State()
			if got.Index != want.Index || got.Digest != want.Digest || got.Rows != want.Rows {
				t.Fatalf("step %d: %s has %+v, want %+v", step, replica.name, got, want)
			}
		}
	}
	sameRows(t, plain, replicas)

	sealing := replicas[1]
	fill() // rows that are not on disk
	sealing.sealAll()
	sealed := sealing.fsm.State().SealedRows
	sealing.snapshot()
	sealing.crash(left)
	restored := sealing.fsm.State().SealedRows
	replay(sealing)
	sameRows(t, plain, replicas)
	if sealed < 10_000 || restored < 10_000 {
		t.Errorf("%d rows were sealed, and %d restored so", sealed, restored)
	}
}

func sameRows(t *testing.T, plain *Machine, replicas []*coldReplica) {
	var want []engine.Page
	_ = plain.Table().Scan(0, 4, func(p *engine.Page) bool {
		want = append(want, engine.Page{IDs: slices.Clone(p.IDs), Width: 4, Counts: slices.Clone(p.Counts)})
		return true
	})
	for _, replica := range replicas {
		if replica.froze == 0 || !replica.fsm.Table().MayBeCold(0) && replica.froze < 1000 {
			t.Errorf("%s: %d rows were frozen", replica.name, replica.froze)
		}
		row := make([]int64, 4)
		for _, p := range want {
			for i, id := range p.IDs {
				if err := replica.fsm.Table().ReadCold(context.Background(), id, row); err != nil || !slices.Equal(row, p.Row(i)) {
					t.Fatalf("%s: key %d reads %v, want %v: %v", replica.name, id, row, p.Row(i), err)
				}
			}
		}
	}
}

// partlyColdReplica returns a replica with cold rows, two of which were changed afterwards. It has
// taken a snapshot.
func partlyColdReplica(t testing.TB, rows uint64) *coldReplica {
	a := newColdReplica(t, "a")
	var ops []engine.Op
	for i := range rows {
		ops = append(ops, add(i<<20, 0, int64(i%500)+1))
	}
	a.fsm.Apply(rafttest.Command(1, entryOf(0, ops)))
	a.freeze()
	a.fsm.Apply(rafttest.Command(2, entryOf(0, []engine.Op{add(5<<20, 1, 7), {ID: 6 << 20, Kind: engine.OpDelete}})))
	a.snapshot()
	return a
}

// A stored snapshot is refused if its cold rows are missing. A stream that contains the rows can be
// restored anywhere.
func TestSnapshotsOfColdRows(t *testing.T) {
	t.Parallel()
	a := partlyColdReplica(t, 25_000)
	named, carried, want := a.snapshots[a.newest], a.carried(), a.fsm.State()
	if len(carried) < len(named)+2*25_000 { // besides the rows, both contain the hot lists
		t.Errorf("a snapshot of %d bytes that names, of %d that carries", len(named), len(carried))
	}
	t.Run("carried to one that keeps cold rows", func(t *testing.T) {
		b := newColdReplica(t, "b")
		b.must(rafttest.Restore(b.fsm, carried))
		if got := b.fsm.State(); got.Digest != want.Digest || got.Rows != want.Rows || got.ColdRows == 0 {
			t.Errorf("%+v, want %+v", got, want)
		}
		again, err := CarryBlocks(bytes.NewReader(carried), b.rows, nil)
		b.must(err)
		defer again.Close()
		if stream, err := io.ReadAll(again); err != nil || !bytes.Equal(stream, carried) || again.Added() != 0 {
			t.Errorf("sent on it has %d bytes of %d: %v", len(stream), len(carried), err)
		}
	})
	t.Run("carried to one without room", func(t *testing.T) {
		b := newColdReplica(t, "b")
		b.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 20, TotalBytes: 1 << 40})
		b.must(rafttest.Restore(b.fsm, carried))
		if got := b.fsm.State(); got.Digest != want.Digest || got.Rows != want.Rows || got.ColdRows != 0 {
			t.Errorf("%+v, want %+v in memory", got, want)
		}
	})
	t.Run("carried to one that does not", func(t *testing.T) {
		b := newCounters(t)
		if err := rafttest.Restore(b, carried); err != nil || b.State().Digest != want.Digest {
			t.Errorf("%+v, %v", b.State(), err)
		}
	})
	t.Run("visited", func(t *testing.T) {
		rows := 0
		facts, err := self.VisitSnapshot(bytes.NewReader(carried), codec.KindCounters, codec.Whole,
			raftfsm.SnapshotVisitor{Rows: func(_ raftfsm.Table, p *engine.Page) error { rows += len(p.IDs); return nil }})
		if err != nil || facts.Digest != want.Digest || uint64(rows) != want.Rows {
			t.Errorf("%+v, %d rows, %v", facts, rows, err)
		}
		if _, err := self.VisitSnapshot(bytes.NewReader(named), codec.KindCounters, codec.Whole, raftfsm.SnapshotVisitor{}); !errors.Is(err, codec.ErrSnapshot) {
			t.Errorf("one that names: %v", err)
		}
	})
	t.Run("without the rows that it names", func(t *testing.T) {
		b := newColdReplica(t, "b")
		b.must(rafttest.Restore(b.fsm, named))
		mustBeStuck(t, b.fsm, 0)
		b.must(rafttest.Restore(b.fsm, carried))
		if got := b.fsm.State(); b.fsm.Stuck() != nil || got.Digest != want.Digest || got.Index != want.Index {
			t.Errorf("%+v, want %+v: %v", got, want, b.fsm.Stuck())
		}
		if err := rafttest.Restore(newCounters(t), named); !errors.Is(err, codec.ErrSnapshot) {
			t.Error(err)
		}
	})
	t.Run("damaged", func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 1))
		for range 60 {
			at := r.IntN(len(carried))
			damaged := bytes.Clone(carried)
			damaged[at] ^= 1 << r.IntN(8)
			if err := rafttest.Restore(newCounters(t), damaged); !errors.Is(err, codec.ErrSnapshot) {
				t.Fatalf("byte %d: %v", at, err)
			}
			if err := rafttest.Restore(newCounters(t), carried[:at]); !errors.Is(err, codec.ErrSnapshot) {
				t.Fatalf("cut at %d: %v", at, err)
			}
		}
	})
}

// FuzzReadCarried passes sections of carried cold rows to all readers of such streams. The seed is
// a valid stream.
func FuzzReadCarried(f *testing.F) {
	a := partlyColdReplica(f, 9_000)
	sections := rafttest.SectionsOf(f, a.carried()) // head, cold rows, their blocks, other rows, the request memory, end
	last, state := len(sections)-1, a.fsm.State()
	part, block := rafttest.PayloadOf(sections[1]), rafttest.PayloadOf(sections[2])
	framed := func(part, block []byte, rows, digest uint64) []byte {
		end := bytes.Clone(rafttest.PayloadOf(sections[last]))
		binary.LittleEndian.PutUint64(end, rows)
		binary.LittleEndian.PutUint64(end[8:], digest)
		return slices.Concat(sections[0], rafttest.Framed(codec.StreamCarried, part), rafttest.Framed(codec.StreamBlock, block),
			bytes.Join(sections[3:last], nil), rafttest.Framed(codec.StreamEnd, end))
	}
	if err := rafttest.Restore(New(raftfsm.Places{}), framed(part, block, state.Rows, state.Digest)); err != nil {
		f.Fatal(err)
	}
	f.Add(part, block, state.Rows, state.Digest)
	f.Fuzz(func(t *testing.T, part, block []byte, rows, digest uint64) {
		stream := framed(part, block, rows, digest)
		c := newCounters(t)
		err := rafttest.Restore(c, stream)
		facts, visited := self.VisitSnapshot(bytes.NewReader(stream), codec.KindCounters, codec.Whole, raftfsm.SnapshotVisitor{})
		if err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		if visited != nil || facts.Rows != rows || c.State().Digest != digest {
			t.Fatalf("restored %+v, visited %+v: %v", c.State(), facts, visited)
		}
	})
}
