package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// taken reads the snapshot of a shard from whichever node leads it.
func taken(t *testing.T, all []*Node, number uint32) ([]byte, raftfsm.SnapshotFacts) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	var stream []byte
	var facts raftfsm.SnapshotFacts
	eventually(t, "the leader gives a snapshot", func() bool {
		for _, n := range all {
			s, err := n.OpenSnapshot(ctx, number)
			if errors.Is(err, errs.ErrNoLeader) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if stream, err = io.ReadAll(s); err != nil || int64(len(stream)) != s.Bytes {
				t.Fatalf("%d bytes of %d, %v", len(stream), s.Bytes, err)
			}
			facts = s.SnapshotFacts
			mustDo(t, s.Close())
			return true
		}
		return false
	})
	return stream, facts
}

func reportedBy(n *Node, number uint32) ReplicaReport {
	for _, r := range n.report(reportRequest{}).Replicas {
		if r.ID == number {
			return r
		}
	}
	return ReplicaReport{}
}

// passed is a context that ends during the first call of Done. That call returns a nil channel, so
// its caller does not notice the end.
type passed struct {
	context.Context
	pass context.CancelFunc
}

func (p passed) Done() <-chan struct{} {
	if p.Context.Err() != nil {
		return p.Context.Done()
	}
	p.pass()
	return nil
}

// OpenSnapshot returns a snapshot that it has taken, even if ctx ends before OpenSnapshot proves
// that the node still leads.
func TestBackupOutlivesItsDeadline(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3) // other voters must confirm that the node still leads
	number := all[0].Keyspace("posts").FirstGroup
	eventually(t, "the leader gives a snapshot", func() bool {
		for _, n := range all {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := n.OpenSnapshot(passed{ctx, cancel}, number)
			if errors.Is(err, errs.ErrNoLeader) {
				cancel()
				continue
			}
			mustDo(t, err)
			if mustDo(t, s.Close()); ctx.Err() == nil {
				t.Error("the deadline has not passed")
			}
			return true
		}
		return false
	})
}

// A node that closes while a backup is being sent leaves nothing open, and the backup ends with
// an error.
func TestCloseBesideABackup(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("posts")
	memberWrite(t, n, ks, engine.Join(1, 2, 3))
	s, err := n.OpenSnapshot(t.Context(), ks.FirstGroup)
	mustDo(t, err)
	mustStop(t, n)
	if _, err := io.Copy(io.Discard, s); !errors.Is(err, scarce.ErrClosed) {
		t.Errorf("the backup ends with %v", err)
	}
	mustDo(t, s.Close())
}

// A backup of one cluster can be restored through any node of another cluster. Then all replicas
// there are equal. The restore replaces existing rows only with Force.
func TestBackupIsRestoredElsewhere(t *testing.T) {
	t.Parallel()
	from := openMembers(t, 1)
	ks := from[0].Keyspace("posts")
	for first := uint64(0); first < 60_000; first += 10_000 {
		w := &Write{Deadline: soon()}
		for id := first; id < first+10_000; id++ {
			w.Ops = append(rowOps(w), addTo(id*7, uint8(id%4), int64(id%90_000)+1))
		}
		mustDo(t, from[0].Write(ks, w))
	}
	to := openMembers(t, 3)
	restore := func(to *Node, number uint32, stream []byte, force bool) (raftfsm.SnapshotFacts, error) {
		ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax) // a new context for each restore, because a restore waits for leaders
		defer cancel()
		return RestoreShard(ctx, to, number, bytes.NewReader(stream), force, nil)
	}
	for shard := range ks.Shards {
		number := ks.FirstGroup + uint32(shard)
		stream, facts := taken(t, from, number)
		if was := reportedBy(from[0], number); facts.Rows != was.Rows || fmt.Sprintf("%016x", facts.Digest) != was.Digest || facts.Index != was.AppliedIndex {
			t.Fatalf("the snapshot is %+v, the replica %+v", facts, was)
		}
		got, err := restore(to[shard%3], number, stream, false)
		if err != nil || got != facts {
			t.Fatalf("restored %+v, %v, want %+v", got, err, facts)
		}
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(to) })

	number := ks.FirstGroup
	stream, facts := taken(t, from, number)
	if _, err := restore(to[1], number, stream, false); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("over rows: %v", err)
	}
	mustDo(t, to[2].Write(to[2].Keyspace("posts"), once(&Write{Ops: counters.Ops{addTo(3, 0, 9), addTo(3_000_000, 1, 9)}, Deadline: soon()})))
	if _, err := restore(to[1], number, stream, true); err != nil {
		t.Errorf("over rows, by force: %v", err)
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(to) })
	for _, n := range to {
		if r := reportedBy(n, number); r.Rows != facts.Rows || r.Digest != fmt.Sprintf("%016x", facts.Digest) {
			t.Errorf("%s has %+v, restored was %+v", n.cfg.NodeName, r, facts)
		}
	}
}

