package backup

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/countd/countd/internal/must"
)

func TestSealedChunksAreOpened(t *testing.T) {
	s, err := newSealing(nil)
	must.Do(t, err)
	for _, n := range []int{1, 100, chunkBytesMin, chunkBytesMax} {
		for what, plain := range map[string][]byte{"noise": noise(1, n), "zeros": make([]byte, n)} {
			sealed, err := s.seal(plain)
			must.Do(t, err)
			if got, err := s.open(sealed, false); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d bytes of %s: %d bytes, %v", n, what, len(got), err)
			}
		}
	}
}

// The bytes of rows have no long repetitions, but become smaller.
func TestRowsAreCompressed(t *testing.T) {
	s, err := newSealing(nil)
	must.Do(t, err)
	var rows []byte
	for id := range 50_000 {
		rows = binary.AppendVarint(append(rows, 2, 1), int64(id))
	}
	sealed, err := s.seal(rows)
	if err != nil || len(sealed) > len(rows)*3/4 {
		t.Errorf("%d bytes became %d, %v", len(rows), len(sealed), err)
	}
}

// What is no chunk of an archive does not take the memory.
func TestHugeChunksAreNotOpened(t *testing.T) {
	s, err := newSealing(nil)
	must.Do(t, err)
	w, err := zstd.NewWriter(nil)
	must.Do(t, err)
	if plain, err := s.open(w.EncodeAll(make([]byte, 64<<20), nil), false); err == nil {
		t.Errorf("opened %d bytes", len(plain))
	}
}
