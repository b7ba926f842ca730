package shard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
)

// everywhere places each shard on the first three nodes. The order rotates from shard to shard, so
// that each node leads some shards.
func everywhere(view *catalog.View, shards int) [][]string {
	var keys []string
	for key := range view.Nodes {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	keys = keys[:min(3, len(keys))]
	replicas := make([][]string, shards)
	for s := range replicas {
		at := s % len(keys)
		replicas[s] = slices.Concat(keys[at:], keys[:at])
	}
	return replicas
}

// memberConfig configures member i of a test's cluster, where i begins at 1. Member 1 creates the
// cluster, which waits until it has the given number of nodes.
func memberConfig(t *testing.T, dir string, i, nodes int) Config {
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("COUNTD_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", i)
	}
	return Config{
		Dir: dir, NodeKey: fmt.Sprintf("n%d.0", i), NodeName: fmt.Sprintf("n%d", i),
		Bootstrap: i == 1, NodesWanted: nodes, ClusterID: testClusterID, Version: "1.2.3", ClusterAddr: "127.0.0.1:0",
		HTTPAddr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7402", Shards: fewShards(map[string]int{"posts": 3, "users": 1}),
		Place: everywhere, Logger: logger, Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	}
}

// openMembers opens a cluster with the given number of nodes and waits until all serve.
func openMembers(t *testing.T, nodes int) []*Node {
	t.Helper()
	var all []*Node
	for i := 1; i <= nodes; i++ {
		all = append(all, joinMember(t, all, i, nodes))
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for _, n := range all {
		if err := n.WaitReady(ctx); err != nil {
			t.Fatalf("%s: %v", n.cfg.NodeName, err)
		}
	}
	return all
}

// once gives a write an identity, so that the node repeats the write if its leader is lost. On a
// busy machine a leader may be lost at any time.
func once(w *Write) *Write {
	w.ID = dedup.ByKey([]byte(rand.Text()))
	return w
}

func joinMember(t *testing.T, others []*Node, i, nodes int) *Node {
	t.Helper()
	return joinAs(t, others, memberConfig(t, t.TempDir(), i, nodes))
}

func joinAs(t *testing.T, others []*Node, cfg Config) *Node {
	t.Helper()
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if len(others) == 0 {
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	put := &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: n.record()}}
	if err := others[0].catalogClient.MustChange(ctx, put); err != nil {
		t.Fatal(err)
	}
	return n
}

