package cold

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble's cache grows to the size of the files' indexes, and shrinks with them.
func TestIndexCacheFollowsFiles(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	r := rand.New(rand.NewPCG(1, 1))
	const blocks = 2_000
	block := make([]byte, 4<<10)
	batch := s.db.NewBatch()
	for n := range uint32(blocks) {
		for i := range block {
			block[i] = byte(r.Uint32())
		}
		if err := batch.Set(blockKey{1, 1, n}.encode(), block, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	held := func(files uint64) int64 {
		s.index.fit(files)
		for n := range uint32(blocks) {
			_, done, err := s.db.Get(blockKey{1, 1, n}.encode())
			if err != nil {
				t.Fatal(err)
			}
			if err := done.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return s.db.Metrics().BlockCache.Size
	}
	for _, c := range []struct {
		name        string
		files       uint64
		least, most int64
	}{
		{"no files", 0, indexCacheMin / 2, indexCacheMin},
		{"256 MiB", 256 << 20, 3 << 20, 256 << 20 / indexShare},
		{"more than it may be for", math.MaxUint64, blocks * 4 << 10, indexCacheMax},
		{"no files again", 0, indexCacheMin / 2, indexCacheMin},
	} {
		if got := held(c.files); got < c.least || got > c.most {
			t.Errorf("%s: Pebble holds %d bytes, want %d to %d", c.name, got, c.least, c.most)
		}
	}
}

// The cache is resized as the store grows.
func TestIndexCacheIsFittedOnceMuchIsWritten(t *testing.T) {
	c := newIndexCache()
	defer c.pebble.Unref()
	fitted := 0
	files := func() uint64 { fitted++; return 0 }
	for range 4 {
		c.wrote(indexFitEvery/2, files)
	}
	if fitted != 2 {
		t.Errorf("fitted %d times", fitted)
	}
}

// Both generations and records count as written bytes, large batches too.
func TestIndexCacheCountsWhatIsWritten(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	counted := func(what string, least int64, write func()) {
		t.Helper()
		was := s.index.written.Load()
		write()
		if got := s.index.written.Load() - was; got < least {
			t.Errorf("%s: %d bytes counted, want %d or more", what, got, least)
		}
	}
	page := syntheticRows(100_000)
	counted("a generation", 2*pebbleMemtableBytes, func() { mustWrite(t, mustGroup(t, s, 1), page) })
	records := s.Records(2)
	counted("records", 3*pebbleMemtableBytes, func() {
		if err := records.Write([]Record{{Key: 1, Version: 1, Body: make([]byte, 3*pebbleMemtableBytes)}}); err != nil {
			t.Fatal(err)
		}
	})
}
