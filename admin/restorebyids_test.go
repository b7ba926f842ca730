package admin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source/sink"
)

// layout is how a keyspace got its shards.
type layout struct {
	created, by int // by is 1 if the keyspace has not grown
	sharding    string
}

func (l layout) String() string {
	return fmt.Sprintf("%d shards times %d %s", l.created, l.by, l.sharding)
}

// divisor returns RestoreOptions.Divisor for snapshots of the layout.
func (l layout) divisor() int {
	if l.sharding == shard.ShardingHash {
		return 1
	}
	return l.created
}

// laidOut opens a node on which each keyspace has its layout.
func laidOut(t *testing.T, layouts map[string]layout) (*Cluster, *shard.Node) {
	t.Helper()
	created := map[string]int{}
	for name, l := range layouts {
		if name != "songs" {
			created[name] = l.created
		}
	}
	a, n := openShards(t, created)
	l := layouts["songs"]
	_, err := n.CreateKeyspace(must.Context(t), shard.Keyspace{Name: "songs", Columns: []string{"a", "b"}, Shards: l.created, Sharding: l.sharding})
	must.Do(t, err)
	for name, l := range layouts {
		if l.by > 1 {
			_, err := a.Grow(must.Context(t), GrowOrder{Keyspace: name, By: l.by})
			must.Do(t, err)
		}
	}
	for name, l := range layouts {
		if l.by > 1 {
			must.Become(t, name+" has grown", func() bool { k := n.Keyspace(name); return k.Shards == l.created*l.by && k.Growing == nil })
		}
	}
	return a, n
}

// fill writes random contents of all kinds to a node.
func fill(t *testing.T, n *shard.Node, rng *rand.Rand) {
	t.Helper()
	put := func(keyspace string, ops raftfsm.Ops) {
		t.Helper()
		w := &shard.Write{Ops: ops, Deadline: time.Now().Add(10 * time.Second)}
		must.Do(t, n.Write(n.Keyspace(keyspace), w))
	}
	id := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	var songs, users, sums counters.Ops
	var cursors unread.CursorOps
	var outboxes counters.OutboxOps
	var feeds feed.Ops
	for range 200 {
		count := engine.Op{ID: id(), Kind: engine.OpSet, Cells: []engine.Cell{{Column: uint8(rng.IntN(2)), Value: rng.Int64()}}}
		songs = append(songs, count)
		users = append(users, count, engine.Join(id()%50, uint8(1+rng.IntN(2)), id()), engine.Join(count.ID, 1, id()))
		sums = append(sums, engine.Op{ID: id(), Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 3}}})
		cursors = append(cursors, engine.Op{ID: id(), Kind: engine.OpSet, Cells: []engine.Cell{{Column: 1, Value: 1 + rng.Int64N(20)}}})
		outboxes = append(outboxes, counters.OutboxOp{Author: id() % 50, PostOp: counters.PostOp{Kind: counters.Publish, ID: id(), Limits: counters.OutboxLimits{Posts: 4}}})
		user, followees := id(), []feed.Followee{{ID: 3, Posts: rng.Int64N(9)}, {ID: 9, Posts: rng.Int64N(9)}}
		feeds = append(feeds, feed.Op{Kind: feed.Reset, User: user, Followees: followees})
		feeds = append(feeds, feed.Op{Kind: feed.PutGroup, User: user, Group: "stars", Followees: []feed.Followee{{ID: 9}}})
	}
	put("songs", &songs)
	put("users", &users)
	put("users", &outboxes)
	put(kinds.KeyspaceUnread, &sums)
	put(kinds.KeyspaceUnread, &cursors)
	put(kinds.KeyspaceFeed, &feeds)
}

// snapshotsOf returns the snapshots of all shards of a keyspace, and the number of their rows.
func snapshotsOf(t *testing.T, n *shard.Node, keyspace string) (streams [][]byte, rows uint64) {
	t.Helper()
	for _, group := range n.Keyspace(keyspace).Groups {
		s, err := n.OpenSnapshot(must.Context(t), group)
		must.Do(t, err)
		stream, err := io.ReadAll(s)
		must.Do(t, errors.Join(err, s.Close()))
		streams, rows = append(streams, stream), rows+s.Rows
	}
	return streams, rows
}

// joined returns the stream of a restore by ids.
func joined(streams ...[]byte) *bytes.Reader {
	var all []byte
	for _, stream := range streams {
		all = append(binary.LittleEndian.AppendUint64(all, uint64(len(stream))), stream...)
	}
	return bytes.NewReader(all)
}

// counts returns all rows of a keyspace.
func counts(t *testing.T, n *shard.Node, keyspace string) string {
	t.Helper()
	q := rows.Scan{Width: 2, Limit: 4096}
	must.Do(t, n.Read(n.Keyspace(keyspace), &q, nil, &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: time.Now().Add(10 * time.Second)}))
	return fmt.Sprint(q.IDs, q.Rows)
}

