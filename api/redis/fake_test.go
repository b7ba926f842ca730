package redis

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rankings"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// fakeNode is a Backend of tables without a log.
type fakeNode struct {
	scanning  bool // a TopQuery does not end in time
	keyspaces []*shard.Keyspace
	tables    map[string]*engine.Table
	tokens    map[string]uint64 // number of the last write to each keyspace

	sets  apitest.NodeSets
	names apitest.NodeNames

	elsewhere []*shard.Keyspace // keyspaces that another node created, which Keyspaces returns only after CatchUp

	gets, writes, polls, catchUps, gaveUp atomic.Int64 // calls
	mu                                    struct {
		sync.Mutex
		writeErr func(w *shard.Write) error // called before a write is applied; an error fails the write
		readErr  func(ids []uint64) error
		written  []dedup.RequestID
		opt      shard.ReadOptions // the options of the last Get
		catchErr error
		known    []*shard.Keyspace // the keyspaces that CatchUp has added
		namesErr func(space string, write bool) error
		assigns  int // writes of names
	}
	hold chan struct{} // if not nil, each Write waits until it is closed
	mute bool          // CatchUp finds no leader
}

func newFakeNode() *fakeNode {
	n := &fakeNode{tables: map[string]*engine.Table{}, tokens: map[string]uint64{}}
	for _, ks := range []shard.Keyspace{
		{Name: "board", Kind: kinds.Board, Shards: 1},
		{Name: "feed", Kind: kinds.Feed, Shards: 4},
		{Name: "posts", Kind: kinds.Counters, Columns: []string{"repost", "comment", "like", "view"}, Shards: 4},
		{Name: "unread", Kind: kinds.Unread, Columns: []string{"at", "comment"}, Shards: 4},
		{Name: "users", Kind: kinds.Counters, Columns: []string{"posts", "followers", "following"}, Shards: 2},
	} {
		n.keyspaces = append(n.keyspaces, &ks)
		n.tables[ks.Name] = engine.New()
	}
	return n
}

func (n *fakeNode) Keyspaces() []*shard.Keyspace { return n.keyspaces }

func (n *fakeNode) Holds(*shard.Keyspace) bool { return true }

func (n *fakeNode) Keyspace(name string) *shard.Keyspace {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, list := range [2][]*shard.Keyspace{n.mu.known, n.keyspaces} {
		for _, ks := range list {
			if ks.Name == name {
				return ks
			}
		}
	}
	return nil
}

