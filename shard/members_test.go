package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

// memberWrite writes ops on members and returns what they changed.
func memberWrite(t *testing.T, n *Node, ks *Keyspace, ops ...engine.Op) *Write {
	t.Helper()
	w := once(&Write{Ops: counters.Ops(ops), Width: 4, Rows: make([]int64, 4*len(ops)), Deadline: soon()})
	mustDo(t, n.Write(ks, w))
	return w
}

func isIn(t *testing.T, n *Node, ks *Keyspace, member uint64, w *Write, ids ...uint64) []bool {
	t.Helper()
	in := make([]bool, len(ids))
	mustDo(t, n.Check(ks, 2, member, ids, &ReadOptions{Token: w.Token, Deadline: soon()}, in))
	return in
}

func idsOf(l members.List) (ids []uint64) {
	for _, e := range l.Entries {
		ids = append(ids, e.ID)
	}
	return ids
}

// Through whichever node an op or a read comes: 1. an op changes its set and the count once; 2. a
// repeat of the op, or of the whole request, changes nothing; 3. a read with the token sees the op;
// 4. a deleted row has no members; 5. an op that would overflow changes neither the set nor the
// count; 6. the replicas agree.
func TestMembersThroughAnyNode(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	for i, n := range all {
		eventually(t, "the node knows the keyspace", func() bool { return n.Keyspace("posts") != nil })
		ks := n.Keyspace("posts")
		base := uint64(1000 * i)
		w := memberWrite(t, n, ks, engine.Join(base+1, 2, 7), engine.Join(base+2, 2, 7), engine.Join(base+1, 2, 8),
			engine.Join(base+1, 2, 7), engine.Leave(base+3, 2, 7), engine.Join(base+4, 2, 9), engine.Leave(base+4, 2, 9), engine.Join(base+4, 2, 9))
		if !w.Duplicate {
			if want := []int{0, 1, 2, 5, 6, 7}; !slices.Equal(w.Changed, want) {
				t.Errorf("node %d: ops %v changed a set, want %v", i, w.Changed, want)
			}
			for op, want := range []int64{1, 1, 2, 2, 0, 1, 0, 1} {
				if got := w.Rows[4*op+2]; got != want {
					t.Errorf("node %d: count of op %d is %d, want %d", i, op, got, want)
				}
			}
		}
		again := &Write{Ops: w.Ops, Width: 4, Rows: w.Rows, ID: w.ID, Deadline: soon()}
		mustDo(t, n.Write(ks, again))
		if !again.Duplicate || len(again.Changed) > 0 || again.Rows[2] != 2 {
			t.Errorf("node %d: a repeat changed %v, rows %v", i, again.Changed, again.Rows)
		}
		if got, want := isIn(t, n, ks, 7, w, base+1, base+2, base+3, base+4, base+1), []bool{true, true, false, false, true}; !slices.Equal(got, want) {
			t.Errorf("node %d: member 7 is in %v, want %v", i, got, want)
		}
		opt := &ReadOptions{Token: w.Token, Deadline: soon()}
		l, err := n.List(ks, 2, base+1, members.Page{Limit: 10}, opt)
		mustDo(t, err)
		if !slices.Equal(idsOf(l), []uint64{8, 7}) || l.More {
			t.Errorf("node %d: members %+v", i, l)
		}

		w = memberWrite(t, n, ks, engine.Op{ID: base + 1, Kind: engine.OpDelete}, engine.Join(base+1, 2, 5),
			engine.Op{ID: base + 2, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 2, Value: math.MaxInt64}}}, engine.Join(base+2, 2, 6),
			engine.Leave(base+2, 2, 6))
		if !w.Duplicate && (!slices.Equal(w.Changed, []int{1}) || len(w.Overflows) != 1 || w.Overflows[0].Op != 3) {
			t.Errorf("node %d: changed %v, overflows %v", i, w.Changed, w.Overflows)
		}
		if in := isIn(t, n, ks, 7, w, base+1, base+2); in[0] || !in[1] {
			t.Errorf("node %d: after the row was deleted, member 7 is in %v", i, in)
		}
		if in := isIn(t, n, ks, 6, w, base+2); in[0] {
			t.Errorf("node %d: a refused op added a member", i)
		}
	}
	eventually(t, "replicas hold the same", func() bool { return digestsAgree(all) })
}