// A keyspace of any kind, layout and sharding is restored by ids into one of any other layout. Each row is in exactly
// one shard there. RestoreShard compares the digest that each shard has then with that of the rows which it should have.
func TestRestoreByIDs(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	all := func() map[string]layout {
		layouts := map[string]layout{}
		for _, name := range []string{"songs", "users", kinds.KeyspaceUnread, kinds.KeyspaceFeed} {
			layouts[name] = layout{created: 1 + rng.IntN(4), by: 1 + rng.IntN(3)}
		}
		if l := layouts["songs"]; rng.IntN(2) == 0 {
			l.sharding = shard.ShardingHash
			layouts["songs"] = l
		}
		return layouts
	}
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		layouts, toLayouts := all(), all()
		_, from := laidOut(t, layouts)
		a, to := laidOut(t, toLayouts)
		for _, n := range []*shard.Node{from, to} {
			board := &unread.BoardOp{Kind: unread.PutChannel, Name: "news", Channel: &unread.Channel{Number: 1, Latest: 20}}
			must.Do(t, n.Write(n.Keyspace(kinds.KeyspaceBoard), &shard.Write{Ops: board, Deadline: time.Now().Add(10 * time.Second)}))
		}
		fill(t, from, rng)
		for name, l := range layouts {
			streams, total := snapshotsOf(t, from, name)
			restored := uint64(0)
			for _, group := range to.Keyspace(name).Groups {
				facts, err := a.RestoreShard(must.Context(t), group, joined(streams...), RestoreOptions{Force: true, Divisor: l.divisor()})
				if err != nil || facts.SetBack > 0 {
					t.Fatalf("%s of %v into %v: %+v, %v", name, l, toLayouts[name], facts, err)
				}
				restored += facts.Rows
			}
			if restored != total || total == 0 {
				t.Errorf("%s of %v into %v: %d rows of %d", name, l, toLayouts[name], restored, total)
			}
			if name == "songs" || name == "users" {
				if got, want := counts(t, to, name), counts(t, from, name); got != want {
					t.Errorf("%s of %v into %v:\n%s\nwant\n%s", name, l, toLayouts[name], got, want)
				}
			}
		}
	}
}