func (n *fakeNode) CatchUp(ctx context.Context) error {
	n.catchUps.Add(1)
	if n.mute {
		<-ctx.Done()
		n.gaveUp.Add(1)
		return errs.ErrNoLeader
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.catchErr == nil {
		n.mu.known = n.elsewhere
		for _, ks := range n.elsewhere {
			if n.tables[ks.Name] == nil {
				n.tables[ks.Name] = engine.New()
			}
		}
	}
	return n.mu.catchErr
}

// Read implements Backend. No user has a cursor or a followee; there is one channel and one dot.
// Timelines are empty: tests of their contents use real nodes.
func (n *fakeNode) Read(ks *shard.Keyspace, query raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	if n.names.Answer(ks.Name, query) {
		return n.namesTrouble(ks.Name, false)
	}
	switch q := query.(type) {
	case *rows.Query:
		if q.Table == rows.Counts {
			return n.get(ks, ids, q.Width, opt, q.Rows)
		}
		clear(q.Rows)
		return n.trouble(ids)
	case *rows.Scan:
		n.scan(ks, q)
	case *feed.Query:
		n.polls.Add(1)
		q.Begin(len(ids))
		return n.trouble(ids)
	case *unread.BoardQuery:
		n.mu.Lock()
		n.mu.opt = *opt
		n.mu.Unlock()
		q.View = &unread.BoardView{
			Channels: map[string]unread.Channel{"news": {Number: 1, Latest: 9}},
			Dots:     map[string]unread.Dot{"shop": {Number: 2, Fired: 1, NewUsers: true}},
		}
		return n.trouble(nil)
	case *counters.HotQuery:
		q.Since, q.Error, q.Gains = time.UnixMilli(1_763_812_800_000), 3, []rankings.Gain{{Key: 1<<64 - 1, Gained: 12, Error: 2}, {Key: 5, Gained: 1}}[:min(2, q.Limit)]
		return n.trouble(nil)
	case *counters.TopQuery:
		q.Top, q.Scanning, q.Read = []engine.Place{{Count: 9, ID: 1<<64 - 1}, {Count: 2, ID: 5}}[:min(2, q.Limit)], n.scanning, 812
		return n.trouble(nil)
	case *counters.ContainsQuery, *counters.MembersQuery, *counters.RowsOfMemberQuery:
		return n.readSets(ks, query, ids, opt)
	}
	return nil
}

func (n *fakeNode) trouble(ids []uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.readErr != nil {
		return n.mu.readErr(ids)
	}
	return nil
}

func (n *fakeNode) get(ks *shard.Keyspace, ids []uint64, width int, opt *shard.ReadOptions, rows []int64) error {
	n.gets.Add(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.opt = *opt
	n.tables[ks.Name].GetMany(ids, width, rows, nil)
	if n.mu.readErr != nil {
		return n.mu.readErr(ids)
	}
	return nil
}

func (n *fakeNode) Write(ks *shard.Keyspace, w *shard.Write) error {
	if err := w.Permitted(); err != nil {
		return err
	}
	if ks.Kind == "names" {
		err := n.namesTrouble(ks.Name, true)
		if err == nil {
			n.names.Write(ks.Name, w)
		}
		return err
	}
	n.writes.Add(1)
	if n.hold != nil {
		<-n.hold
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.writeErr != nil {
		if err := n.mu.writeErr(w); err != nil {
			return err
		}
	}
	if w.ID.Exists() {
		n.mu.written = append(n.mu.written, w.ID)
	}
	_, cursors := w.Ops.(unread.CursorOps)
	switch {
	case cursors:
		for i := range w.Rows {
			w.Rows[i] = 1 << 20 // above the number of every notice
		}
	case ks.Kind != kinds.Counters && ks.Kind != kinds.Unread:
		for i := range w.Rows {
			w.Rows[i] = n.writes.Load()
		}
	default:
		var err error
		ops := n.joinLocked(ks, w)
		if w.Overflows, err = n.tables[ks.Name].Apply(ops, w.Width, w.Rows, w.Overflows[:0]); err != nil {
			return err
		}
	}
	n.tokens[ks.Name] = uint64(n.writes.Load())
	w.Token = shard.Token{Cluster: 7, At: []shard.GroupIndex{{Group: 3, Index: n.tokens[ks.Name]}}}
	return nil
}

// failWrites makes all later writes call the function with, and fail with the returned error. If
// the function is nil, writes succeed again.
func (n *fakeNode) failWrites(with func(w *shard.Write) error) {
	n.mu.Lock()
	n.mu.writeErr = with
	n.mu.Unlock()
}

func (n *fakeNode) scan(ks *shard.Keyspace, q *rows.Scan) {
	from := uint64(0)
	if q.HasAfter {
		from = q.After + 1
	}
	n.tables[ks.Name].Scan(from, q.Width, func(p *engine.Page) bool {
		take := min(len(p.IDs), q.Limit-len(q.IDs))
		q.More = q.More || take < len(p.IDs)
		q.IDs = append(q.IDs, p.IDs[:take]...)
		q.Rows = append(q.Rows, p.Counts[:take*q.Width]...)
		return !q.More
	})
}

func (n *fakeNode) Status() shard.Status {
	s := shard.Status{Nodes: make([]shard.NodeStatus, 3)}
	for name, t := range n.tables {
		s.Groups = append(s.Groups, shard.GroupStatus{Keyspace: name, Rows: t.Stats().Rows})
	}
	return s
}
