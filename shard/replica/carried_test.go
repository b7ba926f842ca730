package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
)

// withMembers is a counter shard with member sets and a single replica.
type withMembers struct {
	*testing.T
	*Replica
	store  *members.Store
	dir    string // directory of store
	sets   *members.Group
	next   uint64       // number of the next member to join
	noRoom error        // the error that Config.Room returns; nil for none
	open   atomic.Int64 // number of stored snapshots that are open
	lossy  atomic.Bool  // damage is expected
	damage atomic.Int64 // how often damage was noted
}

// countedFile is the open file of a snapshot. Close counts it as closed.
type countedFile struct {
	io.ReadCloser
	open *atomic.Int64
}

func (f countedFile) Close() error {
	f.open.Add(-1)
	return f.ReadCloser.Close()
}

// openWithMembers opens a replica. It calls hook when a snapshot has been written, and before and
// after a snapshot's file is opened.
func openWithMembers(t *testing.T, hook func(w *withMembers)) *withMembers {
	t.Helper()
	w := &withMembers{T: t, dir: t.TempDir()}
	var err error
	w.store, err = members.Open(members.Config{Dir: w.dir, MemoryBytes: members.MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, w.store.Close()) })
	w.sets, err = w.store.Group(7)
	mustDo(t, err)
	fsm := counters.New(raftfsm.Places{Members: w.sets})
	t.Cleanup(fsm.Close)
	cfg := testConfig(t, testMux(t), "n1")
	cfg.FSM, cfg.Members, cfg.Initial = fsm, w.sets, aloneIn(cfg)
	cfg.ColdDamaged = func(err error) {
		if w.damage.Add(1); !w.lossy.Load() {
			t.Errorf("taken for damage: %v", err)
		}
	}
	cfg.Room = func(uint64) (func(), error) { return func() { hook(w) }, w.noRoom }
	w.Replica = mustOpen(t, cfg)
	w.snapshotter.openStored = func(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
		hook(w)
		defer hook(w)
		meta, state, err := w.snaps.Open(id)
		if err != nil {
			return nil, nil, err
		}
		w.open.Add(1)
		return meta, countedFile{state, &w.open}, nil
	}
	mustBeReady(t, w.Replica)
	w.join()
	return w
}

func (w *withMembers) join() {
	w.Helper()
	w.joinMany(1)
}

// joinMany adds n more members to a row, in one entry.
func (w *withMembers) joinMany(n uint64) {
	w.Helper()
	mustDo(w.T, w.Apply(joinEntry(time.Now(), w.next, n)).Error())
	w.next += n
}

// joinEntry returns an entry that adds the members first to first+n-1 to a set.
func joinEntry(now time.Time, first, n uint64) []byte {
	var all [][2]uint64
	for member := first; member < first+n; member++ {
		all = append(all, [2]uint64{1, member})
	}
	return joinsEntry(now, codec.Whole, all)
}

// joinsEntry returns an entry that adds members, each after its row. It contains a clock
// (raftfsm/dedup/limits.go), then a request with an op for each member (raftfsm/counters/op.go).
func joinsEntry(now time.Time, route codec.Route, members [][2]uint64) []byte {
	le, minute := binary.LittleEndian, uint64(time.Minute.Milliseconds())
	b := append(codec.BeginEntry(nil, codec.KindCounters, 1), codec.SectionClock, codec.ClockSize, 0, 0, 0)
	b = le.AppendUint64(b, uint64(now.UnixMilli()))
	b = le.AppendUint64(le.AppendUint64(b, minute), minute) // horizons of keys and of producers
	b = le.AppendUint32(le.AppendUint32(b, 1), 1)           // maximal numbers of keys and of producers
	const join, column, opBytes = 8, 0, 1 + 8 + 1 + 8
	b = le.AppendUint32(append(b, codec.SectionRequest), uint32(2+len(members)*opBytes))
	b = route.AppendTo(b)
	for _, m := range members {
		b = le.AppendUint64(append(b, join), m[0])
		b = le.AppendUint64(append(b, column), m[1])
	}
	return codec.AppendChecksum(b)
}

// visit reads a snapshot to its end.
func (w *withMembers) visit(s io.ReadCloser) raftfsm.SnapshotFacts {
	w.Helper()
	facts, err := kinds.All.VisitSnapshot(s, codec.KindCounters, codec.Whole, raftfsm.SnapshotVisitor{})
	mustDo(w.T, errors.Join(err, s.Close()))
	return facts
}

