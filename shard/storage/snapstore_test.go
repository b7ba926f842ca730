package storage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

func mustOpenSnaps(t *testing.T, dir string) *Snapshots {
	t.Helper()
	s, err := OpenSnapshots(dir, 7, hclog.NewNullLogger(), noFatal(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var testServers = raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "127.0.0.1:1"}, {Suffrage: raft.Nonvoter, ID: "n2", Address: "b:2"}}}

func mustSnapshot(t *testing.T, s *Snapshots, index uint64, state string) string {
	t.Helper()
	_, trans := raft.NewInmemTransport("n1")
	sink, err := s.Create(1, index, 2, testServers, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write([]byte(state)); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return sink.ID()
}

func readSnapshot(s *Snapshots, id string) (*raft.SnapshotMeta, string, error) {
	meta, state, err := s.Open(id)
	if err != nil {
		return nil, "", err
	}
	defer state.Close()
	b := make([]byte, meta.Size+1)
	n := 0
	for {
		m, err := state.Read(b[n:])
		n += m
		if err != nil {
			return meta, string(b[:n]), nil
		}
	}
}

func TestSnapshotsGiveBackWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	s := mustOpenSnaps(t, dir)
	for i, state := range []string{"one", "", "three"} {
		id := mustSnapshot(t, s, uint64(10+i), state)
		for _, s := range []*Snapshots{s, mustOpenSnaps(t, dir)} {
			meta, got, err := readSnapshot(s, id)
			if err != nil || got != state || meta.Size != int64(len(state)) {
				t.Errorf("%q: %+v, %q, %v", state, meta, got, err)
			}
			if s.NewestIndex() != uint64(10+i) {
				t.Errorf("newest %d", s.NewestIndex())
			}
		}
	}
	metas, err := s.List()
	if err != nil || len(metas) != 1 || metas[0].Index != 12 || metas[0].Size != 5 || !slices.Equal(metas[0].Configuration.Servers, testServers.Servers) {
		t.Errorf("list %v, %v", metas, err)
	}
	if names, err := s.Names(); err != nil || len(names) != snapshotsKept || s.OldestIndex() != 11 {
		t.Errorf("names %v, %v", names, err)
	}
}

// If two snapshots are written concurrently, the one with the later index is the newest, even if it
// finishes first.
func TestOlderSnapshotEndsLast(t *testing.T) {
	s := mustOpenSnaps(t, t.TempDir())
	_, trans := raft.NewInmemTransport("n1")
	older, err := s.Create(1, 10, 2, testServers, 1, trans)
	mustDo(t, err)
	mustSnapshot(t, s, 12, "newer")
	mustDo(t, older.Close())
	if index, bytes := s.NewestIndex(), s.NewestBytes(); index != 12 || bytes != 5 {
		t.Errorf("the newest is of %d, %d bytes", index, bytes)
	}
}

// Of several snapshots with the same log index, the last one is the newest, even if the clock was
// set back.
func TestSnapshotsOfOneEntry(t *testing.T) {
	dir := t.TempDir()
	s := mustOpenSnaps(t, dir)
	for i := range 20 {
		state := fmt.Sprint("state ", i)
		id := mustSnapshot(t, s, 10, state)
		if i%3 == 0 {
			s = mustOpenSnaps(t, dir)
		}
		if _, got, err := readSnapshot(s, id); err != nil || got != state || !s.IsNewest(id) {
			t.Fatalf("%s: %q, %v; the newest is %v", id, got, err, s.newest.Load())
		}
	}
}

func TestUnfinishedSnapshotsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := mustOpenSnaps(t, dir)
	mustSnapshot(t, s, 10, "whole")
	_, trans := raft.NewInmemTransport("n1")
	if _, err := s.Create(1, 11, 2, testServers, 1, trans); err != nil {
		t.Fatal(err)
	}
	s = mustOpenSnaps(t, dir)
	if s.NewestIndex() != 10 {
		t.Errorf("newest %d", s.NewestIndex())
	}
	entries, err := os.ReadDir(filepath.Join(dir, snapshotsDir))
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestCancelledSnapshotIsNoFailure(t *testing.T) {
	s := mustOpenSnaps(t, t.TempDir())
	_, trans := raft.NewInmemTransport("n1")
	sink, err := s.Create(1, 11, 2, testServers, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sink.Cancel(), sink.Close()); err != nil {
		t.Error(err)
	}
	if metas, err := s.List(); err != nil || len(metas) != 0 {
		t.Errorf("list %v, %v", metas, err)
	}
}

