package members

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A block returns its keys exactly as they were written, even if they differ in only some bytes. A
// seek from any key, even a shorter or longer one, finds the least key that is not below it.
func TestColumnsHoldKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		s, err := Open(Config{Dir: "members", FS: vfs.NewMem(), MemoryBytes: MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
		if err != nil {
			t.Fatal(err)
		}
		common := randomBytes(random, keyBytes)
		common[0] = [...]byte{keyMember, keyTime, keyOf, keyDead}[round%4]
		from := 1 + random.IntN(keyBytes-1) // bytes from here on vary
		key := func() []byte {
			k := slices.Clone(common)
			for i := from; i < keyBytes; i++ {
				if random.IntN(3) == 0 {
					k[i] += byte(random.IntN(3))
				}
			}
			return k
		}
		var keys [][]byte
		for range 1 + random.IntN(5000) {
			keys = append(keys, key())
			if err := s.db.Set(keys[len(keys)-1], nil, pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		slices.SortFunc(keys, bytes.Compare)
		keys = slices.CompactFunc(keys, bytes.Equal)
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
		it, err := s.db.NewIter(nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for it.First(); it.Valid() && n < len(keys) && bytes.Equal(it.Key(), keys[n]); it.Next() {
			n++
		}
		if n < len(keys) || it.Valid() {
			t.Fatalf("round %d: key %d is % x, want %d keys", round, n, it.Key(), len(keys))
		}
		for range 2000 {
			sought := key()
			switch i := 1 + random.IntN(keyBytes-1); random.IntN(4) {
			case 0:
				sought = sought[:i]
			case 1:
				sought = append(sought, 0)
			case 2:
				sought[i]++
			}
			want, _ := slices.BinarySearchFunc(keys, sought, bytes.Compare)
			if found := it.SeekGE(sought); found != (want < len(keys)) || found && !bytes.Equal(it.Key(), keys[want]) {
				t.Fatalf("round %d: a seek from % x found %v, % x", round, sought, found, it.Key())
			}
			if found := it.SeekLT(sought); found != (want > 0) || found && !bytes.Equal(it.Key(), keys[want-1]) {
				t.Fatalf("round %d: a seek before % x found %v, % x", round, sought, found, it.Key())
			}
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func randomBytes(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}
