package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard/replica"
)

// holdHeadroom ends a node's own looks at its room: from here on the test says what is
// full, and no look takes it back.
func holdHeadroom(n *Node) {
	n.headroom.close()
	n.headroom.stop = nil
}

func TestHeadroomTurns(t *testing.T) {
	type stock struct{ live, tables, collector, snapshots, free uint64 }
	var now stock
	h := &headroom{
		memoryLimit: 1000, diskReserve: 1600, logger: slog.New(slog.DiscardHandler),
		live:      func() uint64 { return now.live },
		tables:    func() uint64 { return now.tables },
		collector: func() uint64 { return now.collector },
		snapshots: func() uint64 { return now.snapshots },
		free:      func() (uint64, error) { return now.free, nil },
	}
	tight := []int{1, 2, 3, 4, 6, 7} // steps with 875 and more of the 1000
	for i, step := range []struct {
		now                      stock
		wantMemory, wantDiskFull bool
	}{
		{now: stock{collector: 25, free: 10_000}},
		{now: stock{live: 799, collector: 25, free: 1601}},
		{now: stock{live: 800, collector: 25, free: 1600}, wantMemory: true, wantDiskFull: true}, // a quarter more than 800 is 1000
		{now: stock{live: 760, collector: 25, free: 1706}, wantMemory: true, wantDiskFull: true}, // not free by a sixteenth yet
		{now: stock{live: 700, collector: 25, free: 1708}},
		{now: stock{collector: 25}, wantDiskFull: true},
		{now: stock{live: 10, tables: 800, collector: 25, free: 10_000}, wantMemory: true}, // tables that grew since the collection
		{now: stock{live: 700, collector: 100, free: 10_000}, wantMemory: true},            // another GOGC
		{now: stock{live: 700, collector: 0, free: 10_000}},
		{now: stock{snapshots: 400, free: 2000}, wantDiskFull: true}, // snapshots may take it
		{now: stock{snapshots: 200, free: 2000}},
	} {
		now = step.now
		h.look()
		if h.memoryFull.Load() != step.wantMemory || h.diskFull.Load() != step.wantDiskFull {
			t.Errorf("step %d: memory full %v, disk full %v", i, h.memoryFull.Load(), h.diskFull.Load())
		}
		if want := slices.Contains(tight, i); h.memoryTight.Load() != want {
			t.Errorf("step %d: memory tight %v, want %v", i, h.memoryTight.Load(), want)
		}
	}
	now = stock{}
	h.look()
	h.free = func() (uint64, error) { return 0, errNoDisk }
	if h.look(); !h.diskFull.Load() {
		t.Error("an unknown disk was taken for a free one")
	}
}

// A new node without room cannot be put into its catalog, and says what it lacks.
func TestOpenOnAFullDisk(t *testing.T) {
	cfg := memberConfig(t, t.TempDir(), 1, 1)
	cfg.DiskReserve = 1 << 60
	n, err := Open(cfg)
	if err == nil {
		t.Error(n.Close(t.Context()))
	}
	var full *DiskFullError
	if !errors.As(err, &full) || full.ReserveBytes != 1<<60 || full.NeededBytes < 1<<60 || full.FreeBytes == 0 {
		t.Errorf("opened with %v", err)
	}
}

func TestHeadroomWithoutBounds(t *testing.T) {
	h := &headroom{
		live:      func() uint64 { return math.MaxUint64 / 200 },
		tables:    func() uint64 { return 0 },
		collector: func() uint64 { return 100 },
		snapshots: func() uint64 { return 1 << 40 },
		free:      func() (uint64, error) { return 0, nil },
	}
	if h.look(); h.memoryFull.Load() || h.diskFull.Load() {
		t.Error("full without a bound")
	}
}

func TestCollectorsGoal(t *testing.T) {
	before := debug.SetGCPercent(37)
	defer debug.SetGCPercent(before)
	for least, want := range map[uint64]uint64{0: 37, 25: 25, 50: 37} {
		if got := collectorPercent(least); got != want {
			t.Errorf("%d %%, want %d of at least %d", got, want, least)
		}
	}
	debug.SetGCPercent(-1)
	if got := collectorPercent(25); got != 0 {
		t.Errorf("%d %% of a collector that is turned off", got)
	}
}

