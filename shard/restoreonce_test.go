package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// copyingGroup keeps a copy of each entry, as a network may. The first try of each entry ends with
// an unknown outcome; the entry is in the log unless lose returns true for it.
type copyingGroup struct {
	propose.Group
	lose func(entry int) bool
	well atomic.Bool // from now on it only forwards entries

	mu struct {
		sync.Mutex
		entries [][]byte
	}
}

func (g *copyingGroup) Apply(entry []byte) raft.ApplyFuture {
	if g.well.Load() {
		return g.Group.Apply(entry)
	}
	g.mu.Lock()
	number := len(g.mu.entries)
	g.mu.entries = append(g.mu.entries, slices.Clone(entry))
	g.mu.Unlock()
	if g.lose != nil && g.lose(number) {
		return failedFuture{raft.ErrLeadershipLost}
	}
	future := g.Group.Apply(entry)
	if number%2 == 0 && future.Error() == nil {
		return failedFuture{raft.ErrLeadershipLost}
	}
	return future
}

func (g *copyingGroup) proposed() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.mu.entries)
}

// copies makes a shard propose through a copyingGroup.
func copies(n *Node, number uint32, lose func(entry int) bool) *copyingGroup {
	g := n.registry.shardOf(number)
	between := &copyingGroup{Group: g.replica.Load().group, lose: lose}
	reconfigure(n, g, func(cfg *propose.Config) { cfg.Group = between })
	return between
}

// late proposes the copies.
func (g *copyingGroup) late(t *testing.T) {
	t.Helper()
	if len(g.mu.entries) == 0 {
		t.Error("nothing was proposed")
	}
	for _, entry := range g.mu.entries {
		mustDo(t, g.Group.Apply(entry).Error())
	}
}

// givenUp begins restores of a shard and gives them up, until one has proposed more than its first
// write and the repeat of that write. Everything after those two is lost.
func givenUp(t *testing.T, n *Node, number uint32, restore func(context.Context) error) *copyingGroup {
	t.Helper()
	for timeout := 500 * time.Millisecond; ; timeout *= 2 {
		g := copies(n, number, func(entry int) bool { return entry >= 2 })
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		err := restore(ctx)
		cancel()
		if err == nil {
			t.Fatal("a restore whose entries were lost has ended")
		}
		proposed := g.proposed() // more may come
		if proposed > 2 {
			return g
		}
		if timeout > eventuallyMax {
			t.Fatalf("a restore proposed %d entries in %v: %v", proposed, timeout, err)
		}
	}
}

// filledNode returns a node with shards of all kinds, each with writes of some clients.
func filledNode(t *testing.T) *Node {
	t.Helper()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	for user := range uint64(20) {
		mustBoard(t, n, unread.BoardOp{Kind: unread.Publish, Name: "news"})
		mustMove(t, n, user, 1, int64(user/2))
		mustFollow(t, n, user, feed.Followee{ID: user + 1, Posts: 3})
		mustWrite(t, n, n.Keyspace("posts"), addTo(user, 0, 1), addTo(user, 3, 70_000))
	}
	return n
}

// Copies of a restore's writes that come late, after increments that were acknowledged since,
// change nothing. Nor do the writes of a restore that was given up, once another restore has begun,
// even if they were never applied before.
func TestLateCopiesOfARestoreChangeNothing(t *testing.T) {
	t.Parallel()
	from := filledNode(t)
	for _, name := range []string{"posts", kinds.KeyspaceBoard, kinds.KeyspaceUnread, kinds.KeyspaceFeed} {
		t.Run(name, func(t *testing.T) {
			number := from.Keyspace(name).FirstGroup
			stream, _ := taken(t, []*Node{from}, number)
			to := filledNode(t) // also deletes come late
			change := func() {
				mustBoard(t, to, unread.BoardOp{Kind: unread.Publish, Name: "news"})
				mustMove(t, to, 3, 1, 15)
				mustFollow(t, to, 3, feed.Followee{ID: 900, Posts: 3})
				mustWrite(t, to, to.Keyspace("posts"), addTo(0, 0, 5), addTo(3, 0, 5), addTo(70, 0, 5))
			}
			restore := func(ctx context.Context) error {
				_, err := RestoreShard(ctx, to, number, bytes.NewReader(stream), true, nil)
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
			defer cancel()
			other := givenUp(t, to, number, restore)
			own := copies(to, number, nil)
			mustDo(t, restore(ctx))
			own.well.Store(true)
			change()
			was := reportedBy(to, number)
			own.late(t)
			other.late(t)
			if is := reportedBy(to, number); is.Digest != was.Digest || is.Rows != was.Rows || is.AppliedIndex == was.AppliedIndex {
				t.Errorf("copies came late, and the shard has %d rows of digest %s at %d, had %d of %s at %d",
					is.Rows, is.Digest, is.AppliedIndex, was.Rows, was.Digest, was.AppliedIndex)
			}
		})
	}
}

// If a shard has accepted a restore with a clock that was ahead, the next restore begins ahead of
// that clock.
func TestRestoreBehindAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
	ks := n.Keyspace("posts")
	mustWrite(t, n, ks, addTo(1, 0, 1))
	stream, facts := taken(t, []*Node{n}, ks.FirstGroup)
	ahead := uint64(time.Now().Add(10 * time.Hour).UnixNano())
	other := &Write{Ops: counters.Ops{addTo(2, 0, 1)}, ID: dedup.ByRestore(ahead, false), Deadline: soon()}
	mustDo(t, n.Write(ks, other))
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	if got, err := RestoreShard(ctx, n, ks.FirstGroup, bytes.NewReader(stream), true, nil); err != nil || got != facts {
		t.Errorf("restored %+v, %v, want %+v", got, err, facts)
	}
	if err := n.Write(ks, other); !errors.Is(err, errs.ErrExpired) {
		t.Errorf("the other one goes on: %v", err)
	}
}

