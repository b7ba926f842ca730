package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/source/sink"
)

// numbered is a queue with the given number of messages. Message m adds 1 to row m mod 7 of posts
// and to the unread number of user m mod 5.
type numbered int

const (
	numberedPosts = 7
	numberedUsers = 5
)

func (q numbered) ops(from, to uint64) (ops []sink.Op) {
	for m := from; m < to; m++ {
		at, like := sink.Position{Lo: m}, []sink.Cell{{Column: "like", Value: 1}}
		ops = append(ops, sink.Op{Position: at, Keyspace: "posts", ID: m % numberedPosts, Cells: like},
			sink.Op{Position: at, Keyspace: kinds.KeyspaceUnread, ID: m % numberedUsers, Cells: like})
	}
	return ops
}

// read runs a reader until all shards have every message. It begins anew after every error.
func (q numbered) read(ctx context.Context, s sink.Sink, source uint64, batch uint64) error {
	for ctx.Err() == nil {
		err := q.session(ctx, s, source, batch)
		if err == nil || errors.Is(err, sink.ErrStopped) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return ctx.Err()
}

func (q numbered) session(ctx context.Context, s sink.Sink, source uint64, batch uint64) error {
	start, err := s.Start(ctx, source, 0, sink.Start{Identity: "numbered"})
	if err != nil {
		return err
	}
	all, err := s.Positions(ctx, source, 0)
	if err != nil {
		return err
	}
	from, _ := sink.Span(all, start.Position)
	for {
		b := &sink.Batch{Source: source, From: from, Next: sink.Position{Lo: min(uint64(q), from.Lo+batch)}}
		b.Ops = q.ops(from.Lo, b.Next.Lo)
		if rejected, err := s.Check(ctx, b); err != nil || len(rejected) > 0 {
			return errors.Join(err, errors.New("rejected"))
		}
		if _, err := s.Apply(ctx, b); err != nil {
			return err
		}
		if from = b.Next; len(b.Ops) == 0 {
			return nil
		}
	}
}

// wantCounts checks all rows of a queue. Message m must have been applied times(m) times.
func (q numbered) wantCounts(t *testing.T, n *Node, times func(m uint64) int64) {
	t.Helper()
	posts, users := [numberedPosts]int64{}, [numberedUsers]int64{}
	for m := range uint64(q) {
		posts[m%numberedPosts] += times(m)
		users[m%numberedUsers] += times(m)
	}
	for _, rows := range []struct {
		keyspace string
		want     []int64
	}{{"posts", posts[:]}, {kinds.KeyspaceUnread, users[:]}} {
		ks := n.Keyspace(rows.keyspace)
		for id, want := range rows.want {
			got := make([]int64, len(ks.Columns))
			mustDo(t, n.Get(ks, []uint64{uint64(id)}, len(got), &ReadOptions{Consistency: Linearizable, Deadline: soon()}, got))
			if got[ks.Column("like")] != want {
				t.Errorf("row %d of %s has %d, want %d", id, rows.keyspace, got[ks.Column("like")], want)
			}
		}
	}
}

// Nodes read a queue concurrently while leaders move and a shard is restored from a backup. Each
// message counts once. After a seek back, each message from the new position on counts once more.
// For a new source with the name of the deleted one, every message counts once more.
func TestSourceIsAppliedOnce(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	n := all[0]
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	const queue = numbered(1500)
	source, err := SourcesOf(n).CreateSource(ctx, "numbers", json.RawMessage(`{"type":"test"}`), false)
	mustDo(t, err)
	if _, err := SourcesOf(n).CreateSource(ctx, "numbers", json.RawMessage(`{}`), false); !errors.Is(err, ErrSourceExists) {
		t.Errorf("made twice: %v", err)
	}

	part := numbered(500)
	mustDo(t, part.read(ctx, SourcesOf(all[1]), source.Number, 64))
	part.wantCounts(t, all[2], func(uint64) int64 { return 1 })
	shard := n.Keyspace("posts").FirstGroup + 1
	backup, _ := taken(t, all, shard)

	var moves, reads sync.WaitGroup
	moving, stop := context.WithCancel(ctx)
	moves.Go(func() {
		for i := 0; moving.Err() == nil; i++ {
			for _, from := range all {
				for _, g := range from.registry.groups.Load().all {
					if r, err := g.led(); err == nil && r != nil && int(g.number)%3 == i%3 {
						_ = from.membership.HandOver(g.number, all[i%3].cfg.NodeKey) // a failed handover does not matter
					}
				}
			}
			select {
			case <-moving.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	for i, batch := range []uint64{17, 50} {
		reads.Go(func() {
			if err := queue.read(ctx, SourcesOf(all[i]), source.Number, batch); err != nil {
				t.Errorf("reader %d: %v", i, err)
			}
		})
	}
	reads.Wait()
	if _, err := RestoreShard(ctx, n, shard, bytes.NewReader(backup), true, nil); err != nil {
		t.Errorf("restore: %v", err)
	}
	mustDo(t, queue.read(ctx, SourcesOf(all[2]), source.Number, 100)) // only the restored shard lacks messages
	stop()
	moves.Wait()
	queue.wantCounts(t, n, func(uint64) int64 { return 1 })

	back := map[uint32]sink.Position{0: {Lo: 1000}}
	if _, err := seekSource(ctx, n, back); !errors.Is(err, ErrNotPaused) {
		t.Errorf("a seek of a running source: %v", err)
	}
	_, err = pauseSource(ctx, n, true)
	mustDo(t, err)
	if err := queue.session(ctx, SourcesOf(all[1]), source.Number, 10); err != nil {
		t.Errorf("a paused source at its end: %v", err)
	}
	_, err = seekSource(ctx, n, back)
	mustDo(t, err)
	_, err = pauseSource(ctx, n, false)
	mustDo(t, err)
	for _, reader := range all[1:] {
		reads.Go(func() {
			if err := queue.read(ctx, SourcesOf(reader), source.Number, 33); err != nil {
				t.Errorf("after the seek: %v", err)
			}
		})
	}
	reads.Wait()
	queue.wantCounts(t, n, func(m uint64) int64 { return 1 + min(1, int64(m/1000)) })

	mustDo(t, deleteSource(ctx, n))
	if err := deleteSource(ctx, n); !errors.Is(err, ErrUnknownSource) {
		t.Errorf("deleted twice: %v", err)
	}
	eventually(t, "no shard has positions of the deleted source", func() bool {
		for _, n := range all {
			for _, g := range n.registry.groups.Load().all {
				if r := g.replica.Load(); r != nil && len(r.fsm.Sources()) > 0 {
					return false
				}
			}
		}
		return true
	})
	if err := queue.read(ctx, SourcesOf(all[1]), source.Number, 33); !errors.Is(err, sink.ErrStopped) {
		t.Errorf("a reader of a deleted source: %v", err)
	}
	again, err := SourcesOf(n).CreateSource(ctx, "numbers", json.RawMessage(`{}`), false)
	mustDo(t, err)
	if again.Number == source.Number {
		t.Errorf("number %d was given twice", again.Number)
	}
	reads.Go(func() { // the node may still lead shards
		if err := all[2].Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := queue.read(ctx, SourcesOf(all[1]), again.Number, 50); err != nil {
		t.Errorf("beside a node that stops: %v", err)
	}
	reads.Wait()
	queue.wantCounts(t, n, func(m uint64) int64 { return 2 + min(1, int64(m/1000)) })
	eventually(t, "digests agree", func() bool { return digestsAgree(all[:2]) })
}

// The meaning of messages changes while the source is paused and its shards are at one position.
// After the change, the shards apply no section that was in flight before it, and no batch of a
// reader with the old configuration.
func TestMeaningIsFenced(t *testing.T) {
	t.Parallel()
	n, ctx := openMembers(t, 1)[0], t.Context()
	const queue = numbered(40)
	s, err := SourcesOf(n).CreateSource(ctx, "numbers", json.RawMessage(`{}`), false)
	mustDo(t, err)
	mustDo(t, numbered(10).read(ctx, SourcesOf(n), s.Number, 10))
	key := dedup.PositionKey{Source: s.Number}
	posts := n.Keyspace("posts")
	late := counters.Ops{}
	advance := func(from, to uint64) Answer {
		return sendSections(n, posts, late, dedup.SourceSection{PositionKey: key, Mode: dedup.SectionAdvance, Epoch: 1, Prev: sink.Position{Lo: from}, Next: sink.Position{Lo: to}})[0]
	}
	for _, op := range queue.ops(10, 20) {
		if op.Keyspace == "posts" && posts.ShardOf(op.ID) == 0 {
			late = append(late, engine.Op{ID: op.ID, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: uint8(posts.Column("like")), Value: 1}}})
		}
	}
	mustDo(t, advance(10, 20).Err)

	change := func(of catalog.Source) (catalog.Source, error) {
		settled, err := SourcesOf(n).SettleSource(ctx, of)
		if err != nil {
			return of, err
		}
		return SourcesOf(n).SetMeaning(ctx, of, json.RawMessage(`{"other":1}`), settled, false)
	}
	if _, err := change(s); err == nil {
		t.Error("changed while it runs")
	}
	s, err = pauseSource(ctx, n, true)
	mustDo(t, err)
	if _, err := change(s); !errors.Is(err, ErrNotPaused) {
		t.Errorf("while shards are apart: %v", err)
	}
	_, err = pauseSource(ctx, n, false)
	mustDo(t, err)
	mustDo(t, numbered(20).read(ctx, SourcesOf(n), s.Number, 10))
	if _, err := SourcesOf(n).SettleSource(ctx, s); err != nil {
		t.Fatal(err)
	}
	_, err = pauseSource(ctx, n, true)
	mustDo(t, err)
	if _, err := change(s); err == nil {
		t.Error("changed by what was settled before another pause")
	}
	s, err = SourcesOf(n).Source("numbers")
	mustDo(t, err)
	is, err := change(s)
	mustDo(t, err)
	if is.Number == s.Number || is.Paused || is.Partitions[0].Start != (sink.Position{Lo: 20}) {
		t.Errorf("it is %+v", is)
	}
	if advance(20, 40).Outcome == dedup.Applied {
		t.Error("a section from before the change was applied")
	}
	if err := queue.read(ctx, SourcesOf(n), s.Number, 10); !errors.Is(err, sink.ErrStopped) {
		t.Errorf("a reader of the old meaning: %v", err)
	}
	mustDo(t, queue.read(ctx, SourcesOf(n), is.Number, 10))
	queue.wantCounts(t, n, func(uint64) int64 { return 1 })
}

// After a seek, the shards apply no section of a reader that has not learned of the pause.
// Otherwise the messages that it read beyond the new position would count again.
func TestSeekIsFenced(t *testing.T) {
	t.Parallel()
	n, ctx := openMembers(t, 1)[0], t.Context()
	late := func(section dedup.SourceSection) dedup.Outcome {
		answer := sendSections(n, n.Keyspace("posts"), nil, section)[0]
		mustDo(t, answer.Err)
		return answer.Outcome
	}
	seek := func(to uint64) {
		_, err := pauseSource(ctx, n, true)
		mustDo(t, err)
		_, err = seekSource(ctx, n, map[uint32]sink.Position{0: {Lo: to}})
		mustDo(t, err)
	}
	s, err := SourcesOf(n).CreateSource(ctx, "numbers", json.RawMessage(`{}`), false)
	mustDo(t, err)
	key := dedup.PositionKey{Source: s.Number}
	_, err = SourcesOf(n).Start(ctx, s.Number, 0, sink.Start{Identity: "numbered"})
	mustDo(t, err)
	seek(5)
	if late(dedup.SourceSection{PositionKey: key, Mode: dedup.SectionBegin, Epoch: 1, Since: 1}) == dedup.Applied {
		t.Error("a shard without a position was begun after a seek, by a reader from before it")
	}
	_, err = pauseSource(ctx, n, false)
	mustDo(t, err)
	mustDo(t, numbered(10).read(ctx, SourcesOf(n), s.Number, 10))
	s, err = SourcesOf(n).Source("numbers")
	mustDo(t, err)
	epoch := s.Partitions[0].Epoch
	seek(15)
	if late(dedup.SourceSection{PositionKey: key, Mode: dedup.SectionAdvance, Epoch: epoch, Prev: sink.Position{Lo: 10}, Next: sink.Position{Lo: 30}}) == dedup.Applied {
		t.Error("a section from before a seek was applied after it")
	}
	_, err = pauseSource(ctx, n, false)
	mustDo(t, err)
	mustDo(t, numbered(40).read(ctx, SourcesOf(n), s.Number, 10))
	numbered(40).wantCounts(t, n, func(m uint64) int64 {
		if m < 5 || m >= 10 && m < 15 {
			return 0
		}
		return 1
	})
}

// No command is proposed for a source that does not exist.
func TestNoCommandWithoutSource(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	eventually(t, "nothing is proposed", func() bool { // repeat, because a new cluster proposes other commands at first
		before := n.registry.meta.LastIndex()
		_, pause := pauseSource(ctx, n, true)
		_, seek := seekSource(ctx, n, map[uint32]sink.Position{0: {}})
		for _, err := range []error{pause, seek, deleteSource(ctx, n)} {
			if !errors.Is(err, ErrUnknownSource) {
				t.Fatalf("a change of no source: %v", err)
			}
		}
		if _, err := SourcesOf(n).Start(ctx, 7, 0, sink.Start{Identity: "q"}); !errors.Is(err, sink.ErrStopped) {
			t.Fatalf("the start of no source: %v", err)
		}
		return n.registry.meta.LastIndex() == before
	})
}

// Before it refuses an op because of an unknown name, a node catches up with the catalog.
func TestCheckAsksForTheCatalog(t *testing.T) {
	t.Parallel()
	n := openMembers(t, 1)[0]
	like := []sink.Cell{{Column: "like", Value: 1}}
	ops := []sink.Op{
		{Keyspace: "posts", ID: 1, Cells: like},
		{Keyspace: "nothing", ID: 1, Cells: like},
		{Keyspace: kinds.KeyspaceBoard, ID: 1, Cells: like},
		{Keyspace: "posts", ID: 1, Cells: []sink.Cell{{Column: "nothing"}}},
		{Keyspace: "posts", ID: 1},
		{Keyspace: "posts", ID: 1, Cells: append(like, like...)},
		{Keyspace: kinds.KeyspaceUnread, ID: 1, Kind: sink.Set, Cells: like},
		{Keyspace: "posts", ID: 1, Kind: sink.Set, HasFloor: true, Cells: like},
		{Keyspace: kinds.KeyspaceUnread, ID: 1, Cells: like},
	}
	rejected, err := SourcesOf(n).Check(t.Context(), &sink.Batch{Ops: ops})
	mustDo(t, err)
	var got []int
	for _, r := range rejected {
		if r.Reason == "" {
			t.Errorf("op %d is rejected without a reason", r.Op)
		}
		got = append(got, r.Op)
	}
	if len(got) != 7 || got[0] != 1 || got[6] != 7 {
		t.Errorf("rejected %v, want 1 to 7", got)
	}
}

// Check reports for a refused op whether its shard has already passed the op's message.
func TestCheckOfPassedOps(t *testing.T) {
	t.Parallel()
	n := openMembers(t, 1)[0]
	ctx := t.Context()
	source, err := SourcesOf(n).CreateSource(ctx, "numbers", json.RawMessage(`{"type":"test"}`), false)
	mustDo(t, err)
	s, songs := SourcesOf(n), mustMake(t, n, "songs", 2, "plays", "likes")
	if _, err := s.Start(ctx, source.Number, 0, sink.Start{Identity: "queue"}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Positions(ctx, source.Number, 0)
	mustDo(t, err)
	shardOf := func(id uint64) int { shard, _ := songs.Route().KeyOf(id); return shard }
	other := uint64(2)
	for shardOf(other) == shardOf(1) {
		other++
	}
	like := []sink.Cell{{Column: "likes", Value: 1}}
	at := func(p uint64, id uint64) sink.Op {
		return sink.Op{Position: sink.Position{Lo: p}, Keyspace: "songs", ID: id, Cells: like}
	}
	_, err = s.Apply(ctx, &sink.Batch{Source: source.Number, Next: sink.Position{Lo: 1}, Ops: []sink.Op{at(0, 1)}})
	mustDo(t, err)
	_, err = n.DropColumn(ctx, "songs", "likes")
	mustDo(t, err)
	// as a reader that begins anew
	_, err = s.Positions(ctx, source.Number, 0)
	mustDo(t, err)
	rejected, err := s.Check(ctx, &sink.Batch{Source: source.Number, Next: sink.Position{Lo: 2}, Ops: []sink.Op{at(0, 1), at(0, other), at(1, 1)}})
	mustDo(t, err)
	if len(rejected) != 3 || !rejected[0].Passed || rejected[1].Passed || rejected[2].Passed {
		t.Errorf("%+v", rejected)
	}
}

// If the leader of a shard knows that a source was deleted, the shard applies no section of the
// source. This holds even if the shard missed the deletion because it had no leader, and even if
// the reader does not know of the deletion.
func TestDeletedIsFenced(t *testing.T) {
	t.Parallel()
	all, ctx := openMembers(t, 3), t.Context()
	n := all[0]
	s, err := SourcesOf(n).CreateSource(ctx, "numbers", json.RawMessage(`{}`), false)
	mustDo(t, err)
	mustDo(t, numbered(10).read(ctx, SourcesOf(n), s.Number, 10))
	s, err = SourcesOf(n).Source("numbers")
	mustDo(t, err)
	r, err := n.Change(ctx, &catalog.Command{DeleteSource: &catalog.DeleteSourceEntry{Name: s.Name, Version: s.Version}})
	if err != nil || r.Missing || r.Exists {
		t.Fatal(r, err)
	}
	for _, other := range all {
		mustDo(t, other.CatchUp(ctx))
	}
	posts := n.Keyspace("posts")
	for _, sender := range all[:2] { // each sender leads only some of the shards
		for _, section := range []dedup.SourceSection{
			{Mode: dedup.SectionAdvance, Epoch: 1, Prev: sink.Position{Lo: 10}, Next: sink.Position{Lo: 20}},
			{Mode: dedup.SectionBegin, Epoch: 1, Since: 1, Next: sink.Position{Lo: 10}},
			{Mode: dedup.SectionRead},
		} {
			section.PositionKey = dedup.PositionKey{Source: s.Number}
			var ops counters.Ops
			if section.Mode == dedup.SectionAdvance {
				for _, op := range numbered(20).ops(10, 20) {
					if op.Keyspace == "posts" {
						ops = append(ops, engine.Op{ID: op.ID, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: uint8(posts.Column("like")), Value: 1}}})
					}
				}
			}
			for shard, a := range sendSections(sender, posts, ops, slices.Repeat([]dedup.SourceSection{section}, posts.Shards)...) {
				if a.Err != nil || a.Outcome == dedup.Applied || !a.At.Deleted {
					t.Errorf("shard %d answers %+v to a section of mode %d", shard, a, section.Mode)
				}
			}
		}
	}
	numbered(10).wantCounts(t, n, func(uint64) int64 { return 1 })
}

// sendSections writes the i-th section to shard i of a keyspace, and returns the answers.
func sendSections(n *Node, ks *Keyspace, ops counters.Ops, sections ...dedup.SourceSection) []Answer {
	w := &Write{Ops: ops, Sections: make([]*dedup.RequestID, ks.Shards), Deadline: soon()}
	for shard, section := range sections {
		id := dedup.BySource(section)
		w.Sections[shard], w.ID = &id, id
	}
	if err := n.Write(ks, w); w.Answers == nil {
		w.Answers = slices.Repeat([]Answer{{Err: err}}, ks.Shards)
	}
	return w.Answers
}

// pauseSource pauses or resumes the source "numbers".
func pauseSource(ctx context.Context, n *Node, paused bool) (catalog.Source, error) {
	s, err := SourcesOf(n).Source("numbers")
	if err != nil {
		return s, err
	}
	return SourcesOf(n).SetPaused(ctx, s, paused, false)
}

func seekSource(ctx context.Context, n *Node, to map[uint32]sink.Position) (catalog.Source, error) {
	s, err := SourcesOf(n).Source("numbers")
	if err != nil {
		return s, err
	}
	return SourcesOf(n).SeekSource(ctx, s, to)
}

func deleteSource(ctx context.Context, n *Node) error {
	s, err := SourcesOf(n).Source("numbers")
	if err != nil {
		return err
	}
	return SourcesOf(n).DeleteSource(ctx, s)
}
