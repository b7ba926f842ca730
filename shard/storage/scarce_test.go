package storage

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
)

// fullStores refuses a number of changes, as if it could open no file for them.
type fullStores struct {
	Stores
	refuse int
}

func (s *fullStores) full() error {
	if s.refuse == 0 {
		return nil
	}
	s.refuse--
	return raftstore.NoSegment(syscall.ENOSPC)
}

func (s *fullStores) StoreLogs(entries []*raft.Log) error {
	if err := s.full(); err != nil {
		return err
	}
	return s.Stores.StoreLogs(entries)
}

func (s *fullStores) DeleteRange(first, last uint64) error {
	if err := s.full(); err != nil {
		return err
	}
	return s.Stores.DeleteRange(first, last)
}

func (s *fullStores) Set(key, value []byte) error {
	if err := s.full(); err != nil {
		return err
	}
	return s.Stores.Set(key, value)
}

// While the log can open no file for a change:
//
//  1. The log refuses entries, and the group continues.
//  2. A vote, a deletion, and entries after a deletion wait, because raft continues without checking
//     the result. A configuration waits for as long as Unstored decides.
//  3. Interrupt ends a wait, even where raft would panic because of the error. Nothing is stored or
//     read afterwards.
//  4. The watchdog does not stop the group because of a wait, and reports entries that wait.
func TestWritesWithoutAFile(t *testing.T) {
	waits := 0
	stop := NewFailStop(func(err error) { t.Error(err) }, func(error) { waits++ })
	mustDo(t, stop.Arm())
	b := &fullStores{Stores: mustOpenStores(t, LogStoreShared, t.TempDir())}
	l, votes := NewLog(b, 7, "log", 1<<40, stop), NewVotes(b, 7, "log", stop)
	done := make(chan struct{})
	defer close(done)
	var hung atomic.Bool
	// The two waits of a change together take longer than the watchdog allows a write.
	go WatchStalls(800*time.Millisecond, l, votes, new(StallGauge), stop, func(storing, _ Hang) {
		if storing.Hangs {
			hung.Store(true)
		}
	}, done)
	entries := func(first, n uint64) (all []*raft.Log) {
		for i := range n {
			all = append(all, &raft.Log{Index: first + i, Term: 1, Data: []byte("x")})
		}
		return all
	}
	mustDo(t, l.StoreLogs(entries(1, 10)))
	b.refuse = 1
	if err := l.StoreLogs(entries(11, 5)); !errors.Is(err, raftstore.ErrNoSegment) {
		t.Errorf("stored with %v", err)
	}
	mustDo(t, l.StoreLogs(entries(11, 5)))
	for what, change := range map[string]func() error{
		"deletion": func() error { return l.DeleteRange(1, 2) },
		"term":     func() error { return votes.SetTerm(5) },
		"entries after a deletion": func() error {
			refuse := b.refuse
			b.refuse = 0
			last, err := l.LastIndex()
			mustDo(t, errors.Join(err, l.DeleteRange(14, last)))
			b.refuse = refuse
			return l.StoreLogs(entries(14, 2))
		},
		"a configuration": func() error {
			last, err := l.LastIndex()
			mustDo(t, err)
			all := []*raft.Log{{Index: last + 1, Term: 1, Type: raft.LogConfiguration}}
			refuse := b.refuse
			for _, unstored := range []func(error) error{nil, func(error) error { return errs.ErrGroupClosed }} {
				b.refuse, l.Unstored = 1, unstored
				if err := l.StoreLogs(all); unstored == nil && !errors.Is(err, raftstore.ErrNoSegment) || unstored != nil && !errors.Is(err, errMaybeStored) {
					t.Errorf("a configuration was stored with %v", err)
				}
			}
			b.refuse, l.Unstored = refuse, stop.Wait
			return l.StoreLogs(all)
		},
	} {
		b.refuse, waits = 2, 0
		hung.Store(false)
		if err := change(); err != nil || waits != 2 {
			t.Errorf("%s: %v after %d waits", what, err, waits)
		}
		if entries := what == "a configuration" || what == "entries after a deletion"; hung.Load() != entries {
			t.Errorf("%s: told that entries wait: %v", what, !entries)
		}
	}
	if last, err := l.LastIndex(); err != nil || last != 15 && last != 16 {
		t.Errorf("the last entry is %d, %v", last, err)
	}
	b.refuse = 1 << 30
	ended := make(chan struct{})
	go func() { // the goroutine ends, because raft would panic
		defer close(ended)
		_ = NewEndingVotes(votes, stop).SetUint64(keyTerm, 6)
		t.Error("the term was stored")
	}()
	must.Become(t, "the term waits", stop.Waits)
	stop.Disarm()
	stop.Interrupt()
	<-ended
	if err := l.StoreLogs(nil); !errors.Is(err, errs.ErrGroupClosed) || !errors.Is(stop.Failure(), errs.ErrGroupClosed) {
		t.Errorf("stored with %v, failed with %v", err, stop.Failure())
	}
}

// A long StoreLogs writes several batches to the log. If the log can open no file for one of them,
// the call is refused with nothing stored, or it waits and stores everything. The caller may repeat
// a refused call.
func TestLongAppendWithoutAFile(t *testing.T) {
	var refused, waited int
	for files := 0; ; files++ {
		var left atomic.Int64 // number of files that can still be opened, by the test or by the log's own goroutine
		left.Store(1 << 30)
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind != errorfs.OpOpen {
				return nil
			}
			if left.Add(-1) < 0 {
				return syscall.ENOSPC
			}
			return nil
		}))
		node, err := raftstore.Open("log", raftstore.Options{FS: fs})
		mustDo(t, err)
		stores, err := OpenStores(Config{Dir: t.TempDir(), LogStore: LogStoreShared, NodeLog: node})
		mustDo(t, err)
		waits := 0
		l := NewLog(stores, 7, "log", 1<<40, NewFailStop(func(err error) { t.Error(err) }, func(error) { waits++; left.Store(1 << 30) }))
		mustDo(t, l.stop.Arm())
		var all []*raft.Log
		for i := range uint64(64) {
			all = append(all, &raft.Log{Index: 1 + i, Term: 1, Data: make([]byte, 200<<10)})
		}
		left.Store(int64(files))
		err = l.StoreLogs(all)
		last, lastErr := l.LastIndex()
		mustDo(t, lastErr)
		switch {
		case errors.Is(err, raftstore.ErrNoSegment) && last == 0 && waits == 0:
			refused++
			left.Store(1 << 30)
			mustDo(t, l.StoreLogs(all))
		case err != nil || last != 64:
			t.Fatalf("with %d files: stored up to %d, %v", files, last, err)
		}
		whole := left.Load() > 0 && left.Load() < 1<<20
		if waits > 0 {
			waited++
		}
		mustDo(t, node.Close())
		if whole {
			break
		}
	}
	if refused == 0 || waited == 0 {
		t.Errorf("%d calls were refused, %d have waited", refused, waited)
	}
}