// Before rows are refused, and while they are, what is no table is collected.
func TestHeadroomCollectsBeforeItRefuses(t *testing.T) {
	live, tables, collections := uint64(900), uint64(100), 0
	h := &headroom{
		memoryLimit: 1000, logger: slog.New(slog.DiscardHandler),
		live: func() uint64 { return live }, tables: func() uint64 { return tables }, collector: func() uint64 { return 25 },
		collect: func() { collections++; live = tables }, snapshots: func() uint64 { return 0 },
		free: func() (uint64, error) { return 1, nil },
	}
	for _, step := range []struct {
		name            string
		live, tables    uint64
		ago             time.Duration // since the last collection
		wantFull        bool
		wantCollections int
	}{
		{"garbage", 900, 100, time.Hour, false, 1},
		{"again at once", 900, 100, 0, true, 1},
		{"while it is full", 900, 100, time.Hour, false, 2},
		{"tables", 900, 800, time.Hour, true, 2},
		{"room", 100, 100, time.Hour, false, 2},
	} {
		live, tables, h.collected = step.live, step.tables, time.Now().Add(-step.ago)
		if h.look(); h.memoryFull.Load() != step.wantFull || collections != step.wantCollections {
			t.Errorf("%s: full %v after %d collections", step.name, h.memoryFull.Load(), collections)
		}
	}
}

