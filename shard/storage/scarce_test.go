package storage

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
)

// fullStores has no file for the next changes.
type fullStores struct {
	Stores
	refuse int
}

func (s *fullStores) full() error {
	if s.refuse == 0 {
		return nil
	}
	s.refuse--
	return fmt.Errorf("%w: %w", raftstore.ErrNoSegment, syscall.ENOSPC)
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

// While the log has no file for what is to be written:
//
//  1. Entries are refused, and the group goes on.
//  2. A vote, a deletion, a configuration, and entries in the place of deleted ones wait: raft goes
//     on without looking at what was stored.
//  3. Interrupt ends a wait, also one whose error raft would end the process for, and nothing is
//     stored or read from then on.
//  4. The watchdog does not stop the group for a wait, and tells of entries that wait.
func TestWritesWithoutAFile(t *testing.T) {
	waits := 0
	stop := NewFailStop(func(err error) { t.Error(err) }, func(error) { waits++ })
	mustDo(t, stop.Arm())
	b := &fullStores{Stores: mustOpenStores(t, LogStoreShared, t.TempDir())}
	l, votes := NewLog(b, 7, "log", 1<<40, stop), NewVotes(b, 7, "log", stop)
	done := make(chan struct{})
	defer close(done)
	var hung atomic.Bool
	go WatchStalls(100*time.Millisecond, l, votes, stop, func(hangs bool) {
		if hangs {
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
			return l.StoreLogs([]*raft.Log{{Index: last + 1, Term: 1}, {Index: last + 2, Term: 1, Type: raft.LogConfiguration}})
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
	if last, err := l.LastIndex(); err != nil || last != 15 && last != 17 {
		t.Errorf("the last entry is %d, %v", last, err)
	}
	b.refuse = 1 << 30
	ended := make(chan struct{})
	go func() { // the goroutine ends, as raft would panic
		defer close(ended)
		_ = NewEndingVotes(votes, stop).SetUint64(keyTerm, 6)
		t.Error("the term was stored")
	}()
	time.Sleep(50 * time.Millisecond)
	stop.Disarm()
	stop.Interrupt()
	<-ended
	if err := l.StoreLogs(nil); !errors.Is(err, errs.ErrGroupClosed) || !errors.Is(stop.Failure(), errs.ErrGroupClosed) {
		t.Errorf("stored with %v, failed with %v", err, stop.Failure())
	}
}
