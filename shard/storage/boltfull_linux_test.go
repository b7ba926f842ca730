package storage

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/raftstore"
)

// A bolt file is repeatedly on a full disk. It stores no refused change, and the same change
// succeeds once there is space. The file reopens with every stored change.
func TestBoltFileOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("mounts a small file system, which takes root: %v", err)
	}
	t.Cleanup(func() { mustDo(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	path, ballast := filepath.Join(dir, "raft.db"), filepath.Join(dir, "ballast")
	b, err := openBoltFile(path)
	mustDo(t, err)
	fill := func() {
		file, err := os.Create(ballast)
		mustDo(t, err)
		for size := 1 << 20; size >= 1<<9; {
			if _, err := file.Write(make([]byte, size)); err != nil {
				size /= 2
			}
		}
		mustDo(t, file.Close())
	}
	refused := map[string]int{}
	// try repeats a change on a full disk until it is refused, at most triesMax times. Then it
	// makes the change once with space.
	try := func(what string, triesMax int, change func() error) {
		fill()
		for range triesMax {
			before, beforeErr := b.LastIndex()
			err := change()
			after, afterErr := b.LastIndex()
			mustDo(t, errors.Join(beforeErr, afterErr))
			if err == nil {
				continue
			}
			if !errors.Is(err, raftstore.ErrNoSegment) || before != after {
				t.Fatalf("%s: %v, the log ended at %d and ends at %d", what, err, before, after)
			}
			refused[what]++
			break
		}
		mustDo(t, os.Remove(ballast))
		mustDo(t, change())
	}
	next, value := uint64(1), []byte("term")
	for round := range 20 {
		try("store", 1000, func() error {
			var entries []*raft.Log
			for i := range uint64(1 + round%4) {
				entries = append(entries, &raft.Log{Index: next + i, Term: 1, Data: make([]byte, 5000*(1+round%2))})
			}
			err := b.StoreLogs(entries)
			if err == nil {
				next += uint64(len(entries))
			}
			return err
		})
		try("set", 1000, func() error {
			value = append(value, make([]byte, 10000)...)
			return b.Set(keyTerm, value)
		})
		first, err := b.FirstIndex()
		mustDo(t, err)
		try("delete", 1, func() error { return b.DeleteRange(first, next-2) })
		value = value[:8]
		mustDo(t, errors.Join(b.Set(keyTerm, value), b.Close()))
		b, err = openBoltFile(path)
		mustDo(t, err)
		if last, err := b.LastIndex(); err != nil || last != next-1 {
			t.Fatalf("opened with entries to %d, want %d, %v", last, next-1, err)
		}
		if got, err := b.Get(keyTerm); err != nil || len(got) != 8 {
			t.Fatalf("opened with a term of %d bytes, %v", len(got), err)
		}
	}
	mustDo(t, b.Close())
	if refused["store"] < 15 || refused["set"] < 15 {
		t.Errorf("refused %v", refused)
	}
	t.Logf("refused %v", refused)
}
