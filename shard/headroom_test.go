package shard

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
)

func TestHeadroomTurns(t *testing.T) {
	live, free := uint64(0), uint64(math.MaxUint64)
	h := &headroom{
		memoryLimit: 1000, diskReserve: 1600, logger: slog.New(slog.DiscardHandler),
		live: func() uint64 { return live },
		free: func() (uint64, error) { return free, nil },
	}
	for i, step := range []struct {
		live, free               uint64
		wantMemory, wantDiskFull bool
	}{
		{live: 0, free: 10_000},
		{live: 799, free: 1601},
		{live: 800, free: 1600, wantMemory: true, wantDiskFull: true}, // a quarter more than 800 is 1000
		{live: 751, free: 1706, wantMemory: true, wantDiskFull: true}, // not free by a sixteenth yet
		{live: 749, free: 1708},
		{live: 0, free: 0, wantDiskFull: true},
	} {
		live, free = step.live, step.free
		h.look()
		if h.memoryFull.Load() != step.wantMemory || h.diskFull.Load() != step.wantDiskFull {
			t.Errorf("step %d: memory full %v, disk full %v", i, h.memoryFull.Load(), h.diskFull.Load())
		}
	}
	h.free = func() (uint64, error) { return 0, errBrokenDisk }
	if h.look(); !h.diskFull.Load() {
		t.Error("an unknown disk was taken for a free one")
	}
}

func TestHeadroomWithoutBounds(t *testing.T) {
	h := &headroom{
		live: func() uint64 { return math.MaxUint64 / 2 },
		free: func() (uint64, error) { return 0, nil },
	}
	if h.look(); h.memoryFull.Load() || h.diskFull.Load() {
		t.Error("full without a bound")
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
		if err := n.Get(ks, []uint64{id}, 1, &ReadOptions{Consistency: Linearizable, Deadline: time.Now().Add(time.Second)}, row); err != nil {
			t.Fatal(err)
		}
		return row[0]
	}
	if err := add(1, 2); err != nil {
		t.Fatal(err)
	}
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
	w := &Write{Deadline: time.Now().Add(10 * time.Second), Ops: []engine.Op{{ID: 9, Kind: engine.OpDelete}}}
	if err := n.Write(ks, w); err != nil {
		t.Errorf("a delete: %v", err)
	}
	n.headroom.memoryFull.Store(false)
	n.headroom.diskFull.Store(true)
	if err := add(1); !errors.Is(err, ErrDiskFull) {
		t.Errorf("a write to a full disk: %v", err)
	}
	if _, err := n.AddColumns(t.Context(), "posts", []string{"c"}); !errors.Is(err, ErrDiskFull) {
		t.Errorf("a column on a full disk: %v", err)
	}
	n.headroom.diskFull.Store(false)
	if err := add(3); err != nil || count(3) != 1 {
		t.Errorf("after it: %v, count %d", err, count(3))
	}
}