// replaceSnapshots applies entries and takes snapshots until none of the present snapshots is kept.
// It does nothing while another goroutine takes a snapshot.
func (w *withMembers) replaceSnapshots() {
	w.Helper()
	if !w.freeSnapshots() {
		return
	}
	for range 3 {
		w.join()
		mustDo(w.T, w.snapshotter.Take())
	}
}

// outdate calls replaceSnapshots and adds members. It also releases the views that are not held, as
// the node does after a minute.
func (w *withMembers) outdate() {
	w.Helper()
	w.replaceSnapshots()
	w.join()
	w.sets.ReleaseViews(time.Now())
}

// 1. A backup has the sets as of its log index. It succeeds at the first attempt, although members
// and snapshots are added while it is written and opened. 2. The backup can be read after more
// snapshots. 3. None of this counts as damage.
func TestBackupKeepsItsSets(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, (*withMembers).outdate)
	for range 3 {
		s, err := w.snapshotter.Open(t.Context(), codec.KindCounters, codec.Whole)
		mustDo(t, err)
		w.replaceSnapshots()
		if facts := w.visit(s); facts.Later || facts != s.SnapshotFacts {
			t.Errorf("the snapshot has %+v, and was checked to have %+v", facts, s.SnapshotFacts)
		}
	}
}

// A caller whose context ends while it waits for other snapshots stops waiting. No snapshot is
// taken for it, and the lock snapshotter.running stays free.
func TestSnapshotOfACallerThatLeft(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*withMembers, context.Context) error{
		"for a backup": func(w *withMembers, ctx context.Context) error {
			_, err := w.snapshotter.Open(ctx, codec.KindCounters, codec.Whole)
			return err
		},
		"for a repair": func(w *withMembers, ctx context.Context) error {
			_, _, err := w.snapshotter.OpenFrom(ctx, 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := openWithMembers(t, func(*withMembers) {})
			ctx, cancel := context.WithCancel(t.Context())
			opened := make(chan error, 1)
			mustDo(t, w.snapshotter.running.Acquire(t.Context(), 1))
			go func() { opened <- open(w, ctx) }()
			cancel()
			eventually(t, "it leaves", func() bool { return len(opened) > 0 })
			if err := <-opened; !errors.Is(err, context.Canceled) {
				t.Errorf("before its turn: %v", err)
			}
			w.snapshotter.running.Release(1)
			if err := open(w, ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("with nobody before it: %v", err)
			}
			if w.snaps.NewestIndex() > 0 {
				t.Errorf("there is a snapshot of entry %d", w.snaps.NewestIndex())
			}
			eventually(t, "others may be taken", w.freeSnapshots)
		})
	}
}

// freeSnapshots reports whether the lock snapshotter.running is free.
func (w *withMembers) freeSnapshots() bool {
	free := w.snapshotter.running.TryAcquire(1)
	if free {
		w.snapshotter.running.Release(1)
	}
	return free
}

// leaving is a context that ends at the first call of Done. That call returns nil, so its caller
// does not notice the end.
type leaving struct {
	context.Context
	leave context.CancelFunc
}

func (l leaving) Done() <-chan struct{} {
	if l.Context.Err() != nil {
		return l.Context.Done()
	}
	l.leave()
	return nil
}

// A backup that has begun is written and checked even if its context ends.
func TestBackupOutlivesItsDeadline(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, func(*withMembers) {})
	ctx, cancel := context.WithCancel(t.Context())
	s, err := w.snapshotter.Open(leaving{ctx, cancel}, codec.KindCounters, codec.Whole)
	mustDo(t, err)
	if ctx.Err() == nil {
		t.Error("the deadline has not passed")
	}
	if facts := w.visit(s); facts != s.SnapshotFacts {
		t.Errorf("the snapshot has %+v, want %+v", facts, s.SnapshotFacts)
	}
}

func TestCloseEndsABackup(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, func(*withMembers) {})
	stored, opened := w.snapshotter.openStored, 0
	w.snapshotter.openStored = func(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
		if opened++; opened == 2 { // the second reader is the one that is checked
			go func() { _ = w.Replica.Close(context.Background(), false) }()
			eventually(t, "the replica closes", w.Closing)
		}
		return stored(id)
	}
	if s, err := w.snapshotter.Open(t.Context(), codec.KindCounters, codec.Whole); !errors.Is(err, errs.ErrGroupClosed) {
		t.Errorf("the backup is %v, %v", s, err)
	}
	mustClose(t, w.Replica)
	if n := w.open.Load(); n != 0 {
		t.Errorf("%d snapshots are still open", n)
	}
}

