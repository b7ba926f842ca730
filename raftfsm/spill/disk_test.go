package spill

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/engine/cold"
)

const testKeys = 300

// newTestShard returns a shard with a disk of its own and a body for each of testKeys.
func newTestShard(t *testing.T) *Shard {
	t.Helper()
	store, err := cold.Open(cold.Config{Dir: "cold", FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	s := NewShard(Config{
		Place: Place{Store: store, Group: 1}, What: "body", PageBytes: testPageBytes, BytesMin: 20,
		Summarise: func(mark, body []byte) []byte { return append(mark, body[1]) },
	})
	s.Show(s.New())
	fillBodies(s.Current())
	return s
}

func fillBodies(b *Bodies) {
	for key := range uint64(testKeys) {
		b.Set(key, testBody(key), 0)
	}
}

// testBody returns a body that may leave memory.
func testBody(key uint64) []byte { return bytes.Repeat([]byte{1, byte(key)}, 10+int(key%50)) }

func mustSpill(t *testing.T, s *Shard, idle uint32) int {
	t.Helper()
	moved, err := s.Spill(idle, math.MaxInt64, func() bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	return moved
}

func mustBe(t *testing.T, s *Shard, key uint64, want []byte) {
	t.Helper()
	if body, _, err := s.Fetch(t.Context(), key); err != nil || !bytes.Equal(body, want) {
		t.Fatalf("key %d has %x, %v, want %x", key, body, err, want)
	}
}

// mustHaveNoRecords checks that the disk contains no record of version 1, the version of the first
// move.
func mustHaveNoRecords(t *testing.T, b *Bodies) {
	t.Helper()
	for key := range uint64(testKeys) {
		if body, err := b.out.records.ReadNow(Hash(key), 1); !errors.Is(err, cold.ErrDamaged) {
			t.Fatalf("a record of key %d is there: %x, %v", key, body, err)
		}
	}
}

// Stats agree with the bodies in memory and on disk. Once bodies have returned, the next round
// removes their records.
func TestBodiesLeaveAndReturn(t *testing.T) {
	t.Parallel()
	s := newTestShard(t)
	s.Current().Set(testKeys, bytes.Repeat([]byte{1}, 19), 0) // too small to leave memory
	check := func(spilled int) {
		t.Helper()
		size, onDisk := 0, 0
		b := s.Current()
		for _, page := range b.pages.pages() {
			size += page.bytes()
		}
		for key := range uint64(testKeys) {
			if s.IsSpilled(key) {
				onDisk += len(testBody(key))
				if got := Summary(b.Peek(key)); len(got) != 1 || got[0] != byte(key) {
					t.Fatalf("the mark of key %d has the summary %x", key, got)
				}
			}
		}
		got := s.Stats()
		if got.Keys != testKeys+1 || got.Spilled != uint64(spilled) || got.SpilledBytes != uint64(onDisk) || got.Bytes != uint64(size+8*got.Slots) {
			t.Fatalf("%d bytes in memory, %d of %d bodies on disk, told %+v", size, onDisk, spilled, got)
		}
	}
	check(0)
	if moved := mustSpill(t, s, 0); moved != testKeys {
		t.Errorf("%d of %d bodies left memory", moved, testKeys)
	}
	check(testKeys)
	for key := range uint64(testKeys) {
		mustBe(t, s, key, testBody(key))
	}
	check(0)
	if spilled, returned := s.Moved(); spilled != testKeys || returned != testKeys {
		t.Errorf("%d left memory, %d came back", spilled, returned)
	}
	s.Tick(1)
	if moved := mustSpill(t, s, 100); moved != 0 || len(s.Current().out.gone) != 0 { // only removes records
		t.Errorf("%d bodies left memory, %d records are still to go", moved, len(s.Current().out.gone))
	}
	mustHaveNoRecords(t, s.Current())
}

// FetchMark returns the body for which a mark stands, even after a write to the key, as long as the
// record exists. Without the record, it returns ErrMoved. If the mark is still in the page, a
// missing record means damage.
func TestFetchMark(t *testing.T) {
	t.Parallel()
	s := newTestShard(t)
	s.cfg.Tight = func() bool { return true } // so that reads do not return bodies to memory
	mustSpill(t, s, 0)
	b := s.Current()
	mark, other := b.Peek(7), b.Peek(8)
	b.Set(7, testBody(9), 0) // like a write that has read the body
	if body, err := b.FetchMark(t.Context(), 7, mark); err != nil || !bytes.Equal(body, testBody(7)) {
		t.Errorf("the mark stands for %x, %v", body, err)
	}
	if err := s.cfg.Store.Drop(1); err != nil {
		t.Fatal(err)
	}
	if body, err := b.FetchMark(t.Context(), 7, mark); !errors.Is(err, ErrMoved) {
		t.Errorf("a mark that is gone stands for %x, %v", body, err)
	}
	if body, err := b.FetchMark(t.Context(), 8, other); !errors.Is(err, cold.ErrDamaged) || errors.Is(err, ErrMoved) {
		t.Errorf("a mark of a lost record stands for %x, %v", body, err)
	}
	s.Show(s.New())
	if body, err := b.FetchMark(t.Context(), 8, other); !errors.Is(err, ErrMoved) {
		t.Errorf("a mark of bodies that were replaced stands for %x, %v", body, err)
	}
}

// Bodies that were replaced, or that the shard never showed, leave no records.
func TestReplacedBodiesLeaveNoRecords(t *testing.T) {
	t.Parallel()
	s := newTestShard(t)
	s.cfg.Tight = func() bool { return true }
	mustSpill(t, s, 0)
	was, size := s.Current(), s.Bytes()
	failed := s.New()
	fillBodies(failed)
	if err := failed.SpillLoaded(math.MaxUint64); err != nil || failed.Stats().Spilled != testKeys {
		t.Fatalf("%+v, %v", failed.Stats(), err)
	}
	failed.Dispose()
	mustHaveNoRecords(t, failed)
	if s.Bytes() != size {
		t.Errorf("%d bytes, before %d", s.Bytes(), size)
	}
	next := s.New()
	fillBodies(next)
	s.Show(next)
	mustHaveNoRecords(t, was)
	mustBe(t, s, 5, testBody(5))
}

// A round that moves bodies stops once these bodies are cleared, replaced or closed. After that, it
// writes no records.
func TestSpillEndsWithItsBodies(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Shard){
		"cleared":  func(s *Shard) { s.Current().Clear() },
		"replaced": func(s *Shard) { s.Show(s.New()) },
		"closed":   func(s *Shard) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestShard(t)
			was, looks := s.Current(), 0
			moved, err := s.Spill(0, math.MaxInt64, func() bool {
				if looks++; looks == 1 {
					end(s)
				}
				return true
			})
			if err != nil || moved != 0 || looks != 1 {
				t.Errorf("%d bodies were moved, %d pages looked at, %v", moved, looks, err)
			}
			if version := was.out.turn.version; version != 0 {
				t.Errorf("bodies were written %d times", version)
			}
		})
	}
}