// A table may have more columns than its keyspace. Its snapshot can still be restored.
func TestBackupOfFewColumnsIsRestored(t *testing.T) {
	t.Parallel()
	from, to := openMembers(t, 1)[0], openMembers(t, 1)[0]
	ks := from.Keyspace("users") // has three
	mustDo(t, from.Write(ks, &Write{Ops: counters.Ops{addTo(4, 0, 1), addTo(8, 2, -70_000)}, Deadline: soon()}))
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	stream, facts := taken(t, []*Node{from}, ks.FirstGroup)
	if got, err := RestoreShard(ctx, to, ks.FirstGroup, bytes.NewReader(stream), false, nil); err != nil || got != facts || got.Rows != 2 {
		t.Errorf("restored %+v, %v, want %+v", got, err, facts)
	}
}

func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	n := openMembers(t, 1)[0]
	ks := n.Keyspace("posts")
	mustDo(t, n.Write(ks, &Write{Ops: counters.Ops{addTo(1, 3, 1)}, Deadline: soon()}))
	whole, _ := taken(t, []*Node{n}, ks.FirstGroup+1)
	users := n.Keyspace("users").FirstGroup
	later := kinds.All.New(codec.KindCounters, raftfsm.Places{})
	route := n.registry.shardOf(users).first
	route.Modulus *= 3
	later.SetRoute(route)
	for name, test := range map[string]struct {
		group  uint32
		stream []byte
		want   error
	}{
		"the catalog's group":   {0, whole, ErrNotBackedUp},
		"no group":              {99, whole, ErrNotBackedUp},
		"nothing":               {users, nil, ErrBadSnapshot},
		"half a stream":         {users, whole[:len(whole)/2], ErrBadSnapshot},
		"more columns":          {users, whole, ErrBadSnapshot}, // users has three
		"a later route":         {users, rafttest.Persisted(t, later), ErrBadSnapshot},
		"a shard that has rows": {ks.FirstGroup + 1, whole, ErrNotEmpty},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
			defer cancel()
			if _, err := RestoreShard(ctx, n, test.group, bytes.NewReader(test.stream), false, nil); !errors.Is(err, test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	if r := reportedBy(n, users); r.Rows != 0 {
		t.Errorf("a refused stream left %d rows", r.Rows)
	}
	if _, err := n.OpenSnapshot(t.Context(), 0); !errors.Is(err, ErrNotBackedUp) {
		t.Errorf("a snapshot of the catalog: %v", err)
	}
}

// Every node gets the reports of all nodes. Marks of different replicas at the same index have the
// same digest.
func TestReports(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	ks := all[0].Keyspace("posts")
	for range 200 {
		mustDo(t, all[0].Write(ks, once(&Write{Ops: counters.Ops{addTo(0, 0, 1)}, Deadline: soon()})))
	}
	lives := map[string]bool{}
	for _, n := range all {
		reports := n.MarkedReports(t.Context())
		if len(reports) != len(all) {
			t.Fatalf("%s hears of %d nodes", n.cfg.NodeName, len(reports))
		}
		marks := map[uint64]uint64{}
		compared := 0
		for _, report := range reports {
			lives[report.Life] = true
			for _, r := range report.Replicas {
				if r.ID != ks.FirstGroup {
					continue
				}
				for _, m := range r.Marks {
					if digest, known := marks[m.Index]; known {
						compared++
						if digest != m.Digest {
							t.Errorf("marks differ at %d", m.Index)
						}
					}
					marks[m.Index] = m.Digest
				}
			}
		}
		if compared == 0 {
			t.Errorf("no marks of several replicas in %+v", marks)
		}
	}
	if len(lives) != len(all) {
		t.Errorf("lives %v", lives)
	}
}

// A report that is requested without marks has none. If a group has a leader, only voters report its members. A
// non-voter that knows no leader reports them too.
func TestReportsAreShort(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	voted, silent := 0, 0
	for key, report := range all[0].Reports(t.Context()) {
		for _, r := range report.Replicas {
			if len(r.Marks)+len(r.Entries) > 0 {
				t.Errorf("%s reports marks of group %d", key, r.ID)
			}
			if len(r.Members) > 0 {
				voted++
			} else if silent++; r.Leader == "" || r.Role == "leader" {
				t.Errorf("%s reports no members of group %d, as %s of leader %q", key, r.ID, r.Role, r.Leader)
			}
		}
	}
	if voted == 0 || silent == 0 {
		t.Errorf("%d replicas report members, %d do not", voted, silent)
	}
	mustDo(t, all[0].Close(t.Context())) // the only voter of the catalog
	eventually(t, "a non-voter without a leader reports the members", func() bool {
		meta := all[1].report(reportRequest{}).Replicas[0]
		return meta.ID == catalogGroup && meta.Leader == "" && len(meta.Members) == len(all)
	})
}

// On every node, AskCatalogLeader returns the answer of the catalog's leader. Here the answer is
// rpc.ErrNoMethod.
func TestAskCatalogLeader(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	for _, n := range all {
		if _, err := n.AskCatalogLeader(t.Context(), "nothing", nil); !errors.Is(err, rpc.ErrNoMethod) {
			t.Errorf("%s: %v", n.cfg.NodeName, err)
		}
	}
	mustDo(t, all[0].Close(t.Context())) // this node has the only replica of the catalog
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := all[1].AskCatalogLeader(ctx, "nothing", nil); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("without the leader: %v", err)
	}
}
