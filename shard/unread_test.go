package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/unread"
)

// mustBoard applies one op on the board and returns its write with the row.
func mustBoard(t *testing.T, n *Node, op unread.BoardOp) *Write {
	t.Helper()
	w := once(&Write{Ops: &op, Width: 2, Rows: make([]int64, 2), Deadline: soon()})
	mustDo(t, n.Write(n.Keyspace(kinds.KeyspaceBoard), w))
	return w
}

func mustMove(t *testing.T, n *Node, user uint64, number uint8, seq int64) *Write {
	t.Helper()
	w := once(&Write{
		Ops:   unread.CursorOps{{ID: user, Kind: unread.Raise, Cells: []engine.Cell{{Column: number, Value: seq + 1}}}},
		Width: int(number) + 1, Rows: make([]int64, int(number)+1), Deadline: soon(),
	})
	mustDo(t, n.Write(n.Keyspace(kinds.KeyspaceUnread), w))
	return w
}

func mustFollow(t *testing.T, n *Node, user uint64, followees ...feed.Followee) *Write {
	t.Helper()
	w := once(&Write{
		Ops:   feed.Ops{{Kind: feed.Follow, User: user, Followees: followees}},
		Width: 1, Rows: make([]int64, 1), Deadline: soon(),
	})
	mustDo(t, n.Write(n.Keyspace(kinds.KeyspaceFeed), w))
	return w
}

// Each node writes and reads cursors, feeds and the board. It leads some shards, follows others,
// and with four nodes does not hold some. Every node holds the board.
func TestAnyNodeAnswersUnread(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	notices := all[0].Keyspace(kinds.KeyspaceBoard).FirstGroup
	eventually(t, "every node holds the board", func() bool {
		return !slices.ContainsFunc(all, func(n *Node) bool { return n.registry.shardOf(notices).replica.Load() == nil })
	})
	users := []uint64{0, 1, 2, 3, 4, 5, 1<<64 - 1}
	for round, n := range all {
		seq := int64(round) + 1
		tokens := []Token{mustBoard(t, n, unread.BoardOp{Kind: unread.Publish, Name: "news"}).Token}
		for _, user := range users {
			tokens = append(tokens, mustMove(t, n, user, 1, seq).Token, mustFollow(t, n, user, feed.Followee{ID: uint64(seq), Posts: seq}).Token)
		}
		for _, reader := range all {
			mustReadUnread(t, reader, users, seq, ReadOptions{Consistency: Linearizable})
			for _, token := range tokens {
				mustReadUnread(t, reader, nil, 0, ReadOptions{Consistency: Stale, Token: token})
			}
		}
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
}

// mustReadUnread checks the cursors, the feeds and the board after round seq.
func mustReadUnread(t *testing.T, n *Node, users []uint64, seq int64, opt ReadOptions) {
	t.Helper()
	opt.Deadline = soon()
	view, err := n.Board(n.Keyspace(kinds.KeyspaceBoard), &opt)
	if err != nil || seq > 0 && view.Channels["news"].Latest != seq {
		t.Fatalf("%s: board %+v, %v, want %d", n.cfg.NodeName, view, err, seq)
	}
	if len(users) == 0 {
		users = []uint64{7}
	}
	rows := make([]int64, 2*len(users))
	mustDo(t, n.Cursors(n.Keyspace(kinds.KeyspaceUnread), users, 2, &opt, rows))
	var feeds Feeds
	mustDo(t, n.Feeds(n.Keyspace(kinds.KeyspaceFeed), users, &opt, &feeds))
	for i := range users {
		if seq > 0 && (rows[2*i] < 20_000 || rows[2*i+1] != seq+1) {
			t.Fatalf("%s: cursors of %d are %v, want %d", n.cfg.NodeName, users[i], rows[2*i:2*i+2], seq+1)
		}
		if of := feeds.Of(i); seq > 0 && (len(of) != int(seq) || of[seq-1] != feed.Followee{ID: uint64(seq), Posts: seq}) {
			t.Fatalf("%s: feed of %d is %v, want %d", n.cfg.NodeName, users[i], of, seq)
		}
	}
}

// Shards of all kinds are backed up and restored through the log of another cluster, without force
// into an empty cluster, and with force over other rows.
func TestRestoreOfKinds(t *testing.T) {
	t.Parallel()
	from := []*Node{openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})}
	n := from[0]
	for i := range 3 {
		mustBoard(t, n, unread.BoardOp{Kind: unread.Publish, Name: fmt.Sprint("c", i)})
		mustBoard(t, n, unread.BoardOp{Kind: unread.Fire, Name: fmt.Sprint("d", i)})
	}
	mustBoard(t, n, unread.BoardOp{Kind: unread.Retract, Name: "c1", Seq: 1})
	mustBoard(t, n, unread.BoardOp{Kind: unread.SetDot, Name: "d1"})
	for user := range uint64(300) {
		mustMove(t, n, user, uint8(1+user%6), int64(user%2))
		mustFollow(t, n, user*3, feed.Followee{ID: user, Posts: int64(user) - 5}, feed.Followee{ID: user + 1<<40, Posts: 1 << 50})
	}
	mustDo(t, n.Write(n.Keyspace(kinds.KeyspaceUnread), &Write{Ops: counters.Ops{addTo(1, 0, 5), addTo(2, 3, 70_000)}, Deadline: soon()}))
	mustWrite(t, n, n.Keyspace("users"), addTo(1, 2, 5)) // three columns in rows of width four
	to := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for _, name := range []string{"users", kinds.KeyspaceBoard, kinds.KeyspaceUnread, kinds.KeyspaceFeed} {
		t.Run(name, func(t *testing.T) {
			number := n.Keyspace(name).FirstGroup
			stream, facts := taken(t, from, number)
			if facts.Rows == 0 || facts.Digest == 0 {
				t.Fatalf("%+v shows too little", facts)
			}
			for _, force := range []bool{false, true} {
				if got, err := RestoreShard(ctx, to, number, bytes.NewReader(stream), force, nil); err != nil || got != facts {
					t.Fatalf("restored %+v, %v, want %+v", got, err, facts)
				}
			}
			if _, err := RestoreShard(ctx, to, number, bytes.NewReader(stream), false, nil); !errors.Is(err, ErrNotEmpty) {
				t.Errorf("over something: %v", err)
			}
			if other := n.Keyspace("posts").FirstGroup; name == kinds.KeyspaceFeed || name == kinds.KeyspaceBoard {
				if _, err := RestoreShard(ctx, to, other, bytes.NewReader(stream), true, nil); !errors.Is(err, ErrBadSnapshot) {
					t.Errorf("into a shard of another kind: %v", err)
				}
			}
		})
	}
}

