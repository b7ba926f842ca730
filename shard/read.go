package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/shard/errs"
)

// page is the scratch memory of a read: what each shard is asked for.
type page struct {
	byShard []pagePart
}

type pagePart struct {
	of   readOf
	keys []uint64
	at   []int // position of each key in the request
	rows []int64
	cold []int // positions of keys whose rows are to be read from disk
}

var pagePool = sync.Pool{New: func() any { return &page{} }}

const (
	// followMax is how long a read waits for a replica to apply what is
	// committed. While writes come, that is a fraction of it. When they stop, a
	// follower hears of the last commit with the leader's next idle message,
	// and the read is better off at the leader.
	followMax = 5 * time.Millisecond
	// renewShare is the part of the allowed staleness after which a bounded read
	// has the next confirmation fetched, so that reads that go on never wait.
	renewShare = 2
)

// Get fills rows, width counts an id, with the rows of ids in their order. Rows
// of one shard that are asked for together are each whole; rows of different
// ids may be of different moments. If only some shards could be read, the error is
// a ReadError.
func (n *Node) Get(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	return n.get(ks, readCounts, ids, width, opt, rows)
}

// Cursors is Get for the cursors of an unread keyspace.
func (n *Node) Cursors(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	return n.get(ks, readCursors, ids, width, opt, rows)
}

// groupsToRead is groupsOf for a read, whose token must be of this cluster.
func (n *Node) groupsToRead(ks *Keyspace, opt *ReadOptions) ([]*shardReplica, error) {
	groups, err := n.groupsOf(ks)
	if err != nil {
		return nil, err
	}
	return groups, n.checkToken(&opt.Token)
}

func (n *Node) get(ks *Keyspace, of readOf, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	return n.orUnknown(ks, n.getRows(ks, of, ids, width, opt, rows))
}

func (n *Node) getRows(ks *Keyspace, of readOf, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	groups, err := n.groupsToRead(ks, opt)
	if err != nil {
		return err
	}
	arrived := time.Now()
	if len(ids) == 1 {
		s, key := groups[0].route.keyOf(ids[0])
		r, err := n.admitted(groups[s], opt, arrived)
		if err != nil {
			return err
		}
		if r != nil && r.table(of.table()).Get(key, rows[:width]) {
			return nil
		}
		p := pagePart{of: of, keys: []uint64{key}, rows: rows[:width]}
		return n.readPart(groups[s], r, &p, width, opt)
	}
	pg := pagePool.Get().(*page)
	defer pagePool.Put(pg)
	pg.split(of, ids, groups[0].route)
	failed := n.getShards(pg, groups, width, opt, arrived)
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

// getShards reads each shard's part: here where this node's replica will do, and
// the rest, together, from other nodes.
func (n *Node) getShards(pg *page, groups []*shardReplica, width int, opt *ReadOptions, arrived time.Time) *ReadError {
	var away sync.WaitGroup
	var errs []error // of shards that could not be read here
	for s := range pg.byShard {
		p := &pg.byShard[s]
		if len(p.keys) == 0 {
			continue
		}
		if need := len(p.keys) * width; cap(p.rows) < need {
			p.rows = make([]int64, need)
		}
		p.rows = p.rows[:len(p.keys)*width]
		r, err := n.admitted(groups[s], opt, arrived)
		if r != nil {
			if p.cold = r.table(p.of.table()).GetMany(p.keys, width, p.rows, p.cold[:0]); len(p.cold) == 0 {
				continue
			}
		}
		if errs == nil {
			errs = make([]error, len(groups))
		}
		if errs[s] = err; err != nil {
			continue
		}
		away.Go(func() { errs[s] = n.readPart(groups[s], r, p, width, opt) })
	}
	away.Wait()
	if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return nil
	}
	return &ReadError{ByShard: errs, hash: groups[0].route.hash}
}

// readPart reads a part of which some rows are cold at this node's replica r, or that
// it has no replica for that may answer: r is nil then.
func (n *Node) readPart(g *shardReplica, r *localReplica, p *pagePart, width int, opt *ReadOptions) error {
	if r != nil {
		err := r.get(p.of.table(), p.keys, width, p.rows, opt.Deadline)
		if !errors.Is(err, ErrNoQuorum) {
			return err
		}
		if n.alone() {
			return g.failedAlone(err)
		}
	}
	return n.readElsewhere(g, p, width, opt)
}

func (pg *page) split(of readOf, ids []uint64, route route) {
	shards := int(route.shards)
	if cap(pg.byShard) < shards {
		pg.byShard = make([]pagePart, shards)
	}
	pg.byShard = pg.byShard[:shards]
	for s := range pg.byShard {
		p := &pg.byShard[s]
		p.of, p.keys, p.at = of, p.keys[:0], p.at[:0]
	}
	for i, id := range ids {
		s, key := route.keyOf(id)
		p := &pg.byShard[s]
		p.keys = append(p.keys, key)
		p.at = append(p.at, i)
	}
}

// admitted returns this node's replica if it may answer a read that arrived
// then, and nil if another may. The error is an ErrBadToken, which none can
// answer.
func (n *Node) admitted(g *shardReplica, opt *ReadOptions, arrived time.Time) (*localReplica, error) {
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

// admit returns nil once this replica may answer a read, and an error when it
// should not be waited for.
func (r *localReplica) admit(group uint32, opt *ReadOptions, arrived time.Time) error {
	if r.fsm.Stuck() != nil { // it may hold nothing at all
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
			return errs.ErrBehind // it has nothing of the shard yet, which is no state of it
		}
		return nil
	}
	if opt.Consistency == Bounded {
		staleness := opt.MaxStaleness
		if staleness == 0 {
			staleness = MaxStalenessDefault
		}
		if c := r.fresh.since(arrived.Add(-staleness)); c != nil {
			if c.asked.Before(arrived.Add(-staleness / renewShare)) {
				r.fresh.renew()
			}
			if r.follow(c.index, opt.Deadline) {
				return nil
			}
			return errs.ErrBehind
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	index, err := r.fresh.confirm(ctx)
	if err == nil && !r.follow(index, opt.Deadline) {
		err = errs.ErrBehind
	}
	return err
}

// follow reports whether the replica has applied the log up to index, for which
// it waits a little.
func (r *localReplica) follow(index uint64, deadline time.Time) bool {
	if r.fsm.Applied() >= index {
		return true
	}
	if soon := time.Now().Add(followMax); soon.Before(deadline) {
		deadline = soon
	}
	return r.fsm.WaitApplied(index, deadline)
}
