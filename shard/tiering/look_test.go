package tiering

import (
	"errors"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/shard/replica"
)

var errNoDisk = errors.New("no disk")

func TestHeadroomTurns(t *testing.T) {
	type stock struct{ live, tables, collector, snapshots, free uint64 }
	var now stock
	h := &Headroom{
		HeadroomConfig: HeadroomConfig{
			MemoryLimit: 1000, DiskReserve: 1600, Logger: slog.New(slog.DiscardHandler),
			Tables:    func() uint64 { return now.tables },
			Snapshots: func() uint64 { return now.snapshots },
			Free:      func() (uint64, error) { return now.free, nil },
		},
		Live:      func() uint64 { return now.live },
		Collector: func() uint64 { return now.collector },
	}
	tight := []int{1, 2, 3, 4, 6, 7} // steps in which the use is at least 875 of 1000
	for i, step := range []struct {
		now                      stock
		wantMemory, wantDiskFull bool
	}{
		{now: stock{collector: 25, free: 10_000}},
		{now: stock{live: 799, collector: 25, free: 1601}},
		{now: stock{live: 800, collector: 25, free: 1600}, wantMemory: true, wantDiskFull: true}, // a quarter more than 800 is 1000
		{now: stock{live: 760, collector: 25, free: 1706}, wantMemory: true, wantDiskFull: true}, // not a sixteenth below the bound yet
		{now: stock{live: 700, collector: 25, free: 1708}},
		{now: stock{collector: 25}, wantDiskFull: true},
		{now: stock{live: 10, tables: 800, collector: 25, free: 10_000}, wantMemory: true}, // tables that grew since the collection
		{now: stock{live: 700, collector: 100, free: 10_000}, wantMemory: true},            // another GOGC
		{now: stock{live: 700, collector: 0, free: 10_000}},
		{now: stock{snapshots: 400, free: 2000}, wantDiskFull: true}, // snapshots may need the free space
		{now: stock{snapshots: 200, free: 2000}},
	} {
		now = step.now
		h.Look()
		if h.MemoryFull.Load() != step.wantMemory || h.DiskFull.Load() != step.wantDiskFull {
			t.Errorf("step %d: memory full %v, disk full %v", i, h.MemoryFull.Load(), h.DiskFull.Load())
		}
		if want := slices.Contains(tight, i); h.MemoryTight.Load() != want {
			t.Errorf("step %d: memory tight %v, want %v", i, h.MemoryTight.Load(), want)
		}
	}
	now = stock{}
	h.Look()
	h.Free = func() (uint64, error) { return 0, errNoDisk }
	if h.Look(); !h.DiskFull.Load() {
		t.Error("an unknown disk was taken for a free one")
	}
}

func TestHeadroomWithoutBounds(t *testing.T) {
	h := &Headroom{
		HeadroomConfig: HeadroomConfig{
			Tables:    func() uint64 { return 0 },
			Snapshots: func() uint64 { return 1 << 40 },
			Free:      func() (uint64, error) { return 0, nil },
		},
		Live:      func() uint64 { return math.MaxUint64 / 200 },
		Collector: func() uint64 { return 100 },
	}
	if h.Look(); h.MemoryFull.Load() || h.DiskFull.Load() {
		t.Error("full without a bound")
	}
}

// Shares are folded only if the disk has room for all of them and is not full afterwards, also without a reserve.
func TestRoomForShares(t *testing.T) {
	for _, c := range []struct {
		reserve, shared uint64
		want            bool
	}{{100, 0, true}, {100, 700, true}, {100, 738, false}, {100, 2000, false}, {950, 0, false}, {0, 837, true}, {0, 838, false}} {
		h := &Headroom{HeadroomConfig: HeadroomConfig{
			DiskReserve: c.reserve, Tables: func() uint64 { return 0 }, Snapshots: func() uint64 { return 100 }, Kept: func() uint64 { return 0 },
			Free: func() (uint64, error) { return 1000, nil }, Logger: slog.New(slog.DiscardHandler),
		}, Live: func() uint64 { return 0 }, Collector: func() uint64 { return 0 }}
		if h.Look(); h.hasRoom(c.shared) != c.want {
			t.Errorf("reserve %d, %d bytes shared: %v", c.reserve, c.shared, !c.want)
		}
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

// Before a node refuses rows, and while it does, it runs the garbage collector if the tables alone
// fit the limit.
func TestHeadroomCollectsBeforeItRefuses(t *testing.T) {
	live, tables, collections := uint64(900), uint64(100), 0
	h := &Headroom{
		HeadroomConfig: HeadroomConfig{
			MemoryLimit: 1000, Logger: slog.New(slog.DiscardHandler), Tables: func() uint64 { return tables },
			Snapshots: func() uint64 { return 0 }, Free: func() (uint64, error) { return 1, nil },
		},
		Live: func() uint64 { return live }, Collector: func() uint64 { return 25 },
		collect: func() { collections++; live = tables },
	}
	for _, step := range []struct {
		name            string
		live, tables    uint64
		ago             time.Duration // time since the last collection
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
		if h.Look(); h.MemoryFull.Load() != step.wantFull || collections != step.wantCollections {
			t.Errorf("%s: full %v after %d collections", step.name, h.MemoryFull.Load(), collections)
		}
	}
}

// Concurrent snapshots do not get the same disk space.
func TestSnapshotSpaceIsGivenOnce(t *testing.T) {
	room := SnapshotSpace{Free: func() (uint64, error) { return 100, nil }}
	give, err := room.Take(60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := room.Take(41); !errors.Is(err, replica.ErrNoRoom) {
		t.Errorf("taken twice: %v", err)
	}
	second, err := room.Take(40)
	if err != nil {
		t.Fatal(err)
	}
	give()
	second()
	give, err = room.Take(100)
	if err != nil {
		t.Fatal(err)
	}
	give()
	room.Free = func() (uint64, error) { return 0, errNoDisk }
	if _, err := room.Take(1); !errors.Is(err, errNoDisk) {
		t.Errorf("an unknown disk: %v", err)
	}
}
func TestHungDiskIsUnfitForAWhile(t *testing.T) {
	var h Headroom
	h.NoteHang(true)
	if h.Unfit() == nil {
		t.Error("it may lead while its disk hangs")
	}
	h.NoteHang(false)
	if h.Unfit() == nil {
		t.Error("it may lead at once")
	}
	before := time.Now().Add(-hangKept)
	h.recoveredAt.Store(&before)
	if err := h.Unfit(); err != nil {
		t.Errorf("it may not lead again: %v", err)
	}
}
