package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/retry"
	"github.com/countd/countd/shard/stream"
)

const (
	// followMax bounds how long a read waits until a replica has applied committed entries. While
	// writes arrive, a read waits for a fraction of followMax. After the last write, a follower
	// learns of the commit only from the leader's next idle message. Asking the leader is faster
	// than waiting for that message.
	followMax = 5 * time.Millisecond
	// renewShare is the share (1/2) of the allowed staleness after which a bounded read renews the
	// confirmation in the background, so that a steady stream of reads never waits.
	renewShare = 2
)

// reader answers reads of all shards from this node's memory or disk, or from another node. It never
// changes a shard.
//
// Invariant: each row or feed of an answer comes from one replica, here or on another node, that
// admit accepted for that read. All rows of one shard come from the same replica. Feeds may not,
// because reader reads them feedsInReadMax at a time.
type reader struct {
	*router
	streams *stream.Streams // to other nodes

	mu struct {
		sync.Mutex
		batchers map[string]*readBatchers // by node key; created by the first read
	}
}

// get fills rows from a table, as Node.Get does.
func (rd *reader) get(ks *Keyspace, of readOf, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return err
	}
	arrived, route := time.Now(), groups[0].route
	if len(ids) == 1 {
		s, key := route.KeyOf(ids[0])
		r, err := rd.admitted(groups[s], opt, arrived)
		if err != nil {
			return err
		}
		if r != nil && r.fsm.TableOf(of.table()).Get(key, rows[:width]) {
			return nil
		}
		found, err := rd.fetch(groups[s], r, readQuery{of: of, width: width}, []uint64{key}, opt)
		copy(rows, found)
		return err
	}
	pg := newPage(of, ids, width, route)
	defer pg.release()
	failed := rd.readShards(pg, groups, opt, arrived)
	for s := range pg.byShard {
		p := &pg.byShard[s]
		for i, at := range p.at {
			copy(rows[at*width:(at+1)*width], p.rows[i*width:(i+1)*width])
		}
	}
	if failed != nil {
		return failed
	}
	return nil
}

// feeds sets dst to the feeds of users, as Node.Feeds does.
func (rd *reader) feeds(ks *Keyspace, users []uint64, opt *ReadOptions, dst *Feeds) error {
	dst.Followees, dst.Ends, dst.Stamps = dst.Followees[:0], dst.Ends[:0], dst.Stamps[:0]
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return err
	}
	arrived, route := time.Now(), groups[0].route
	if len(users) == 1 {
		s, key := route.KeyOf(users[0])
		r, err := rd.admitted(groups[s], opt, arrived)
		if err != nil {
			return err
		}
		return rd.appendFeed(dst, groups[s], r, key, opt)
	}
	pg := newPage(readFeeds, users, 0, route)
	defer pg.release()
	if failed := rd.readShards(pg, groups, opt, arrived); failed != nil {
		return failed
	}
	for _, user := range users {
		s, key := route.KeyOf(user)
		if p := &pg.byShard[s]; p.here == nil {
			p.rows = dst.appendRow(p.rows)
		} else if err := rd.appendFeed(dst, groups[s], p.here, key, opt); err != nil {
			return err
		}
	}
	return nil
}

// appendFeed appends one user's feed. r is this node's replica if it may answer, or nil. appendFeed
// reads r's memory if the feed is there.
func (rd *reader) appendFeed(dst *Feeds, g *shardReplica, r *localReplica, key uint64, opt *ReadOptions) error {
	if r != nil {
		if followees, stamp, inMemory := r.feed.Followees(dst.Followees, key); inMemory {
			dst.Followees, dst.Ends, dst.Stamps = followees, append(dst.Ends, len(followees)), append(dst.Stamps, stamp)
			return nil
		}
	}
	row, err := rd.fetch(g, r, readQuery{of: readFeeds}, []uint64{key}, opt)
	if err == nil {
		dst.appendRow(row)
	}
	return err
}

// boardView returns the board, as Node.Board does.
func (rd *reader) boardView(ks *Keyspace, opt *ReadOptions) (*board.View, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return nil, err
	}
	g := groups[0]
	r, err := rd.admitted(g, opt, time.Now())
	if err != nil {
		return nil, err
	}
	if r != nil {
		return r.board.View(), nil
	}
	row, err := rd.fetch(g, nil, readQuery{of: readBoard}, []uint64{0}, opt)
	if err != nil {
		return nil, err
	}
	return parseJSONRow[*board.View](row)
}

// readShards reads each shard's part from memory if this node's replica may answer. It reads the
// other parts concurrently, from disk or other nodes. It is the only fan-out of reads.
func (rd *reader) readShards(pg *page, groups []*shardReplica, opt *ReadOptions, arrived time.Time) *ReadError {
	var rest *waitingParts // nil while memory has all parts, so that nothing is allocated
	for s, g := range groups {
		if len(pg.byShard[s].keys) == 0 {
			continue
		}
		r, err := rd.admitted(g, opt, arrived)
		if r != nil && pg.fromMemory(s, r) {
			continue
		}
		if rest == nil {
			rest = &waitingParts{errs: make([]error, len(groups))}
		}
		waiting := rest
		if waiting.errs[s] = err; err == nil {
			waiting.Go(func() { waiting.errs[s] = pg.fetch(rd, g, s, r, opt) }) // ends at the deadline
		}
	}
	if rest == nil {
		return nil
	}
	rest.Wait()
	if !slices.ContainsFunc(rest.errs, func(err error) bool { return err != nil }) {
		return nil
	}
	return &ReadError{ByShard: rest.errs, hash: groups[0].route.Hash}
}