// A repair can read its snapshot, whether it is new or was stored before, and although other
// snapshots are taken while it is opened.
func TestSnapshotFromKeepsItsSets(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, (*withMembers).outdate)
	mustDo(t, w.snapshotter.Take())
	for _, index := range []uint64{0, w.snaps.NewestIndex()} {
		meta, s, err := w.snapshotter.OpenFrom(t.Context(), index)
		mustDo(t, err)
		w.replaceSnapshots()
		if facts := w.visit(s); facts.Index != meta.Index {
			t.Errorf("the snapshot of entry %d has %+v", meta.Index, facts)
		}
	}
}

// Opening a snapshot that others have replaced returns members.ErrMovedOn, which does not count as
// damage.
func TestReplacedSnapshot(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, func(*withMembers) {})
	mustDo(t, w.snapshotter.Take())
	metas, err := w.snaps.List()
	mustDo(t, err)
	stored := w.snapshotter.openStored
	w.snapshotter.openStored = func(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
		meta, state, err := stored(id)
		w.replaceSnapshots()
		return meta, state, err
	}
	s, err := w.snapshotter.openCarried(metas[0].ID)
	if err == nil {
		mustDo(t, s.Close())
	}
	if !errors.Is(err, members.ErrMovedOn) || isDamage(err) {
		t.Errorf("opened with %v", err)
	}
	if n := w.open.Load(); n != 0 {
		t.Errorf("%d snapshots are still open", n)
	}
}

// breakSets overwrites the files of the sets. Data that Pebble has in memory stays readable.
func (w *withMembers) breakSets() {
	w.Helper()
	files, err := filepath.Glob(filepath.Join(w.dir, "*.sst"))
	mustDo(w.T, err)
	for _, name := range files {
		f, err := os.Stat(name)
		if !errors.Is(err, os.ErrNotExist) { // a compaction may have deleted the file
			mustDo(w.T, err)
			mustDo(w.T, os.WriteFile(name, make([]byte, f.Size()), 0o600))
		}
	}
}

// If raft cannot read all of a snapshot that it sends, the replica reports damage, even if other
// snapshots replace this one after it is open. If another snapshot, even of the same entry,
// replaced it earlier, the replica reports no damage, because the data may have been removed.
func TestDamageOfASentSnapshot(t *testing.T) {
	t.Parallel()
	lose := func(w *withMembers) {
		w.sets.ReleaseViews(time.Now())
		mustDo(w.T, w.store.Drop(7))
	}
	replace := func(w *withMembers) {
		w.join()
		mustDo(w.T, w.snapshotter.Take())
	}
	again := func(w *withMembers) { mustDo(w.T, w.snapshotter.Take()) }
	for name, tc := range map[string]struct {
		before, behind func(w *withMembers) // called before and after the snapshot is opened
		want           int64
	}{
		"the sets are lost":                             {before: lose, want: 1},
		"the sets are lost, behind others of its entry": {before: func(w *withMembers) { again(w); again(w); lose(w) }},
		"the files are broken":                          {want: 1},
		"the files are broken, and it is replaced":      {behind: (*withMembers).replaceSnapshots, want: 1},
		"the files are broken, and it was replaced":     {before: replace},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 20 { // until a run in which not all sets are in memory, so that the read fails
				noted, err := sendDamaged(t, tc.before, tc.behind)
				met, want := isDamage(err), int64(0)
				if met {
					want = tc.want
				}
				if !met && err != nil || noted != want {
					t.Errorf("noted %d times, want %d: %v", noted, want, err)
				}
				if met {
					return
				}
			}
			t.Error("no damage was met")
		})
	}
}