// The list of a member's rows over all shards has each row once, newest first, by pages.
func TestRowsOfAMember(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), nil)
	ks := n.Keyspace("posts")
	var ops []engine.Op
	for id := range uint64(100) {
		ops = append(ops, engine.Join(id*3, 1, 42))
	}
	w := memberWrite(t, n, ks, ops...)
	for id := range uint64(20) {
		w = memberWrite(t, n, ks, engine.Join(10_000+id, 1, 42))
	}
	opt := &ReadOptions{Token: w.Token, Deadline: soon()}
	page, seen := members.Page{Limit: 7}, []members.Entry(nil)
	for {
		l, err := n.Of(ks, 1, 42, page, opt)
		mustDo(t, err)
		seen = append(seen, l.Entries...)
		if !l.More {
			break
		}
		page.After, page.Continues = seen[len(seen)-1], true
	}
	if !slices.IsSortedFunc(seen, members.Entry.Compare) || len(slices.Compact(slices.Clone(seen))) != 120 {
		t.Fatalf("%d rows: %v", len(seen), seen)
	}
	for i := range uint64(20) {
		if seen[i].ID != 10_000+19-i && seen[i].At == seen[i+1].At {
			continue // of one stamp, on two shards
		}
		if seen[i].ID < 10_000 {
			t.Errorf("row %d is %v", i, seen[i])
		}
	}
}

// A node that is stopped, with and without snapshots in between, has the same counts and sets
// when it is opened again.
func TestMembersOutliveARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shards := map[string]int{"posts": 1, "users": 1}
	n := openNode(t, dir, shards)
	want := map[uint64]int{}
	for round := range 6 {
		ks := n.Keyspace("posts")
		var ops []engine.Op
		for i := range uint64(50) {
			id := i % 5
			if (i+uint64(round))%3 == 0 {
				ops = append(ops, engine.Leave(id, 2, i))
			} else {
				ops = append(ops, engine.Join(id, 2, i))
			}
		}
		if round == 3 {
			ops = append(ops, engine.Op{ID: 2, Kind: engine.OpDelete})
		}
		memberWrite(t, n, ks, ops...)
		groups, err := n.router.groupsOf(ks)
		mustDo(t, err)
		r := groups[0].replica.Load()
		if round%2 == 0 {
			eventually(t, "a snapshot is taken", func() bool { return r.group.Snapshotter().Take() == nil })
			memberWrite(t, n, ks, engine.Join(9, 2, uint64(round)), engine.Leave(9, 2, 77))
		}
		before := r.fsm.State()
		mustDo(t, r.fsm.Members().Verify())
		mustStop(t, n)
		n = openNode(t, dir, shards)
		ks = n.Keyspace("posts")
		groups, err = n.router.groupsOf(ks)
		mustDo(t, err)
		r = groups[0].replica.Load()
		if after := r.fsm.State(); after.Digest != before.Digest || after.Rows != before.Rows {
			t.Fatalf("round %d: %+v after the restart, %+v before", round, after, before)
		}
		for id := range uint64(5) {
			row := make([]int64, 4)
			mustDo(t, n.Get(ks, []uint64{id}, 4, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, row))
			l, err := n.List(ks, 2, id, members.Page{Limit: 1000}, &ReadOptions{Deadline: soon()})
			mustDo(t, err)
			if want[id] = len(l.Entries); int64(want[id]) != row[2] {
				t.Fatalf("round %d: row %d has %d members, count %d", round, id, len(l.Entries), row[2])
			}
		}
	}
}

