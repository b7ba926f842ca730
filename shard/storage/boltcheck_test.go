package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// fillBolt creates a bolt file and fills it as fillStores does.
func fillBolt(t *testing.T, path string, n uint64) {
	t.Helper()
	b := mustOpenBolt(t, path)
	defer b.Close()
	fillStores(t, b, n)
}

// fillStores writes a log of at least n entries of mixed sizes.
func fillStores(t *testing.T, stores Stores, n uint64) {
	t.Helper()
	stop := noFatal(t)
	l := NewLog(stores, 7, "log", 1<<40, stop)
	random := rand.New(rand.NewPCG(1, n))
	for i := uint64(1); i <= n; {
		var batch []*raft.Log
		for range 1 + random.IntN(40) {
			batch = append(batch, testEntry(i, string(make([]byte, random.IntN(3000)))))
			i++
		}
		if err := l.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := NewVotes(stores, 7, "log", stop).SetUint64(keyTerm, 3); err != nil {
		t.Fatal(err)
	}
}

// Compaction deletes ranges of entries with a bolt cursor. It must leave no gap, because the next
// start would refuse the log.
func TestDeletedRangesLeaveNoGap(t *testing.T) { eachStore(t, testDeletedRangesLeaveNoGap) }

func testDeletedRangesLeaveNoGap(t *testing.T, store LogStore) {
	dir := t.TempDir()
	b := mustOpenStores(t, store, dir)
	fillStores(t, b, 3000)
	b.Close()
	for _, cut := range [][2]uint64{{1, 1}, {2, 900}, {901, 2000}, {2990, 4000}} {
		b := mustOpenStores(t, store, dir)
		l := NewLog(b, 7, "log", 1<<30, noFatal(t))
		if err := l.DeleteRange(cut[0], cut[1]); err != nil {
			t.Fatal(err)
		}
		var e raft.Log
		for i := cut[0]; i <= cut[1]; i++ {
			if err := l.GetLog(i, &e); !errors.Is(err, raft.ErrLogNotFound) {
				t.Fatalf("entry %d of %v: %v", i, cut, err)
			}
		}
		b.Close()
		b = mustOpenStores(t, store, dir)
		first, err := b.FirstIndex()
		if err != nil || cut[0] < 2990 && first != cut[1]+1 {
			t.Fatalf("after %v the log begins at %d, %v", cut, first, err)
		}
		b.Close()
	}
}

func TestTornBoltFileIsRefused(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "raft.db")
	fillBolt(t, whole, 400)
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	for _, test := range []struct {
		name string
		file []byte
	}{
		{"one byte", content[:1]},
		{"half a page", content[:page/2]},
		{"one page", content[:page]},
		{"four pages", content[:4*page]},
		{"half", content[:len(content)/2]},
		{"zeros", make([]byte, len(content))},
		{"another file", bytes.Repeat([]byte("not bolt "), page)},
		{"first meta", changed(content, 16+40)},
		{"second meta", changed(content, page+16+48)},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "raft.db")
			if err := os.WriteFile(path, test.file, 0o600); err != nil {
				t.Fatal(err)
			}
			b, err := openBoltFile(path)
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("error %v", err)
			}
			if err == nil {
				b.Close()
			}
		})
	}
}

// After random damage anywhere in the file, a start or a read of the whole log refuses the file, or
// all entries are unchanged.
func TestDamagedBoltFileNeverReadsWrong(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "raft.db")
	fillBolt(t, whole, 60)
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(7, 7))
	refused := 0
	for round := range 300 {
		at := random.IntN(len(content))
		damaged := bytes.Clone(content)
		damaged[at] ^= 1 << random.IntN(8)
		if round%3 == 0 { // also zero the whole page, like a page that was never written
			at -= at % os.Getpagesize()
			copy(damaged[at:], make([]byte, os.Getpagesize()))
		}
		path := filepath.Join(dir, fmt.Sprint(round))
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := readWhole(t, path); err != nil {
			refused++
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("byte %d: %v", at, err)
			}
		}
		os.Remove(path)
	}
	if refused < 30 {
		t.Errorf("%d of 300 refused", refused)
	}
}

// readWhole opens a log of fillBolt and fails the test if an entry differs.
func readWhole(t *testing.T, path string) error {
	b, err := openBoltFile(path)
	if err != nil {
		return err
	}
	defer b.Close()
	stop := NewFailStop(func(error) {}, func(error) {})
	l := NewLog(b, 7, path, 1<<40, stop)
	snaps, err := OpenSnapshots(t.TempDir(), 7, hclog.NewNullLogger(), stop)
	if err != nil {
		t.Fatal(err)
	}
	if err := Recover(l, snaps, NewVotes(b, 7, path, stop)); err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err == nil && last < 60 {
		t.Errorf("the log ends at %d", last)
	}
	return err
}

// The fuzzed bytes are patches of a whole file, 4 bytes each: a position (3 bytes) and a value. Few
// patches hit the meta pages. If one does, the check fails at that page's checksum and tests
// nothing else.
func FuzzCheckBolt(f *testing.F) {
	path := filepath.Join(f.TempDir(), "raft.db")
	b, err := openBoltFile(path)
	if err != nil {
		f.Fatal(err)
	}
	for index := range uint64(40) {
		if err := b.StoreLog(testEntry(index+1, string(make([]byte, 300)))); err != nil {
			f.Fatal(err)
		}
	}
	b.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{})
	for page := range len(whole) / os.Getpagesize() { // flags, count, overflow, first element
		at := page * os.Getpagesize()
		for _, offset := range []int{8, 10, 12, 16, 20, 24, 28} {
			f.Add([]byte{byte((at + offset) >> 16), byte((at + offset) >> 8), byte(at + offset), 0xff})
		}
	}
	f.Fuzz(func(t *testing.T, patches []byte) {
		content := bytes.Clone(whole)
		for ; len(patches) >= 4; patches = patches[4:] {
			at := int(patches[0])<<16 | int(patches[1])<<8 | int(patches[2])
			content[at%len(content)] = patches[3]
		}
		err := checkBolt(bytes.NewReader(content), int64(len(content)))
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("error %v", err)
		}
		if bytes.Equal(content, whole) && err != nil {
			t.Errorf("a whole file: %v", err)
		}
	})
}
