package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/wire"
)

const (
	// feedsInReadMax bounds the feeds that one part of a call asks for. With the most
	// followees each they take some megabytes.
	feedsInReadMax = 32
	// feedBytesHint is what a feed in an answer is taken for where calls are
	// bounded by bytes.
	feedBytesHint = 8 << 10
)

// size is about what a read takes with its answer.
func (q *remoteRead) size() int {
	if q.of == readFeeds {
		return feedBytesHint * len(q.keys)
	}
	return 8*len(q.keys) + 8*len(q.keys)*q.width
}

// Feeds is the feeds of several users, in their order. It is used again.
type Feeds struct {
	Followees []raftfsm.Followee
	Ends      []int // followees of user i end here

	parts []feedPart // by shard, while they are read
}

// Of returns the followees of the user of a number, ascending by id.
func (f *Feeds) Of(i int) []raftfsm.Followee {
	if i == 0 {
		return f.Followees[:f.Ends[0]]
	}
	return f.Followees[f.Ends[i-1]:f.Ends[i]]
}

// Feeds fills into with the feeds of users. Each is whole; they may be of different
// moments.
func (n *Node) Feeds(ks *Keyspace, users []uint64, opt *ReadOptions, into *Feeds) error {
	into.Followees, into.Ends = into.Followees[:0], into.Ends[:0]
	groups, err := n.groupsToRead(ks, opt)
	if err != nil {
		return err
	}
	arrived := time.Now()
	if len(users) == 1 {
		return n.oneFeed(groups, users[0], opt, arrived, into)
	}
	parts := into.split(users, groups[0].route)
	defer into.letGo()
	away, err := n.feedShards(parts, groups, opt, arrived)
	if err != nil {
		return err
	}
	for i, user := range users {
		s, key := groups[0].route.keyOf(user)
		if r := parts[s].r; r == nil {
			into.Followees = append(into.Followees, away[i]...)
		} else if err := n.appendFeed(groups[s], r, key, opt, into); err != nil {
			return err
		}
		into.Ends = append(into.Ends, len(into.Followees))
	}
	return nil
}

// appendFeed appends the followees of one user whom a replica here answers for.
func (n *Node) appendFeed(g *shardReplica, r *localReplica, key uint64, opt *ReadOptions, into *Feeds) (err error) {
	var inMemory bool
	if into.Followees, inMemory = r.fsm.(*raftfsm.Feed).Followees(into.Followees, key); inMemory {
		return nil
	}
	feeds, err := n.feedsFromDisk(g, r, []uint64{key}, opt)
	if err == nil {
		into.Followees = append(into.Followees, feeds[0]...)
	}
	return err
}

// oneFeed is Feeds for one user, without memory of its own.
func (n *Node) oneFeed(groups []*shardReplica, user uint64, opt *ReadOptions, arrived time.Time, into *Feeds) error {
	s, key := groups[0].route.keyOf(user)
	r, err := n.admitted(groups[s], opt, arrived)
	if err != nil {
		return err
	}
	if r != nil {
		if err := n.appendFeed(groups[s], r, key, opt, into); err != nil {
			return err
		}
	} else {
		feeds, err := n.feedsElsewhere(groups[s], []uint64{key}, opt)
		if err != nil {
			return err
		}
		into.Followees = append(into.Followees, feeds[0]...)
	}
	into.Ends = append(into.Ends, len(into.Followees))
	return nil
}

// feedPart is one shard's part of a read of feeds.
type feedPart struct {
	keys []uint64
	at   []int         // position of each key in the request
	r    *localReplica // that answers here from memory; nil for none
	disk *localReplica // that answers here and has some of them on disk; nil for none
}

// split says what each shard is asked for.
func (f *Feeds) split(users []uint64, route route) []feedPart {
	shards := int(route.shards)
	f.parts = slices.Grow(f.parts[:0], shards)[:shards]
	for s := range f.parts {
		p := &f.parts[s]
		p.keys, p.at, p.r, p.disk = p.keys[:0], p.at[:0], nil, nil
	}
	for i, user := range users {
		s, key := route.keyOf(user)
		p := &f.parts[s]
		p.keys, p.at = append(p.keys, key), append(p.at, i)
	}
	return f.parts
}

// letGo forgets the replicas that were read, which f may outlive.
func (f *Feeds) letGo() {
	for s := range f.parts {
		f.parts[s].r, f.parts[s].disk = nil, nil
	}
}

// feedShards finds out for each shard whether it may be read from memory here, and reads
// the others, together, from disk and from other nodes: away is what those say, by
// position in the request.
func (n *Node) feedShards(parts []feedPart, groups []*shardReplica, opt *ReadOptions, arrived time.Time) (away map[int][]raftfsm.Followee, err error) {
	elsewhere := false
	for s := range parts {
		p := &parts[s]
		if len(p.keys) == 0 {
			continue
		}
		r, err := n.admitted(groups[s], opt, arrived)
		if err != nil {
			return nil, err
		}
		switch {
		case r == nil:
			elsewhere = true
		case slices.ContainsFunc(p.keys, r.fsm.(*raftfsm.Feed).IsSpilled):
			p.disk, elsewhere = r, true
		default:
			p.r = r
		}
	}
	if !elsewhere {
		return nil, nil
	}
	return n.feedShardsElsewhere(parts, groups, opt)
}