// A restore sets cursors beyond the board's end back to that end, and leaves out those of channels
// and dots that the board lacks. So later notices and firings are new to everybody.
func TestRestoreBoundsCursorsByTheBoard(t *testing.T) {
	t.Parallel()
	from := []*Node{openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})}
	n := from[0]
	publish, fire := unread.BoardOp{Kind: unread.Publish, Name: "news"}, unread.BoardOp{Kind: unread.Fire, Name: "shop"}
	late := unread.BoardOp{Kind: unread.Publish, Name: "late"}
	mustBoard(t, n, publish)
	mustBoard(t, n, fire)
	mustMove(t, n, 1, 1, 1)
	mustMove(t, n, 4, 1, 0)
	number := n.Keyspace(kinds.KeyspaceBoard).FirstGroup
	notices, boardFacts := taken(t, from, number)
	for _, op := range []unread.BoardOp{publish, publish, publish, fire, late} { // while the backup is still being made
		mustBoard(t, n, op)
	}
	for column, seq := range map[uint8]int64{1: 4, 2: 2, 3: 1} {
		mustMove(t, n, 1, column, seq)
		mustMove(t, n, 2, column, seq)
	}
	mustMove(t, n, 3, 3, 1)
	unread, unreadFacts := taken(t, from, n.Keyspace(kinds.KeyspaceUnread).FirstGroup)

	to := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	if got, err := RestoreShard(ctx, to, number, bytes.NewReader(notices), false, nil); err != nil || got != boardFacts {
		t.Fatalf("the board: %+v, %v, want %+v", got, err, boardFacts)
	}
	for _, force := range []bool{false, true} {
		got, err := RestoreShard(ctx, to, n.Keyspace(kinds.KeyspaceUnread).FirstGroup, bytes.NewReader(unread), force, nil)
		if err != nil || got.SetBack != 7 || got.Rows != unreadFacts.Rows || got.Digest == unreadFacts.Digest {
			t.Fatalf("unread: %+v, %v, was %+v", got, err, unreadFacts)
		}
	}
	rows := make([]int64, 4*4)
	mustDo(t, to.Cursors(to.Keyspace(kinds.KeyspaceUnread), []uint64{1, 2, 3, 4}, 4, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, rows))
	for i, want := range [][]int64{{2, 2, 0}, {2, 2, 0}, {0, 0, 0}, {1, 0, 0}} {
		if got := rows[4*i+1 : 4*i+4]; rows[4*i] == 0 || !slices.Equal(got, want) {
			t.Errorf("user %d stands at %v, want %v", i+1, rows[4*i:4*i+4], want)
		}
	}
	for range 3 {
		mustBoard(t, to, publish)
	}
	view, err := to.Board(to.Keyspace(kinds.KeyspaceBoard), &ReadOptions{Consistency: Linearizable, Deadline: soon()})
	mustDo(t, err)
	news := view.Channels["news"]
	if at, _ := news.LastRead(rows[:4]); news.Unread(at) != 3 {
		t.Errorf("three notices later user 1 has %d unread", news.Unread(at))
	}
}

// Cursors that were idle for long, by the time of the log, are dropped without a request, and
// others stay.
func TestIdleCursorsAreSwept(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	mustMove(t, n, 1, 1, 5)
	r := n.registry.shardOf(n.Keyspace(kinds.KeyspaceUnread).FirstGroup).replica.Load()
	fsm := r.fsm.Machine.(*unread.Machine)
	later := time.Now().Add(unread.CursorIdleDefault + 25*time.Hour)
	var w raftfsm.RequestWriter
	w.Reset(nil, n.registry.shardOf(n.Keyspace(kinds.KeyspaceUnread).FirstGroup).first, &dedup.RequestID{})
	unread.CursorOps{{Kind: unread.Raise, Cells: []engine.Cell{{Column: 1, Value: 6}}}}.AppendTo(&w, 2, 0)
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindUnread, 0), later, LimitsDefault)
	mustDo(t, r.group.Apply(codec.AppendChecksum(append(entry, w.Section()...))).Error())
	eventually(t, "the sweep has come round", func() bool { return fsm.Sweep().Done && fsm.Sweep().Day > 0 && fsm.Dropped() == 1 })
	if fsm.Cursors().Has(1) || !fsm.Cursors().Has(2) {
		t.Errorf("rows of 1: %v, of 2: %v", fsm.Cursors().Has(1), fsm.Cursors().Has(2))
	}
	index := fsm.Applied()
	time.Sleep(2 * unread.SweepPause) // nothing happens, so there is no event to wait for
	if fsm.Applied() != index {
		t.Errorf("the sweep goes on: entries %d to %d", index, fsm.Applied())
	}
}