// A restore makes a shard forget the requests of clients. It removes a write that was made after
// the backup, so that write counts when it is repeated.
func TestRestoreForgetsRequests(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks, notices := n.Keyspace("posts"), n.Keyspace(kinds.KeyspaceBoard)
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	ids := map[string]dedup.RequestID{"key": dedup.ByKey([]byte("k")), "producer": dedup.ByProducer([]byte("p"), 7)}
	posts, _ := taken(t, []*Node{n}, ks.FirstGroup)
	boards, _ := taken(t, []*Node{n}, notices.FirstGroup)
	add := func(id dedup.RequestID) *Write {
		w := &Write{Ops: counters.Ops{addTo(1, 0, 1)}, ID: id, Width: 1, Rows: make([]int64, 1), Deadline: soon()}
		mustDo(t, n.Write(ks, w))
		return w
	}
	publish := func(id dedup.RequestID) *Write {
		op := unread.BoardOp{Kind: unread.Publish, Name: "news"}
		w := &Write{Ops: &op, ID: id, Width: 2, Rows: make([]int64, 2), Deadline: soon()}
		mustDo(t, n.Write(notices, w))
		return w
	}
	publish(dedup.RequestID{})
	for _, id := range ids {
		add(id)
		publish(id)
	}
	for number, stream := range map[uint32][]byte{ks.FirstGroup: posts, notices.FirstGroup: boards} {
		if _, err := RestoreShard(ctx, n, number, bytes.NewReader(stream), true, nil); err != nil {
			t.Fatal(err)
		}
	}
	count := int64(0)
	for name, id := range ids {
		count++
		for round := range 2 {
			again := round > 0
			if w := add(id); w.Duplicate != again || w.Rows[0] != count {
				t.Errorf("by %s, round %d: duplicate %v, count %d, want %d", name, round, w.Duplicate, w.Rows[0], count)
			}
			if w := publish(id); w.Duplicate != again || w.Rows[1] != count {
				t.Errorf("by %s, round %d: duplicate %v, notice %d, want %d", name, round, w.Duplicate, w.Rows[1], count)
			}
		}
	}
}

// A node proposes nothing for a caller that has gone away.
func TestPartsOfACallerWhoHasGoneAreNotProposed(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
	ks := n.Keyspace("posts")
	var writer raftfsm.RequestWriter
	op := addTo(1, 0, 1)
	writer.Reset(nil, n.registry.shardOf(ks.FirstGroup).first, &dedup.RequestID{})
	counters.Ops{op}.AppendTo(&writer, 1, 0)
	request := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(ks.FirstGroup)), 1)
	request = propose.AppendPart(request, &propose.ForwardedPart{Section: writer.Section()})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	answer, err := n.writer.serveParts(gone, request)
	mustDo(t, err)
	r := wire.Reader{Rest: answer}
	if q := propose.ParseOutcome(&r, 0); !errors.Is(q.Err, errs.ErrOverloaded) || r.End() != nil {
		t.Errorf("told %v", q.Err)
	}
	if got := mustGet(t, n, ks, ReadOptions{}, 1); got[0] != 0 {
		t.Errorf("it counted: %v", got)
	}
}
