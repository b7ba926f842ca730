package shard

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/tiering"
)

func (m *memoryRecord) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// The test creates a keyspace, reopens a replica and drops a keyspace while the disk is full or no
// file descriptor is left. The node continues, and completes each step once it has the resource
// again.
func TestReplicasOnAFullDisk(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"disk": syscall.ENOSPC, "descriptors": syscall.EMFILE} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lacking := &fs.PathError{Op: "open", Path: "groups.json.tmp", Err: failure}
			record := newMemoryRecord()
			n, err := openRecordedNode(t, t.TempDir(), storage.LogStoreShared, record) // the test fails if the node calls Fatal
			mustDo(t, err)

			record.fail(lacking)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { // ends once the catalog has the keyspace, whose replica cannot be opened
				defer cancel()
				errs.RetryUntil(ctx, func() bool { _, made := n.Catalog().Keyspaces["later"]; return made })
			}()
			if _, err := n.CreateKeyspace(ctx, Keyspace{Name: "later", Columns: []string{"likes"}, Shards: 1}); !errors.Is(err, errs.ErrOutcomeUnknown) {
				t.Fatalf("created with %v", err)
			}
			time.Sleep(2 * reconcileTick)
			record.fail(nil)
			ks := n.Keyspace("later")
			g := n.registry.shardOf(ks.FirstGroup)
			serves := func() bool { r := g.replica.Load(); return r != nil && r.group.Ready() == nil }
			eventually(t, "the keyspace is served", serves)
			mustWrite(t, n, ks, addTo(7, 0, 41))

			r := g.replica.Load()
			mustDo(t, record.GroupRemoved(ks.FirstGroup)) // so that opening the replica writes the record
			record.fail(lacking)
			if err := n.reopen(g, r); !errors.Is(err, failure) {
				t.Fatalf("opened again with %v", err)
			}
			time.Sleep(2 * reconcileTick)
			record.fail(nil)
			eventually(t, "the keyspace is served again", serves)
			if got := mustGet(t, n, ks, ReadOptions{}, 7); got[0] != 41 {
				t.Errorf("the count is %d", got[0])
			}

			record.fail(lacking)
			mustDrop(t, n, "later")
			time.Sleep(2 * reconcileTick)
			record.fail(nil)
			eventually(t, "the replica is deleted", func() bool {
				return isDeleted(t, n, ks.FirstGroup, 1) && !record.WasOpened(ks.FirstGroup) && !n.registry.dirs.Unfinished(ks.FirstGroup)
			})
		})
	}
}

// slowRecord deletes nothing until release is closed, like a record on a full disk.
type slowRecord struct {
	*memoryRecord
	release chan struct{}
}

func (r slowRecord) GroupRemoved(group uint32) error {
	<-r.release
	return r.memoryRecord.GroupRemoved(group)
}

// While the deletion of a replica waits for disk, the node goes on with its other groups.
func TestDeletionThatWaits(t *testing.T) {
	t.Parallel()
	record := slowRecord{newMemoryRecord(), make(chan struct{})}
	n, err := openRecordedNode(t, t.TempDir(), storage.LogStoreShared, record)
	mustDo(t, err)
	ks, err := n.CreateKeyspace(t.Context(), Keyspace{Name: "dropped", Columns: []string{"likes"}, Shards: 1})
	mustDo(t, err)
	mustDrop(t, n, "dropped")
	eventually(t, "the deletion waits", func() bool { return n.registry.dirs.Unfinished(ks.FirstGroup) })
	time.Sleep(2 * reconcileTick)
	g := n.registry.shardOf(n.Keyspace("posts").FirstGroup)
	r := g.replica.Load()
	r.mustReopen.Store(true)
	n.wakeReconcile()
	eventually(t, "another replica is opened again", func() bool { now := g.replica.Load(); return now != nil && now != r })
	close(record.release)
	eventually(t, "the replica is deleted", func() bool { return isDeleted(t, n, ks.FirstGroup, 1) })
}