// Any node accepts writes and answers reads of all kinds for every shard. It may lead the shard,
// follow its leader, or have no replica of it.
func TestAnyNodeAnswersAnything(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	total := int64(0)
	for round := range int64(2) { // the second round finds the rows and logs of the first
		for _, n := range all {
			ks := n.Keyspace("posts")
			w := once(&Write{Deadline: soon(), Width: 4})
			for id := range uint64(10) {
				w.Ops = append(rowOps(w), addTo(id, 2, 1))
			}
			w.Rows = make([]int64, len(rowOps(w))*w.Width)
			if err := n.Write(ks, w); err != nil {
				t.Fatalf("%s: %v", n.cfg.NodeName, err)
			}
			total++
			if w.Rows[2] != total || w.Rows[38] != total {
				t.Errorf("round %d, %s: rows %v, want %d", round, n.cfg.NodeName, w.Rows, total)
			}
			for _, reader := range all {
				mustReadAll(t, reader, total, ReadOptions{Consistency: Linearizable})
				mustReadAll(t, reader, total, ReadOptions{Consistency: Stale, Token: w.Token})
				mustReadAll(t, reader, total, ReadOptions{Token: w.Token})
			}
		}
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
}

func mustReadAll(t *testing.T, n *Node, want int64, opt ReadOptions) {
	t.Helper()
	opt.Deadline = soon()
	ks := n.Keyspace("posts")
	rows := make([]int64, 40)
	ids := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	if err := n.Get(ks, ids, 4, &opt, rows); err != nil {
		t.Fatalf("%s: %v", n.cfg.NodeName, err)
	}
	for i := range ids {
		if rows[4*i+2] != want {
			t.Fatalf("%s: rows %v, want %d, level %d", n.cfg.NodeName, rows, want, opt.Consistency)
		}
	}
	r, err := n.Scan(ks, 0, true, 100, 4, &opt)
	if err != nil || len(r.IDs) != 9 || r.Rows[2] != want || r.More {
		t.Fatalf("%s: scan %+v, %v", n.cfg.NodeName, r, err)
	}
	if err := n.Get(ks, ids[9:], 4, &opt, rows[:4]); err != nil || rows[2] != want {
		t.Fatalf("%s: one row %v, %v", n.cfg.NodeName, rows[:4], err)
	}
}

// digestsAgree reports whether all replicas of each group have the same index and digest.
func digestsAgree(all []*Node) bool {
	type at struct {
		index  uint64
		digest string
	}
	seen := map[uint32]at{}
	for _, n := range all {
		for _, g := range n.Status().Groups {
			here := at{g.AppliedIndex, g.Digest}
			if was, ok := seen[g.ID]; ok && was != here {
				return false
			}
			seen[g.ID] = here
		}
	}
	return true
}

// After a node has handed over, other nodes lead its groups, and writes through the node go on.
func TestHandOver(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	n := all[0]
	mustDo(t, n.HandOver(ctx))
	for _, g := range n.registry.Replicas() {
		if g.Ready() == nil && len(g.Voters()) > 1 {
			t.Errorf("group %d is led here", g.Group())
		}
	}
	ks := n.Keyspace("posts")
	if err := n.Write(ks, once(&Write{Ops: counters.Ops{addTo(1, 0, 1), addTo(2, 0, 1), addTo(3, 0, 1)}, Deadline: soon()})); err != nil {
		t.Error(err)
	}
}

// Nodes that stop together do not hand groups to each other. So the term of a group rises at most
// once for each node, and no node waits for another.
func TestAllHandOverAtOnce(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	terms := map[uint32]uint64{}
	for _, g := range all[0].registry.Replicas() {
		terms[g.Group()] = g.Stats().Term
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	handed := make(chan error)
	for _, n := range all {
		go func() { handed <- n.HandOver(ctx) }()
	}
	for range all {
		mustDo(t, <-handed)
	}
	for _, n := range all {
		for _, g := range n.registry.Replicas() {
			if term := g.Stats().Term; term > terms[g.Group()]+uint64(len(all)) {
				t.Errorf("group %d went from term %d to %d", g.Group(), terms[g.Group()], term)
			}
		}
		if _, err := all[0].membership.Progress(ctx, n.cfg.NodeKey, []raftstore.ReplicaID{{Group: catalogGroup}}); n != all[0] && !errors.Is(err, errs.ErrDraining) {
			t.Errorf("%s would take what is handed to it: %v", n.cfg.NodeName, err)
		}
	}
}

// A shard moves from one node to another during writes. Nothing is lost, the old replica is deleted,
// and the new one has the state of the others.
func TestReplicaMoves(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	ks := all[3].Keyspace("posts")
	number := ks.FirstGroup
	target := all[0].router.holders(number)
	from, spare := target[0], ""
	for _, n := range all {
		if !slices.Contains(target, n.cfg.NodeKey) {
			spare = n.cfg.NodeKey
		}
	}
	stop, done := make(chan struct{}), make(chan int64)
	go func() {
		n := int64(0)
		for {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			if err := all[3].Write(ks, once(&Write{Ops: counters.Ops{addTo(3, 0, 1)}, Deadline: soon()})); err != nil {
				t.Error(err)
			}
			n++
		}
	}()
	moved := append(slices.DeleteFunc(slices.Clone(target), func(key string) bool { return key == from }), spare)
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	mustDo(t, all[1].catalogClient.MustChange(ctx, &catalog.Command{Place: &catalog.PlaceEntry{Group: number, Was: target, Target: moved}}))
	eventually(t, "the group's voters are the target", func() bool {
		for _, n := range all {
			g := n.registry.Replica(number)
			if (g != nil) != slices.Contains(moved, n.cfg.NodeKey) {
				return false
			}
			if g != nil && len(g.Voters()) != 3 {
				return false
			}
		}
		return true
	})
	close(stop)
	want := <-done
	rows := make([]int64, 1)
	mustDo(t, all[0].Get(ks, []uint64{3}, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, rows))
	if rows[0] != want {
		t.Errorf("%d increments, %d were acknowledged", rows[0], want)
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
	for _, n := range all {
		if n.cfg.NodeKey == from {
			if replica, here := n.registry.dirs.Number(number); here {
				t.Errorf("the files of replica %d are still there", replica)
			}
		}
	}
}

// A node is down while its replica moves away, so it is not notified. When it comes back,
// it deletes the replica and is ready.
func TestReplicaIsDeletedByANodeThatWasDown(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	number := all[0].Keyspace("posts").FirstGroup
	down, spare := all[2], all[3]
	if !slices.Contains(all[0].router.holders(number), down.cfg.NodeKey) || down.LeadsCatalog() {
		t.Fatalf("group %d is on %q", number, all[0].router.holders(number))
	}
	cfg := down.cfg
	cfg.ClusterAddr, cfg.Metrics = down.mux.Addr().String(), prometheus.NewRegistry()
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	mustDo(t, down.Close(ctx))

	target := all[0].router.holders(number)
	moved := append(leadership.Without(target, down.cfg.NodeKey), spare.cfg.NodeKey)
	mustDo(t, all[0].catalogClient.MustChange(ctx, &catalog.Command{Place: &catalog.PlaceEntry{Group: number, Was: target, Target: moved}}))
	eventually(t, "it is removed from the group", func() bool {
		g := spare.registry.Replica(number)
		return g != nil && len(g.Voters()) == 3 && !slices.ContainsFunc(g.Voters(), func(id raft.ServerID) bool { return replica.NodeOf(id) == down.cfg.NodeKey })
	})
	eventually(t, "another leads it, of whom the old replica never hears", func() bool {
		for _, n := range all[:2] {
			if n.registry.Replica(number).Ready() == nil {
				_ = n.membership.HandOver(number, spare.cfg.NodeKey) // a failed handover is repeated
			}
		}
		return spare.registry.Replica(number).Ready() == nil
	})
	again, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, again.Close(context.Background())) })
	eventually(t, "its replica is deleted", func() bool { return again.registry.Replica(number) == nil })
	mustDo(t, again.WaitReady(ctx))
}