// A backup has the members, and a restore to another cluster makes the same sets. With force, it
// also replaces other members.
func TestMembersAreRestored(t *testing.T) {
	t.Parallel()
	from := openMembers(t, 1)
	ks := from[0].Keyspace("posts")
	var ops []engine.Op
	for i := range uint64(3000) {
		ops = append(ops, engine.Join(i%11, uint8(i%2), i))
	}
	memberWrite(t, from[0], ks, ops...)
	memberWrite(t, from[0], ks, addTo(4, 0, 1000), engine.Op{ID: 5, Kind: engine.OpDelete}, engine.Leave(6, 0, 6))
	to := openMembers(t, 3)
	other := memberWrite(t, to[1], to[1].Keyspace("posts"), engine.Join(3, 0, 1_000_000), engine.Op{ID: 3, Kind: engine.OpSet, Cells: []engine.Cell{{}}})
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	refused := 0
	for shard := range ks.Shards {
		number := ks.FirstGroup + uint32(shard)
		stream, facts := taken(t, from, number)
		facts.Gone, facts.Digest = 0, facts.Digest-facts.Gone
		_, err := RestoreShard(ctx, to[0], number, bytes.NewReader(stream), false, nil)
		if errors.Is(err, ErrNotEmpty) {
			refused++
		} else {
			mustDo(t, err)
		}
		got, err := RestoreShard(ctx, to[shard%3], number, bytes.NewReader(stream), true, nil)
		if err != nil || got != facts {
			t.Fatalf("shard %d: restored %+v, %v, want %+v", shard, got, err, facts)
		}
	}
	if refused != 1 {
		t.Errorf("without force, %d shards were refused, and one has a member, without a row", refused)
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(to) })
	at := to[2].Keyspace("posts")
	if in := make([]bool, 1); to[2].Check(at, 0, 1_000_000, []uint64{3}, &ReadOptions{Token: other.Token, Deadline: soon()}, in) != nil || in[0] {
		t.Error("a member that was there before the restore is there still")
	}
	for id := range uint64(11) {
		want, err := from[0].List(ks, 0, id, members.Page{Limit: 5000}, &ReadOptions{Deadline: soon()})
		mustDo(t, err)
		got, err := to[0].List(at, 0, id, members.Page{Limit: 5000}, &ReadOptions{Consistency: Linearizable, Deadline: soon()})
		mustDo(t, err)
		if !slices.Equal(got.Entries, want.Entries) {
			t.Fatalf("row %d has %d members, the backup had %d", id, len(got.Entries), len(want.Entries))
		}
	}
}