// While the close of a replica waits for its disk, the node goes on with its other groups. A
// keyspace that is dropped meanwhile is deleted only after its replica is closed.
func TestCloseThatWaits(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	slow := mustMake(t, n, "slow", 1, "plays")
	g := n.registry.shardOf(slow.FirstGroup)
	r := g.replica.Load()
	release := r.group.Hold()
	r.mustReopen.Store(true)
	n.wakeReconcile()
	eventually(t, "the replica is being closed", func() bool { return g.closing.Load() == r })
	other := mustMake(t, n, "other", 1, "plays")
	mustWrite(t, n, other, addTo(1, 0, 1))
	mustDrop(t, n, "other")
	eventually(t, "another keyspace is deleted", func() bool {
		return len(dirsOf(t, n.cfg.Dir, other.FirstGroup, 1)) > 0 && n.registry.shardOf(other.FirstGroup) == nil && !n.registry.dirs.Unfinished(other.FirstGroup)
	})
	mustDrop(t, n, "slow")
	time.Sleep(2 * reconcileTick)
	if _, here := n.registry.dirs.Number(slow.FirstGroup); !here || g.replica.Load() != nil {
		t.Error("the replica was deleted before it was closed, or opened again")
	}
	release()
	eventually(t, "the replica is deleted", func() bool { return isDeleted(t, n, slow.FirstGroup, 1) })
	if !r.group.Closed() {
		t.Error("the replica was not closed")
	}
}

// mutedGroup never answers a proposal, like a leader whose followers cannot store entries.
type mutedGroup struct{ *replica.Replica }

type mutedFuture struct{ raft.ApplyFuture }

func (mutedGroup) Apply([]byte) raft.ApplyFuture { return mutedFuture{} }

func (mutedFuture) Error() error { select {} }

// A close without a deadline succeeds although a proposal of the replica is unanswered. The outcome
// of the proposal is then unknown.
func TestCloseBesideAnUnansweredProposal(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	fsm := kinds.All.New(codec.KindBoard, raftfsm.Places{})
	cfg := n.groupConfig(7000, 0, "muted", fsm)
	cfg.Initial = []replica.Member{{ID: cfg.ID(), Addr: n.mux.Addr().String()}}
	group, err := replica.Open(cfg)
	mustDo(t, err)
	g, r := &shardReplica{number: cfg.Group, kind: codec.KindBoard}, &localReplica{group: group, fsm: tiering.Machine{Machine: fsm}}
	proposing := n.proposerConfig(g, r)
	proposing.Group = mutedGroup{group}
	r.proposer.Store(propose.New(proposing))
	q, err := r.proposer.Load().Submit([]byte("entry"), 1, false, 0)
	mustDo(t, err)
	closed := make(chan error, 1)
	go func() { closed <- r.close(t.Context(), false) }()
	select {
	case err := <-closed:
		mustDo(t, err)
	case <-time.After(eventuallyMax):
		t.Fatal("the replica is not closed")
	}
	if err := q.Wait(time.NewTimer(0)); !errors.Is(err, errs.ErrOutcomeUnknown) {
		t.Errorf("the answer: %v", err)
	}
}

// The snapshot of fullFSM blocks until it is released, and then fails because the disk is full.
type fullFSM struct {
	raftfsm.Machine
	began, release chan struct{}
}

func (f fullFSM) Snapshot() (raft.FSMSnapshot, error) {
	close(f.began)
	<-f.release
	return nil, syscall.ENOSPC
}

// A replica that could not be closed ends the process, even if the cause is a full disk. Otherwise
// nobody would open the replica again.
func TestCloseThatFailsOnAFullDisk(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	fatal := make(chan error, 1)
	n.cfg.Fatal = func(err error) { fatal <- err }
	fsm := fullFSM{kinds.All.New(codec.KindBoard, raftfsm.Places{}), make(chan struct{}), make(chan struct{})}
	cfg := n.groupConfig(7000, 0, "full", fsm)
	cfg.Fatal = func(error) {}
	cfg.Initial = []replica.Member{{ID: cfg.ID(), Addr: n.mux.Addr().String()}}
	group, err := replica.Open(cfg)
	mustDo(t, err)
	eventually(t, "the replica is ready", func() bool { return group.Ready() == nil })

	g, r := &shardReplica{number: cfg.Group, kind: codec.KindBoard}, &localReplica{group: group, fsm: tiering.Machine{Machine: fsm}}
	r.proposer.Store(propose.New(n.proposerConfig(g, r)))
	g.replica.Store(r)
	go func() { _ = group.Snapshotter().Take() }()
	<-fsm.began
	ended := make(chan struct{})
	go func() { _ = n.reopen(g, r); close(ended) }()
	eventually(t, "the replica is being closed", group.Closing)
	time.Sleep(200 * time.Millisecond) // until Close waits for the snapshot, and so returns its failure
	close(fsm.release)
	<-ended
	select {
	case err := <-fatal:
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("the process ends with %v", err)
		}
	default:
		t.Error("the process goes on, and nobody opens the replica")
	}
}
