package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// withMembers is a leader alone with a shard of counters that has sets of members.
type withMembers struct {
	*testing.T
	*Replica
	sets *members.Group
	next uint64 // the member that joins next
}

// openWithMembers opens a replica. It calls meanwhile when a snapshot is written, and before
// and after the file of one is opened.
func openWithMembers(t *testing.T, meanwhile func(w *withMembers)) *withMembers {
	t.Helper()
	store, err := members.Open(members.Config{Dir: t.TempDir(), MemoryBytes: members.MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, store.Close()) })
	w := &withMembers{T: t}
	w.sets, err = store.Group(7)
	mustDo(t, err)
	fsm := raftfsm.NewCountersOver(raftfsm.Tiers{Members: w.sets})
	t.Cleanup(fsm.Close)
	cfg := testConfig(t, testMux(t), "n1")
	cfg.FSM, cfg.Members, cfg.Initial = fsm, w.sets, aloneIn(cfg)
	cfg.ColdDamaged = func(err error) { t.Errorf("taken for damage: %v", err) }
	cfg.Room = func(uint64) (func(), error) { return func() { meanwhile(w) }, nil }
	w.Replica = mustOpen(t, cfg)
	w.openStored = func(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
		meanwhile(w)
		defer meanwhile(w)
		return w.snaps.Open(id)
	}
	mustBeReady(t, w.Replica)
	w.join()
	return w
}

// join has one more member join a row.
func (w *withMembers) join() {
	w.Helper()
	mustDo(w.T, w.Apply(joinEntry(time.Now(), w.next)).Error())
	w.next++
}

// joinEntry returns an entry by which a member joins a set: a clock (raftfsm/dedup/limits.go),
// then a request with one op (raftfsm/memberop.go).
func joinEntry(now time.Time, member uint64) []byte {
	le, minute := binary.LittleEndian, uint64(time.Minute.Milliseconds())
	b := append(codec.BeginEntry(nil, codec.KindCounters, 1), codec.SectionClock, codec.ClockSize, 0, 0, 0)
	b = le.AppendUint64(b, uint64(now.UnixMilli()))
	b = le.AppendUint64(le.AppendUint64(b, minute), minute) // horizon of keys, of producers
	b = le.AppendUint32(le.AppendUint32(b, 1), 1)           // keys, producers
	const join, row, column, opBytes = 1<<6 | 1<<2, 1, 0, 1 + 8 + 1 + 8
	b = le.AppendUint32(append(b, codec.SectionRequest), 4+opBytes)
	b = le.AppendUint32(b, 1) // ops
	b = le.AppendUint64(append(b, join), row)
	b = le.AppendUint64(append(b, column), member)
	return codec.AppendChecksum(b)
}

// visit reads a snapshot to its end.
func (w *withMembers) visit(s io.ReadCloser) raftfsm.SnapshotFacts {
	w.Helper()
	facts, err := raftfsm.VisitSnapshot(s, codec.KindCounters, raftfsm.SnapshotVisitor{})
	mustDo(w.T, errors.Join(err, s.Close()))
	return facts
}

// replaceSnapshots has entries and snapshots come until nothing of the present ones is kept,
// unless no snapshot may be taken now.
func (w *withMembers) replaceSnapshots() {
	w.Helper()
	if !w.snapshotting.TryLock() {
		return
	}
	w.snapshotting.Unlock()
	for range 3 {
		w.join()
		mustDo(w.T, w.TakeSnapshot())
	}
}

// outdate has the present snapshots replaced, if they may be, and members join; and it releases
// the views that are not held, as the node does after a minute.
func (w *withMembers) outdate() {
	w.Helper()
	w.replaceSnapshots()
	w.join()
	w.sets.ReleaseViews(time.Now())
}

// 1. Whatever comes while a backup is written and opened, it has the sets of its moment, at the
// first attempt. 2. It can be read after more snapshots. 3. Nothing of this is taken for damage.
func TestBackupKeepsItsSets(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, (*withMembers).outdate)
	for range 3 {
		s, err := w.OpenSnapshot(t.Context(), codec.KindCounters)
		mustDo(t, err)
		w.replaceSnapshots()
		if facts := w.visit(s); facts.MembersLater || facts != s.SnapshotFacts {
			t.Errorf("the snapshot has %+v, and was checked to have %+v", facts, s.SnapshotFacts)
		}
	}
}

// No snapshot is taken for a caller that has left while it waited for its turn.
func TestBackupOfACallerThatLeft(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, func(*withMembers) {})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.openSnapshot(ctx, codec.KindCounters); !errors.Is(err, context.Canceled) || w.snaps.NewestIndex() > 0 {
		t.Errorf("%v, with a snapshot of entry %d", err, w.snaps.NewestIndex())
	}
}

// The snapshot for a repair can be read, whether or not one is taken for it, and whatever
// comes before it is open.
func TestSnapshotFromKeepsItsSets(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, (*withMembers).outdate)
	mustDo(t, w.TakeSnapshot())
	for _, index := range []uint64{0, w.snaps.NewestIndex()} {
		meta, s, err := w.SnapshotFrom(index)
		mustDo(t, err)
		w.replaceSnapshots()
		if facts := w.visit(s); facts.Index != meta.Index {
			t.Errorf("the snapshot of entry %d has %+v", meta.Index, facts)
		}
	}
}

// A snapshot that others have replaced is not damaged, and its error says so.
func TestReplacedSnapshot(t *testing.T) {
	t.Parallel()
	w := openWithMembers(t, func(*withMembers) {})
	mustDo(t, w.TakeSnapshot())
	metas, err := w.snaps.List()
	mustDo(t, err)
	w.openStored = func(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
		meta, state, err := w.snaps.Open(id)
		w.replaceSnapshots()
		return meta, state, err
	}
	s, err := w.openCarried(metas[0].ID)
	if err == nil {
		mustDo(t, s.Close())
	}
	if !errors.Is(err, members.ErrMovedOn) || isDamage(err) {
		t.Errorf("opened with %v", err)
	}
}