// A backup has the sets as of its moment, at the first attempt, whatever snapshots others take
// meanwhile.
func TestBackupOfMembersUnderWrites(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("posts")
	var ops []engine.Op
	for m := range uint64(10_000) {
		ops = append(ops, engine.Join(1, 2, m))
	}
	memberWrite(t, n, ks, ops...)
	groups, err := n.router.groupsOf(ks)
	mustDo(t, err)
	r := groups[0].replica.Load()
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for member := uint64(1 << 20); ; member++ {
			select {
			case <-stop:
				return
			default:
			}
			w := &Write{Ops: counters.Ops{engine.Join(2, 2, member)}, Deadline: soon()}
			if err := errors.Join(n.Write(ks, w), r.group.Snapshotter().Take()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	of := n.registry.shardOf(r.group.Group()).first
	for range 20 {
		s, err := r.group.Snapshotter().Open(t.Context(), codec.KindCounters, of)
		mustDo(t, err)
		facts, err := kinds.All.VisitSnapshot(s, codec.KindCounters, of, raftfsm.SnapshotVisitor{})
		mustDo(t, errors.Join(err, s.Close()))
		if facts.Later {
			t.Error("a backup has members of a later entry")
		}
	}
	close(stop)
	writing.Wait()
}

// A follower whose sets are lost answers nothing wrong, and is repaired from another replica.
func TestLostMembersAreRepaired(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	var all []*Node
	for i := range dirs {
		all = append(all, joinAs(t, all, memberConfig(t, dirs[i], i+1, 3)))
	}
	for _, n := range all {
		ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
		mustDo(t, n.WaitReady(ctx))
		cancel()
	}
	ks := all[0].Keyspace("posts")
	var ops []engine.Op
	for i := range uint64(500) {
		ops = append(ops, engine.Join(i%50, 2, i))
	}
	w := memberWrite(t, all[0], ks, ops...)
	eventually(t, "replicas hold the same", func() bool { return digestsAgree(all) })
	number := ks.FirstGroup
	var lost *Node
	for _, n := range all {
		if g := n.registry.shardOf(number); g.leader() != n.cfg.NodeKey {
			lost = n
		}
	}
	r := lost.registry.shardOf(number).replica.Load()
	eventually(t, "a snapshot names the sets", func() bool { return r.group.Snapshotter().Take() == nil })
	mustDo(t, lost.sets.Drop(number)) // behind its back: the replica finds out when it is opened
	mustDo(t, lost.reopen(lost.registry.shardOf(number), r))
	eventually(t, "the replica is repaired", func() bool {
		here := lost.registry.shardOf(number).replica.Load()
		return here != nil && here != r && here.fsm.Stuck() == nil && !here.damage.Found() && here.fsm.Members().State().Pairs > 0
	})
	memberWrite(t, all[0], ks, engine.Join(49, 2, 1_000))
	eventually(t, "replicas hold the same", func() bool { return digestsAgree(all) })
	mustDo(t, lost.registry.shardOf(number).replica.Load().fsm.Members().Verify())
	for _, n := range all {
		if in := isIn(t, n, ks, 49, w, 49, 48); !in[0] || in[1] {
			t.Errorf("member 49 is in %v", in)
		}
	}
}

// A keyspace of another kind refuses an op on a member, and nothing of its write is applied.
func TestMembersOfUnread(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), nil)
	unread, posts := n.Keyspace(kinds.KeyspaceUnread), n.Keyspace("posts")
	w := once(&Write{Ops: counters.Ops{engine.Join(1, 0, 7)}, Deadline: soon()})
	if err := n.Write(unread, w); !errors.Is(err, raftfsm.ErrOtherOps) {
		t.Errorf("a write to unread: %v", err)
	}
	w = once(&Write{
		Ops: counters.Ops{engine.Join(1, 0, 7), engine.Leave(1, 0, 7)}, Deadline: soon(),
		Spaces: []*Keyspace{posts, unread}, In: []uint8{0, 1},
	})
	if err := n.Write(posts, w); !errors.Is(err, raftfsm.ErrOtherOps) {
		t.Errorf("a write to posts and unread: %v", err)
	}
	in := make([]bool, 1)
	mustDo(t, n.Check(posts, 0, 7, []uint64{1}, &ReadOptions{Deadline: soon()}, in))
	if in[0] {
		t.Error("an op of a refused write was applied")
	}
}