// waitingParts are the parts of a read that this node's memory does not have.
type waitingParts struct {
	sync.WaitGroup
	errs []error // by shard; each goroutine sets its own element
}

// fetch reads keys of a shard that this node's memory does not have. r is this node's replica if it
// may answer, or nil. fetch reads r's disk. If r is nil or the read fails, fetch asks another node.
// It returns rows as localReplica.rows does.
func (rd *reader) fetch(g *shardReplica, r *localReplica, what readQuery, keys []uint64, opt *ReadOptions) ([]int64, error) {
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	q := newRemoteRead(g, opt)
	q.readQuery = what
	var rows []int64
	for keys := range slices.Chunk(slices.Clone(keys), what.keysMax()) { // a call that ask gave up may still read the clone
		q := *q
		q.keys = keys
		var found []int64
		err := rd.ask(ctx, g, r, opt, func(r *localReplica) (err error) {
			found, err = r.rows(&q, true, opt.Deadline)
			return err
		}, func(ctx context.Context, node string) (err error) {
			found, err = rd.readAt(ctx, node, &q)
			return err
		})
		if err != nil {
			return nil, err
		}
		if rows == nil {
			rows = found
		} else {
			rows = append(rows, found...)
		}
	}
	return rows, nil
}

// ask reads a shard until one replica answers, or until ctx, which has the read's deadline, ends.
// It is the only retry loop of reads. local reads from this node's replica, once the replica may
// answer; r is the replica if it may answer already, or nil. remote reads from another node; ask
// tries the leader first. An error of local is final unless it is ErrNoQuorum and the cluster has
// other nodes. Of the errors of remote, only ErrBadToken and ErrUnknownKeyspace are final.
func (rd *reader) ask(ctx context.Context, g *shardReplica, r *localReplica, opt *ReadOptions, local func(*localReplica) error, remote func(context.Context, string) error) error {
	last := ErrNoLeader
	tryHere := func(r *localReplica) (done bool) {
		switch last = local(r); {
		case !errors.Is(last, ErrNoQuorum):
			return true
		case rd.alone():
			last = g.failedAlone(last)
			return true
		}
		return false
	}
	if r != nil && tryHere(r) {
		return last
	}
	if retry.Until(ctx, func() bool {
		for _, node := range rd.readers(g) {
			last = remote(ctx, node)
			if last == nil || errors.Is(last, ErrBadToken) || errors.Is(last, ErrUnknownKeyspace) {
				return true
			}
		}
		// Check even in the first round, because this node may just have been elected leader.
		r, err := rd.admitted(g, opt, time.Now())
		if r != nil && tryHere(r) {
			return true
		}
		if err == nil {
			err = rd.nobodyHas(g, opt)
		}
		if err == nil && rd.catalog.View().Dropped(g.number) {
			err = ErrUnknownKeyspace
		}
		if err != nil {
			last = err
		}
		return err != nil
	}) {
		return last
	}
	return fmt.Errorf("%w: shard %d of keyspace %s: %v", ErrNoQuorum, g.shard, g.keyspace, last.Error())
}

// admitted returns this node's replica if it may answer a read that arrived at the given time. It
// returns nil if only another replica may answer. Its only error is ErrBadToken: no replica can
// answer such a read.
func (rd *reader) admitted(g *shardReplica, opt *ReadOptions, arrived time.Time) (*localReplica, error) {
	r := g.replica.Load()
	if r == nil {
		return nil, nil
	}
	err := r.admit(g.number, opt, arrived)
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, ErrBadToken):
		return nil, err
	}
	return nil, nil
}

// admit returns nil once this replica may answer a read. It returns an error if the read should not
// wait for this replica.
func (r *localReplica) admit(group uint32, opt *ReadOptions, arrived time.Time) error {
	if r.fsm.Stuck() != nil { // the replica may have no state at all
		return errs.ErrBehind
	}
	if index := opt.Token.Index(group); !r.follow(index, opt.Deadline) {
		if r.neverWas(index, opt.Deadline) {
			return fmt.Errorf("%w: entry %d of group %d was never written", ErrBadToken, index, group)
		}
		return errs.ErrBehind
	}
	if opt.Consistency == Stale {
		if r.fsm.Applied() == 0 {
			return errs.ErrBehind // an empty replica is not an old state of the shard
		}
		return nil
	}
	if opt.Consistency == Bounded {
		staleness := opt.MaxStaleness
		if staleness == 0 {
			staleness = MaxStalenessDefault
		}
		if c := r.fresh.Since(arrived.Add(-staleness)); c != nil {
			if c.Asked.Before(arrived.Add(-staleness / renewShare)) {
				r.fresh.Renew()
			}
			if r.follow(c.Index, opt.Deadline) {
				return nil
			}
			return errs.ErrBehind
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	index, err := r.fresh.Confirm(ctx)
	if err == nil && !r.follow(index, opt.Deadline) {
		err = errs.ErrBehind
	}
	return err
}

// follow reports whether the replica has applied the log up to index. It waits for at most followMax.
func (r *localReplica) follow(index uint64, deadline time.Time) bool {
	if r.fsm.Applied() >= index {
		return true
	}
	if soon := time.Now().Add(followMax); soon.Before(deadline) {
		deadline = soon
	}
	return r.fsm.WaitApplied(index, deadline)
}