// sendDamaged opens a snapshot to send it, and then breaks the files of its sets. It returns how
// often damage was noted, and the error of the send. It calls beforeOpen before the snapshot is
// open, and afterOpen once everything is open, unless these are nil.
func sendDamaged(t *testing.T, beforeOpen, afterOpen func(w *withMembers)) (noted int64, err error) {
	t.Helper()
	w := openWithMembers(t, func(*withMembers) {})
	for range 20 { // more than fits a memtable and the blocks that are read ahead
		w.joinMany(1000)
	}
	mustDo(t, w.snapshotter.Take())
	metas, err := w.snaps.List()
	mustDo(t, err)
	meta, state, err := w.snaps.Open(metas[0].ID)
	mustDo(t, err)
	defer state.Close()
	if beforeOpen != nil {
		beforeOpen(w)
	}
	w.lossy.Store(true)
	c, err := w.snapshotter.carry(meta.ID, state)
	if err == nil {
		defer c.Close()
		if afterOpen != nil {
			afterOpen(w)
		}
		w.breakSets()
		_, err = io.Copy(io.Discard, c)
	}
	return w.damage.Load(), err
}

// After a backup has ended or failed, no snapshot is open, the lock snapshotter.running is free,
// and the views of sets are not held.
func TestBackupLeavesNothing(t *testing.T) {
	t.Parallel()
	errGone := errors.New("gone")
	// at returns a function that changes w.snapshotter: do then replaces the reader of the nth
	// stored snapshot that is opened.
	at := func(nth int, do func(io.ReadCloser) (io.ReadCloser, error)) func(*withMembers) {
		return func(w *withMembers) {
			stored, calls := w.snapshotter.openStored, 0
			w.snapshotter.openStored = func(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
				meta, state, err := stored(id)
				if calls++; err == nil && calls == nth {
					state, err = do(state)
				}
				return meta, state, err
			}
		}
	}
	gone := func(state io.ReadCloser) (io.ReadCloser, error) {
		return nil, errors.Join(errGone, state.Close())
	}
	empty := func(state io.ReadCloser) (io.ReadCloser, error) {
		_, err := io.Copy(io.Discard, state)
		return state, err
	}
	checkFails := func(state io.ReadCloser) (io.ReadCloser, error) { return unclosable{state, errGone}, nil }
	for name, tc := range map[string]struct {
		cause func(w *withMembers)
		fails bool
	}{
		"nothing fails":                      {func(*withMembers) {}, false},
		"there is no room for a snapshot":    {func(w *withMembers) { w.noRoom = ErrNoRoom }, true},
		"the first file cannot be opened":    {at(1, gone), true},
		"the second file cannot be opened":   {at(2, gone), true},
		"the first snapshot cannot be read":  {at(1, empty), true},
		"the second snapshot cannot be read": {at(2, empty), true},
		"the check fails":                    {at(2, checkFails), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := openWithMembers(t, func(*withMembers) {})
			stored := w.snapshotter.openStored
			tc.cause(w)
			s, err := w.snapshotter.Open(t.Context(), codec.KindCounters, codec.Whole)
			if (err != nil) != tc.fails {
				t.Fatalf("opened with %v", err)
			}
			if err == nil {
				mustDo(t, s.Close())
			}
			w.noRoom, w.snapshotter.openStored = nil, stored
			if n := w.open.Load(); n != 0 {
				t.Errorf("%d snapshots are still open", n)
			}
			if !w.freeSnapshots() {
				t.Fatal("no other snapshot may be taken")
			}
			w.viewsAreReleased()
		})
	}
}

// unclosable is a file whose Close fails.
type unclosable struct {
	io.ReadCloser
	err error
}

func (f unclosable) Close() error { return errors.Join(f.err, f.ReadCloser.Close()) }

// viewsAreReleased checks that nobody holds the views of sets.
func (w *withMembers) viewsAreReleased() {
	w.Helper()
	mustDo(w.T, w.snapshotter.Take())
	named := w.sets.State()
	w.join()
	w.sets.ReleaseViews(time.Now())
	v, err := w.sets.OpenView(named)
	mustDo(w.T, err)
	defer v.Close()
	if v.State() == named {
		w.Error("the views of sets are still held")
	}
}

// A replica that is closed opens no snapshot: its directory may be deleted, or belong to another
// replica.
func TestSnapshotFromAClosedReplica(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, func(*withMembers) {})
	mustDo(t, w.snapshotter.Take())
	mustClose(t, w.Replica)
	_, s, err := w.snapshotter.OpenFrom(t.Context(), w.snaps.NewestIndex())
	if err == nil {
		mustDo(t, s.Close())
	}
	if !errors.Is(err, errs.ErrGroupClosed) {
		t.Errorf("opened with %v", err)
	}
}