// A restore by ids refuses a stream that is not whole, a wrong divisor, and a snapshot that is there twice.
func TestRestoreByIDsRefuses(t *testing.T) {
	t.Parallel()
	a, n := openShards(t, map[string]int{"posts": 2, "users": 3})
	write(t, n, 1, 2, 3, 4, 5, 6)
	streams, _ := snapshotsOf(t, n, "posts")
	whole, err := io.ReadAll(joined(streams...))
	must.Do(t, err)
	users, board := n.Keyspace("users").FirstGroup, n.Keyspace(kinds.KeyspaceBoard).FirstGroup
	taken, _ := snapshotsOf(t, n, kinds.KeyspaceBoard)
	for name, test := range map[string]struct {
		group   uint32
		stream  []byte
		divisor int
		want    error
	}{
		"nothing":                    {users, nil, 2, ErrBadSnapshot},
		"half a length":              {users, whole[:4], 2, ErrBadSnapshot},
		"only a length":              {users, whole[:8], 2, ErrBadSnapshot},
		"the second has no length":   {users, whole[:8+len(streams[0])+3], 2, ErrBadSnapshot},
		"the second has only one":    {users, whole[:8+len(streams[0])+8], 2, ErrBadSnapshot},
		"the second is cut":          {users, whole[:len(whole)-1], 2, ErrBadSnapshot},
		"a length above all":         {users, bytes.Repeat([]byte{255}, 8), 2, ErrBadSnapshot},
		"not by ids":                 {users, streams[0], 0, ErrBadSnapshot},
		"another number of creation": {users, whole, 3, ErrBadSnapshot},
		"one of them twice":          {users, slices.Concat(whole, whole[:8+len(streams[0])]), 2, ErrRestoredOther},
		"a board":                    {board, slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(taken[0]))), taken[0]), 1, ErrBadSnapshot},
	} {
		if _, err := a.RestoreShard(must.Context(t), test.group, bytes.NewReader(test.stream), RestoreOptions{Force: true, Divisor: test.divisor}); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// A restore by ids with a divisor that divides the modulus, but is not that of the snapshot, is refused, and leaves no row.
// Some keys stand for ids of the right shard by chance.
func TestRestoreByIDsRefusesWrongIDs(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	hashed := layout{created: 6, by: 1, sharding: shard.ShardingHash}
	for _, from := range []layout{{created: 6, by: 1}, hashed} {
		layouts := map[string]layout{"songs": from}
		for _, name := range []string{"users", kinds.KeyspaceUnread, kinds.KeyspaceFeed} {
			layouts[name] = layout{created: 6, by: 1}
		}
		_, n := laidOut(t, layouts)
		a, to := laidOut(t, map[string]layout{"songs": {created: 2, by: 1}, "users": {created: 1, by: 1}})
		for _, n := range []*shard.Node{n, to} {
			board := &unread.BoardOp{Kind: unread.PutChannel, Name: "news", Channel: &unread.Channel{Number: 1, Latest: 20}}
			must.Do(t, n.Write(n.Keyspace(kinds.KeyspaceBoard), &shard.Write{Ops: board, Deadline: time.Now().Add(10 * time.Second)}))
		}
		fill(t, n, rng)
		for name, l := range layouts {
			streams, _ := snapshotsOf(t, n, name)
			for _, divisor := range []int{1, 2, 3, 6} {
				if divisor == l.divisor() {
					continue
				}
				for _, group := range to.Keyspace(name).Groups {
					_, err := a.RestoreShard(must.Context(t), group, joined(streams...), RestoreOptions{Force: true, Divisor: divisor})
					if !errors.Is(err, ErrBadSnapshot) || !strings.Contains(err.Error(), "must be the number of shards with which its keyspace was created") {
						t.Errorf("%s of %v, divisor %d: %v", name, l, divisor, err)
					}
					led, err := (&restore{node: to, ctx: must.Context(t), group: group}).leader()
					if err != nil || led.Rows+led.Outboxes+led.Pairs > 0 {
						t.Errorf("%s of %v, divisor %d: the shard has %+v, %v", name, l, divisor, led, err)
					}
				}
			}
		}
	}
}

// A shard that is restored by ids gets the positions that all its snapshots have. If they differ, no position is right:
// the restore fails, and the shard stays closed.
func TestPositionsOfARestoreByIDs(t *testing.T) {
	t.Parallel()
	a, n := openShards(t, map[string]int{"posts": 2, "users": 1})
	write(t, n, 1, 2, 3, 4)
	start := sink.Position{Lo: 100}
	result, err := n.Change(must.Context(t), &catalog.Command{PutSource: &catalog.PutSourceEntry{
		Name: "likes", Config: []byte(`{"type":"nats"}`), Origin: 9, Paused: true, Partitions: map[uint32]catalog.Partition{0: {Epoch: 1, Start: start}},
	}})
	must.Do(t, err)
	if result.Refused != "" {
		t.Fatal(result.Refused)
	}
	of := func(at uint64) []dedup.PositionRecord {
		key := dedup.PositionKey{Source: n.Catalog().Sources["likes"].Number}
		return []dedup.PositionRecord{{PositionKey: key, Checkpoint: dedup.Checkpoint{Epoch: n.Catalog().Sources["likes"].Partitions[0].Epoch, At: sink.Position{Lo: at}}}}
	}
	put := func(s int, at uint64) {
		t.Helper()
		r := &restore{node: n, ctx: must.Context(t), keyspace: n.Keyspace("posts"), shard: s, seq: uint64(time.Now().UnixNano())}
		must.Do(t, r.setPositions(dedup.RestoredPositions{All: of(at)}))
	}
	group := n.Keyspace("users").FirstGroup
	restored := func(streams ...[]byte) error {
		_, err := a.RestoreShard(must.Context(t), group, joined(streams...), RestoreOptions{Force: true, Divisor: 2})
		return err
	}
	positions := func() (all []dedup.PositionRecord) {
		streams, _ := snapshotsOf(t, n, "users")
		_, err := kinds.All.VisitSnapshot(bytes.NewReader(streams[0]), codec.KindCounters, codec.Whole, raftfsm.SnapshotVisitor{
			Positions: func(found []dedup.PositionRecord, _ uint64) error { all = slices.Clone(found); return nil },
		})
		must.Do(t, err)
		return all
	}
	put(0, 7)
	put(1, 8)
	streams, _ := snapshotsOf(t, n, "posts")
	if err := restored(streams...); !errors.Is(err, ErrBadSnapshot) || !strings.Contains(err.Error(), "sources were at different positions") {
		t.Errorf("different positions: %v", err)
	}
	if led, err := (&restore{node: n, ctx: must.Context(t), group: group}).leader(); err != nil || led.Rows != 4 {
		t.Errorf("the shard has %+v, %v", led, err)
	}
	must.Do(t, restored(streams[1]))
	if got := positions(); !slices.Equal(got, of(8)) {
		t.Errorf("of one snapshot: %v, want %v", got, of(8))
	}
	put(0, 8)
	streams, _ = snapshotsOf(t, n, "posts")
	must.Do(t, restored(streams...))
	if got := positions(); !slices.Equal(got, of(8)) {
		t.Errorf("of equal positions: %v, want %v", got, of(8))
	}
}