// feedShardsElsewhere reads the shards that are not read from memory here.
func (n *Node) feedShardsElsewhere(parts []feedPart, groups []*shardReplica, opt *ReadOptions) (map[int][]raftfsm.Followee, error) {
	var mu sync.Mutex // of away and failed
	away := make(map[int][]raftfsm.Followee)
	var failed error
	var asked sync.WaitGroup
	for s := range parts {
		p := &parts[s]
		if p.r != nil {
			continue
		}
		for from := 0; from < len(p.keys); from += feedsInReadMax {
			to := min(from+feedsInReadMax, len(p.keys))
			asked.Go(func() { // ends at the deadline
				feeds, err := n.feedsBeside(groups[s], p.disk, p.keys[from:to], opt)
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
				for i, feed := range feeds {
					away[p.at[from+i]] = feed
				}
			})
		}
	}
	asked.Wait()
	return away, failed
}

// feedsElsewhere reads feeds of one shard from other nodes.
func (n *Node) feedsElsewhere(g *shardReplica, keys []uint64, opt *ReadOptions) ([][]raftfsm.Followee, error) {
	rows, err := n.askReaders(g, &remoteRead{
		group: g.number, consistency: opt.Consistency, staleness: opt.MaxStaleness,
		index: opt.Token.Index(g.number), of: readFeeds, keys: keys,
	}, opt)
	if err != nil {
		return nil, err
	}
	feeds := make([][]raftfsm.Followee, len(keys))
	for i := range feeds {
		feed := make([]raftfsm.Followee, rows[0])
		for j := range feed {
			feed[j] = raftfsm.Followee{ID: uint64(rows[1+2*j]), Posts: rows[2+2*j]}
		}
		feeds[i], rows = feed, rows[1+2*len(feed):]
	}
	return feeds, nil
}

// parseReadRows reads the answer of one read.
func parseReadRows(r *wire.Reader, q *remoteRead) []int64 {
	if q.of != readFeeds {
		return parseCounts(r, len(q.keys)*q.width)
	}
	var rows []int64
	for range q.keys {
		n := r.Int()
		if n < 0 || n > raftfsm.FolloweesMax {
			r.Fail(fmt.Sprintf("%d followees", n))
			return nil
		}
		rows = append(append(rows, n), parseCounts(r, int(2*n))...)
	}
	return rows
}

// Board returns the notices and dots that are everybody's.
func (n *Node) Board(ks *Keyspace, opt *ReadOptions) (*raftfsm.BoardView, error) {
	groups, err := n.groupsToRead(ks, opt)
	if err != nil {
		return nil, err
	}
	g := groups[0]
	if view, err := n.boardHere(g, opt); view != nil || err != nil {
		return view, err
	}
	deadline := time.NewTimer(time.Until(opt.Deadline))
	defer deadline.Stop()
	for pause := retryPauseMin; ; pause = min(2*pause, retryPauseMax) {
		view, err := n.boardElsewhere(g, opt)
		if err == nil || errors.Is(err, ErrBadToken) {
			return view, err
		}
		if !sleep(pause, deadline) {
			return nil, fmt.Errorf("%w: keyspace %s: %v", ErrNoQuorum, g.keyspace, err.Error())
		}
		if view, err := n.boardHere(g, opt); view != nil || err != nil {
			return view, err
		}
	}
}

// boardHere returns the board if this node's replica may answer, else nil.
func (n *Node) boardHere(g *shardReplica, opt *ReadOptions) (*raftfsm.BoardView, error) {
	r, err := n.admitted(g, opt, time.Now())
	if r == nil || err != nil {
		return nil, err
	}
	return r.fsm.(*raftfsm.Board).View(), nil
}

// boardElsewhere asks the nodes that hold the board, the leader first: this one has
// none yet, or one that is behind.
func (n *Node) boardElsewhere(g *shardReplica, opt *ReadOptions) (*raftfsm.BoardView, error) {
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	request := appendRead(nil, &remoteRead{
		group: g.number, consistency: opt.Consistency, staleness: opt.MaxStaleness, index: opt.Token.Index(g.number),
	})
	var last error = ErrNoLeader
	for _, node := range n.readers(g) {
		raw, err := n.calls.Call(ctx, node, methodBoard, request)
		if errors.Is(err, ErrBadToken) {
			return nil, err
		}
		if last = err; err != nil {
			continue
		}
		view := &raftfsm.BoardView{}
		if err := json.Unmarshal(raw, view); err != nil {
			return nil, fmt.Errorf("%w: %w", wire.ErrBadMessage, err)
		}
		return view, nil
	}
	return nil, last
}

// serveBoard reads the board for another node.
func (n *Node) serveBoard(_ context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	q := parseRead(&r)
	if err := r.End(); err != nil {
		return nil, err
	}
	rep, err := n.admittedFor(q, time.Now().Add(readWaitMax))
	if err != nil {
		return nil, err
	}
	fsm, ok := rep.fsm.(*raftfsm.Board)
	if !ok {
		return nil, fmt.Errorf("%w: group %d is not the board's", wire.ErrBadMessage, q.group)
	}
	return json.Marshal(fsm.View())
}