// Messages of a source join and leave sets, in the order of the queue and each once.
func TestMembersOfASource(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	source, err := SourcesOf(n).CreateSource(ctx, "likes", json.RawMessage(`{"type":"test"}`), false)
	mustDo(t, err)
	var ops []sink.Op
	for i, kind := range []sink.OpKind{sink.Join, sink.Add, sink.Leave, sink.Add, sink.Join, sink.Join, sink.Add} {
		value := int64(7) // the member
		if kind == sink.Add {
			value = 10
		}
		ops = append(ops, sink.Op{Position: sink.Position{Lo: uint64(i)}, Keyspace: "posts", ID: 5, Kind: kind, Cells: []sink.Cell{{Column: "like", Value: value}}})
	}
	s := SourcesOf(n)
	_, err = s.Start(ctx, source.Number, 0, sink.Start{Identity: "likes"})
	mustDo(t, err)
	_, err = s.Positions(ctx, source.Number, 0)
	mustDo(t, err)
	b := &sink.Batch{Source: source.Number, Next: sink.Position{Lo: uint64(len(ops))}, Ops: ops}
	for range 2 {
		if rejected, err := s.Check(ctx, b); err != nil || len(rejected) > 0 {
			t.Fatal(rejected, err)
		}
		if applied, err := s.Apply(ctx, b); err != nil || len(applied.Rejected) > 0 {
			t.Fatal(applied, err)
		}
	}
	posts := n.Keyspace("posts")
	row, in := make([]int64, 4), make([]bool, 2)
	opt := &ReadOptions{Consistency: Linearizable, Deadline: soon()}
	mustDo(t, n.Get(posts, []uint64{5}, 4, opt, row))
	mustDo(t, n.Check(posts, 2, 7, []uint64{5, 6}, opt, in))
	if row[2] != 31 || !in[0] || in[1] {
		t.Errorf("the row is %v, member 7 is in %v, want 31 likes and in the first", row, in)
	}

	like := []sink.Cell{{Column: "like", Value: 7}}
	bad := &sink.Batch{Source: source.Number, Ops: []sink.Op{
		{Keyspace: kinds.KeyspaceUnread, Kind: sink.Join, Cells: like},
		{Keyspace: "posts", Kind: sink.Leave, Cells: []sink.Cell{{Column: "likes", Value: 7}}},
		{Keyspace: "posts", Kind: sink.Join, Cells: append(like, sink.Cell{Column: "view"})},
		{Keyspace: "posts", Kind: sink.Leave, Cells: like, HasFloor: true},
		{Keyspace: "posts", Kind: sink.Leave + 1, Cells: like},
	}}
	rejected, err := s.Check(ctx, bad)
	if mustDo(t, err); len(rejected) != len(bad.Ops) {
		t.Errorf("of %d bad ops are rejected: %+v", len(bad.Ops), rejected)
	}
}

// A single node whose sets are damaged on disk refuses the ops and the reads that need the
// damaged part, at once, and serves all others: 1. nothing of a refused write is applied;
// 2. counts of the same rows, and other sets, are served; 3. all this holds after a restart too.
func TestDamagedMembersOfASingleNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shards := map[string]int{"posts": 1, "users": 1}
	n := openNode(t, dir, shards)
	var ops []engine.Op
	for i := range uint64(10_000) {
		ops = append(ops, engine.Join(i/10, 2, i*7919))
	}
	memberWrite(t, n, n.Keyspace("posts"), ops...)
	mustStop(t, n)
	n = openNode(t, dir, shards) // Pebble writes what its log has to a table
	mustStop(t, n)
	tables, err := filepath.Glob(filepath.Join(dir+"-members", "*.sst"))
	mustDo(t, err)
	for _, name := range tables {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		mustDo(t, err)
		_, err = f.WriteAt(make([]byte, 2048), 64) // of the first block: pairs of the lowest rows
		mustDo(t, errors.Join(err, f.Close()))
	}
	if len(tables) == 0 {
		t.Fatal("there are no tables to damage")
	}
	for range 2 {
		n = openNode(t, dir, shards)
		ks := n.Keyspace("posts")
		for _, op := range []engine.Op{engine.Join(0, 2, 7919), engine.Leave(0, 2, 7919)} {
			w := once(&Write{Ops: counters.Ops{addTo(0, 0, 1), op}, Deadline: soon()})
			if err := n.Write(ks, w); !errors.Is(err, errs.ErrUnreadable) {
				t.Errorf("an op on a damaged set: %v", err)
			}
		}
		if err := n.Check(ks, 2, 7919, []uint64{0}, &ReadOptions{Deadline: soon()}, make([]bool, 1)); !errors.Is(err, errs.ErrUnreadable) {
			t.Errorf("a check of a damaged set: %v", err)
		}
		w := memberWrite(t, n, ks, addTo(0, 1, 1), engine.Join(999, 2, 5), engine.Leave(999, 2, 5))
		if w.Rows[0] != 0 || w.Rows[2] != 10 || !slices.Equal(w.Changed, []int{1, 2}) {
			t.Errorf("row 0 is %v, ops %v changed a set", w.Rows[:4], w.Changed)
		}
		if in := isIn(t, n, ks, 9_999*7919, w, 999, 998); !in[0] || in[1] {
			t.Errorf("member of an undamaged set: %v", in)
		}
		mustStop(t, n)
	}
}