// A limit that no node could keep is refused, by name.
func TestLeastMemoryLimit(t *testing.T) {
	_, err := Open(Config{
		Dir: t.TempDir(), NodeKey: "n", NodeName: "n", Bootstrap: true, ClusterID: strings.Repeat("0", 32), ClusterAddr: "127.0.0.1:0",
		MemoryLimit: MemoryLimitMin - 1, Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(MemoryLimitMin)) {
		t.Errorf("opened with %v", err)
	}
}

// What is reserved for a snapshot covers it, and a group without as much room
// puts it off and goes on.
func TestSnapshotWithoutRoom(t *testing.T) {
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("posts")
	ops := make([]engine.Op, 0, 10_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 50_000 {
		ops = append(ops, addTo(r.Uint64(), uint8(i%4), r.Int64()>>r.IntN(60)))
		if len(ops) == cap(ops) {
			mustDo(t, n.Write(ks, &Write{Ops: ops, Deadline: soon()}))
			ops = ops[:0]
		}
	}
	g := n.shardOf(1).replica.Load().group
	estimate := g.SnapshotBytes()
	if total := n.snapshotBytes(); total < estimate {
		t.Errorf("%d bytes are reserved, one group needs %d", total, estimate)
	}
	var free atomic.Uint64
	free.Store(estimate - 1)
	n.room.free = func() (uint64, error) { return free.Load(), nil }
	if err := g.TakeSnapshot(); !errors.Is(err, replica.ErrNoRoom) {
		t.Fatalf("a snapshot without room: %v", err)
	}
	g.NoteSnapshot(replica.ErrNoRoom)
	if n.snapshotsPutOff() != 1 {
		t.Error("the metric does not tell")
	}
	free.Add(1)
	mustDo(t, g.TakeSnapshot())
	if took := uint64(g.Snapshots().NewestBytes()); took == 0 || took > estimate {
		t.Errorf("it took %d bytes, %d were reserved", took, estimate)
	}
	if g.NoteSnapshot(nil); n.snapshotsPutOff() != 0 {
		t.Error("the metric goes on telling")
	}
	mustWrite(t, n, ks, addTo(1, 0, 1))
}

// Snapshots that are written at once do not have the same room.
func TestDiskRoomIsGivenOnce(t *testing.T) {
	room := diskRoom{free: func() (uint64, error) { return 100, nil }}
	give, err := room.take(60)
	mustDo(t, err)
	if _, err := room.take(41); !errors.Is(err, replica.ErrNoRoom) {
		t.Errorf("taken twice: %v", err)
	}
	second, err := room.take(40)
	mustDo(t, err)
	give()
	second()
	give, err = room.take(100)
	mustDo(t, err)
	give()
	room.free = func() (uint64, error) { return 0, errNoDisk }
	if _, err := room.take(1); !errors.Is(err, errNoDisk) {
		t.Errorf("an unknown disk: %v", err)
	}
}

// What a full node still does: it counts on rows that are there, deletes, and
// answers reads; and nothing that it refuses is applied.
func TestFullNode(t *testing.T) {
	n, err := Open(Config{
		Dir: t.TempDir(), NodeKey: "n", NodeName: "n", Bootstrap: true, ClusterID: strings.Repeat("0", 32), ClusterAddr: "127.0.0.1:0",
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := n.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	ks := n.Keyspace("posts")
	add := func(ids ...uint64) error {
		w := &Write{Deadline: time.Now().Add(10 * time.Second)}
		for _, id := range ids {
			w.Ops = append(w.Ops, engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: 1}}})
		}
		return n.Write(ks, w)
	}
	count := func(id uint64) int64 {
		row := []int64{0}
		if err := n.Get(ks, []uint64{id}, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, row); err != nil {
			t.Fatal(err)
		}
		return row[0]
	}
	if err := add(1, 2); err != nil {
		t.Fatal(err)
	}
	holdHeadroom(n)
	n.headroom.memoryFull.Store(true)
	if err := add(1); err != nil {
		t.Errorf("a row that is there: %v", err)
	}
	var newRow *NewRowError
	if err := add(1, 3); !errors.Is(err, ErrMemoryFull) || !errors.As(err, &newRow) || newRow.Op != 1 {
		t.Errorf("a new row: %v", err)
	}
	if count(1) != 2 || count(3) != 0 {
		t.Errorf("counts %d and %d after a refusal", count(1), count(3))
	}
	for column, wider := range map[uint8]bool{2: false, 4: true} {
		w := &Write{Deadline: time.Now().Add(10 * time.Second), Ops: []engine.Op{
			{ID: 1, Kind: engine.OpDelete},
			{ID: 1, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: 0}}},
			{ID: 2, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: 1}}},
		}}
		err := n.Write(ks, w)
		if !wider && err != nil || wider && (!errors.As(err, &newRow) || newRow.Op != 2 || !newRow.Wider) {
			t.Errorf("a count in column %d of rows that have some in the first: %v", column, err)
		}
	}
	w := &Write{Deadline: time.Now().Add(10 * time.Second), Ops: []engine.Op{{ID: 9, Kind: engine.OpDelete}}}
	if err := n.Write(ks, w); err != nil {
		t.Errorf("a delete: %v", err)
	}
	n.headroom.memoryFull.Store(false)
	n.headroom.diskFull.Store(true)
	if err := add(1); !errors.Is(err, ErrDiskFull) {
		t.Errorf("a write to a full disk: %v", err)
	} else if full := (&DiskFullError{}); !errors.As(err, &full) || full.FreeBytes == 0 || full.NeededBytes < full.ReserveBytes {
		t.Errorf("a write to a full disk does not tell of what: %v", err)
	}
	if _, err := n.AddColumns(t.Context(), "posts", []string{"c"}, nil); !errors.Is(err, ErrDiskFull) {
		t.Errorf("a column on a full disk: %v", err)
	}
	n.headroom.diskFull.Store(false)
	if err := add(3); err != nil || count(3) != 1 {
		t.Errorf("after it: %v, count %d", err, count(3))
	}
}

// What would fit leaves room for the collector, and for what goes on meanwhile.
func TestHeadroomLacks(t *testing.T) {
	h := headroom{
		memoryLimit: 8_000,
		live:        func() uint64 { return 100 },
		tables:      func() uint64 { return 50 },
		collector:   func() uint64 { return 25 },
	}
	for bytes, want := range map[uint64]uint64{900: 0, 5_500: 0, 6_400: 1_125} {
		if got := h.lacks(bytes); got != want {
			t.Errorf("%d bytes more: %d are lacking, want %d", bytes, got, want)
		}
	}
	h.memoryLimit = 0
	if got := h.lacks(1 << 40); got != 0 {
		t.Errorf("without a limit %d are lacking", got)
	}
}
