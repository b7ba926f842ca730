package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// holdHeadroom stops a node's own checks of memory and disk. From then on the test decides what is full.
func holdHeadroom(n *Node) {
	n.headroom.Close()
}

// Open fails for a new node with a full disk. The error has the reserve, the needed and the free
// bytes.
func TestOpenOnAFullDisk(t *testing.T) {
	cfg := memberConfig(t, t.TempDir(), 1, 1)
	cfg.DiskReserve = 1 << 60
	n, err := Open(cfg)
	if err == nil {
		t.Error(n.Close(t.Context()))
	}
	var full *errs.DiskFullError
	if !errors.As(err, &full) || full.ReserveBytes != 1<<60 || full.NeededBytes < 1<<60 || full.FreeBytes == 0 {
		t.Errorf("opened with %v", err)
	}
}

// Open refuses a memory limit that is too small for any node, and the error has the minimum.
func TestLeastMemoryLimit(t *testing.T) {
	_, err := Open(Config{
		Dir: t.TempDir(), NodeKey: "n", NodeName: "n", Bootstrap: true, ClusterID: strings.Repeat("0", 32), ClusterAddr: "127.0.0.1:0",
		MemoryLimit: tiering.MemoryLimitMin - 1, Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(tiering.MemoryLimitMin)) {
		t.Errorf("opened with %v", err)
	}
}

// The reserved space covers a snapshot. A group without that space postpones the snapshot and goes on.
func TestSnapshotWithoutRoom(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("posts")
	ops := make([]engine.Op, 0, 10_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 50_000 {
		ops = append(ops, addTo(r.Uint64(), uint8(i%4), r.Int64()>>r.IntN(60)))
		if len(ops) == cap(ops) {
			mustDo(t, n.Write(ks, &Write{Ops: counters.Ops(ops), Deadline: soon()}))
			ops = ops[:0]
		}
	}
	g := n.registry.shardOf(1).replica.Load().group
	estimate := g.Snapshotter().Bytes()
	if total := n.registry.snapshotBytes(); total < estimate {
		t.Errorf("%d bytes are reserved, one group needs %d", total, estimate)
	}
	var free atomic.Uint64
	free.Store(estimate - 1)
	n.space.Free = func() (uint64, error) { return free.Load(), nil }
	if err := g.Snapshotter().Take(); !errors.Is(err, replica.ErrNoRoom) {
		t.Fatalf("a snapshot without room: %v", err)
	}
	g.Snapshotter().Note(replica.ErrNoRoom)
	if n.registry.snapshotsDeferred() != 1 {
		t.Error("the metric does not tell")
	}
	free.Add(1)
	mustDo(t, g.Snapshotter().Take())
	if took := uint64(g.Snapshots().NewestBytes()); took == 0 || took > estimate {
		t.Errorf("it took %d bytes, %d were reserved", took, estimate)
	}
	if g.Snapshotter().Note(nil); n.registry.snapshotsDeferred() != 0 {
		t.Error("the metric goes on telling")
	}
	mustWrite(t, n, ks, addTo(1, 0, 1))
}

// A full node still changes the counts of existing rows, deletes rows, and answers reads. An op
// that it refuses changes nothing.
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
		w := &Write{Deadline: soon()}
		for _, id := range ids {
			w.Ops = append(rowOps(w), engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: 1}}})
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
	r := n.registry.localOf(ks.FirstGroup)
	if l := n.limits(r); l.KeysMax != dedup.KeysMaxMax {
		t.Errorf("the shard takes %d keys", l.KeysMax)
	}
	n.headroom.MemoryFull.Store(true)
	if l := n.limits(r); l.KeysMax != dedup.KeysOfSection {
		t.Errorf("without memory, the shard takes %d keys", l.KeysMax)
	}
	if err := add(1); err != nil {
		t.Errorf("a row that is there: %v", err)
	}
	var newRow *NewRowError
	if err := add(1, 3); !errors.Is(err, errs.ErrMemoryFull) || !errors.As(err, &newRow) || newRow.Op != 1 {
		t.Errorf("a new row: %v", err)
	}
	if count(1) != 2 || count(3) != 0 {
		t.Errorf("counts %d and %d after a refusal", count(1), count(3))
	}
	for column, wider := range map[uint8]bool{2: false, 4: true} {
		w := &Write{Deadline: soon(), Ops: counters.Ops{
			{ID: 1, Kind: engine.OpDelete},
			{ID: 1, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: 0}}},
			{ID: 2, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: 1}}},
		}}
		err := n.Write(ks, w)
		if !wider && err != nil || wider && (!errors.As(err, &newRow) || newRow.Op != 2 || !newRow.Wider) {
			t.Errorf("a count in column %d of rows that have some in the first: %v", column, err)
		}
	}
	w := &Write{Deadline: soon(), Ops: counters.Ops{{ID: 9, Kind: engine.OpDelete}}}
	if err := n.Write(ks, w); err != nil {
		t.Errorf("a delete: %v", err)
	}
	n.headroom.MemoryFull.Store(false)
	n.headroom.DiskFull.Store(true)
	if err := add(1); !errors.Is(err, errs.ErrDiskFull) {
		t.Errorf("a write to a full disk: %v", err)
	} else if full := (&errs.DiskFullError{}); !errors.As(err, &full) || full.FreeBytes == 0 || full.NeededBytes < full.ReserveBytes {
		t.Errorf("a write to a full disk does not tell of what: %v", err)
	}
	if _, err := n.AddColumns(t.Context(), "posts", column.Named("c")); !errors.Is(err, errs.ErrDiskFull) {
		t.Errorf("a column on a full disk: %v", err)
	}
	n.headroom.DiskFull.Store(false)
	if err := add(3); err != nil || count(3) != 1 {
		t.Errorf("after it: %v, count %d", err, count(3))
	}
}