func FuzzCallMessages(f *testing.F) {
	f.Add((&remoteRead{group: 7, route: codec.Route{Modulus: 200, Residue: 199}, consistency: Linearizable, staleness: time.Second, index: 9, query: []byte{0, 4}, keys: []uint64{1, 2}}).appendTo(nil))
	f.Add(propose.AppendPart(nil, &propose.ForwardedPart{Section: []byte("section"), Width: 4, Judges: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := wire.Reader{Rest: b}
		if q := parseRead(&r); r.End() == nil {
			s := wire.Reader{Rest: q.appendTo(nil)}
			if again := parseRead(&s); s.End() != nil || !reflect.DeepEqual(again, q) {
				t.Fatalf("%+v became %+v, %v", q, again, s.Err)
			}
		}
		r = wire.Reader{Rest: b}
		if p := propose.ParsePart(&r); r.End() == nil {
			s := wire.Reader{Rest: propose.AppendPart(nil, p)}
			if again := propose.ParsePart(&s); s.End() != nil || !reflect.DeepEqual(again, p) {
				t.Fatalf("%+v became %+v, %v", p, again, s.Err)
			}
		}
		r = wire.Reader{Rest: b}
		if q := propose.ParseOutcome(&r, 4); r.End() == nil && q.Err == nil && len(q.Result.Rows) != 4*q.Ops {
			t.Fatalf("%d rows of %d ops", len(q.Result.Rows), q.Ops)
		}
	})
}