func TestFailedSinkStopsTheGroup(t *testing.T) {
	dir := t.TempDir()
	stop, told := countFatal(t)
	s, err := OpenSnapshots(dir, 7, hclog.NewNullLogger(), stop)
	if err != nil {
		t.Fatal(err)
	}
	_, trans := raft.NewInmemTransport("n1")
	sink, err := s.Create(1, 11, 2, testServers, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, snapshotsDir)); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err == nil || *told != 1 {
		t.Errorf("%v, told %d times", err, *told)
	}
	if _, err := s.Create(1, 12, 2, testServers, 1, trans); err == nil {
		t.Error("another snapshot was begun")
	}
}

// After a crash between the storing of a leader's snapshot and raft's deletion of the older log,
// the log is deleted.
func TestLogReplacedByASnapshotIsDropped(t *testing.T) {
	eachStore(t, testLogReplacedByASnapshotIsDropped)
}

func testLogReplacedByASnapshotIsDropped(t *testing.T, store LogStore) {
	for _, test := range []struct {
		name     string
		index    uint64
		term     uint64
		lastLeft uint64
	}{
		{"the log ends before the snapshot", 500, 5, 0},
		{"the log has another history", 30, 5, 0},
		{"the log leads on from the snapshot", 30, 3, 60},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			b := mustOpenStores(t, store, dir)
			fillStores(t, b, 60)
			l := NewLog(b, 7, "log", 1<<40, noFatal(t))
			last, err := l.LastIndex()
			mustDo(t, err)
			if test.lastLeft > 0 {
				test.lastLeft = last
			}
			stable := NewVotes(b, 7, "log", noFatal(t))
			mustDo(t, stable.SetUint64(keyTerm, 9))
			s := mustOpenSnaps(t, dir)
			_, trans := raft.NewInmemTransport("n1")
			sink, err := s.Create(1, test.index, test.term, testServers, 1, trans)
			mustDo(t, err)
			mustDo(t, sink.Close())
			mustDo(t, Recover(l, s, stable))
			if last, err := l.LastIndex(); err != nil || last != test.lastLeft {
				t.Errorf("the log ends at %d, %v, want %d", last, err, test.lastLeft)
			}
		})
	}
}

func FuzzParseSnapName(f *testing.F) {
	f.Add("2-10-17")
	f.Add("2-10")
	f.Add("+2--1-3")
	f.Add("02-1-3")
	f.Fuzz(func(t *testing.T, name string) {
		n, err := parseSnapName(name)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("error %v", err)
		}
		if err == nil && n.String() != name {
			t.Errorf("%q is %v", name, n)
		}
	})
}

func FuzzReadSnapHead(f *testing.F) {
	meta := &raft.SnapshotMeta{Index: 10, Term: 2, ConfigurationIndex: 1, Configuration: testServers}
	f.Add(appendSnapHead(nil, meta))
	f.Add(appendSnapHead(nil, &raft.SnapshotMeta{Index: 10, Term: 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readSnapHead(bytes.NewReader(b), snapName{10, 2, 1}, 1<<20)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("error %v", err)
		}
		if err == nil && !bytes.HasPrefix(b, appendSnapHead(nil, got)) {
			t.Errorf("%x is %v", b, got)
		}
	})
}

// Concurrent calls of Open check a snapshot once.
func TestOpensShareACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		held := make(chan struct{})
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileReadAt && reads.Add(1) > 0 && op.Offset > snapBufferBytes {
				<-held
			}
			return nil
		}))
		s, err := openSnapshots(fs, "n1", 1, hclog.NewNullLogger(), noFatal(t))
		if err != nil {
			t.Fatal(err)
		}
		state := strings.Repeat("x", 10*snapBufferBytes)
		id := mustSnapshot(t, s, 1, state)
		open := func() {
			if _, got, err := readSnapshot(s, id); err != nil || got != state {
				t.Errorf("%d bytes are read of %d: %v", len(got), len(state), err)
			}
		}
		reads.Store(0)
		for range 4 {
			go open()
		}
		synctest.Wait() // one call checks, the others wait for it
		if n := reads.Load(); n > 4*2+3 {
			t.Errorf("%d reads", n)
		}
		close(held)
		synctest.Wait()
	})
}
