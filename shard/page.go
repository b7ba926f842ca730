package shard

import (
	"slices"
	"sync"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/keyspace"
)

// page is the scratch memory of a read of several ids: what it asks each shard, and the
// answers.
type page struct {
	readQuery
	byShard []pagePart
	newest  outbox.Newest // of readPosts: Author is a position in the request
}

// pagePart is one shard's part of a page.
type pagePart struct {
	keys []uint64
	at   []int         // position of each key in the request
	rows []int64       // by key; of a width each, or of feeds as localReplica.rows has them
	cold []int         // positions of keys whose rows memory does not hold
	here *localReplica // of feeds and posts: this node's replica, which answers instead of rows

	// Of posts alone.
	outboxes *spill.Bodies // those of here
	disk     bool          // one of them could not be read, or moved: fetch reads the whole part

	after members.Entry // of readRows: the last entry of the page before, by the keys of the shard
}

var pagePool = sync.Pool{New: func() any { return &page{} }}

// newPage returns a page with each id in the part of its shard.
func newPage(of readOf, ids []uint64, width int, route keyspace.Route) *page {
	pg := pagePool.Get().(*page)
	pg.readQuery = readQuery{of: of, width: width}
	shards := int(route.Shards)
	pg.byShard = slices.Grow(pg.byShard[:0], shards)[:shards]
	for s := range pg.byShard {
		p := &pg.byShard[s]
		p.keys, p.at = p.keys[:0], p.at[:0]
	}
	for i, id := range ids {
		s, key := route.KeyOf(id)
		p := &pg.byShard[s]
		p.keys, p.at = append(p.keys, key), append(p.at, i)
	}
	for s := range pg.byShard {
		p := &pg.byShard[s]
		need := len(p.keys) * width
		p.rows = slices.Grow(p.rows[:0], need)[:need]
	}
	return pg
}

// release returns the page to the pool.
func (pg *page) release() {
	pg.forget()
	pagePool.Put(pg)
}

// forget drops the replicas that the page read and what calls answered.
func (pg *page) forget() {
	for s := range pg.byShard {
		p := &pg.byShard[s]
		if !pg.of.isTable() && p.here == nil && len(p.keys) > 0 {
			p.rows = nil // what a call answered, of any size
		}
		p.here, p.outboxes, p.disk = nil, nil, false
	}
	pg.newest.Reset(0)
}

// fetch reads a part from the disk of this node's replica r, if not nil, or from another node.
func (pg *page) fetch(rd *reader, g *shardReplica, s int, r *localReplica, opt *ReadOptions) error {
	p, q := &pg.byShard[s], pg.readQuery
	switch q.of {
	case readPosts: // Below counts the keys of the part
		q.posts.Below, _ = slices.BinarySearch(p.at, q.posts.Below)
	case readRows:
		q.sets = pg.setsOf(p)
	}
	rows, err := rd.fetch(g, r, q, p.keys, opt)
	if err == nil {
		p.rows = rows
	}
	return err
}

// setsOf returns the query of sets for a part.
func (pg *page) setsOf(p *pagePart) setQuery {
	q := pg.sets
	if pg.of == readRows {
		q.page.After = p.after
	}
	return q
}

// fromMemory fills a part from this node's replica, and reports whether memory held all of
// it. Of feeds it only notes the replica: the caller copies them once. Posts of all parts go
// to newest. The page cache of the store of sets counts as memory.
func (pg *page) fromMemory(s int, r *localReplica) bool {
	p := &pg.byShard[s]
	switch pg.of {
	case readPosts:
		if r.counters == nil || p.disk {
			return false
		}
		p.outboxes = r.counters.Newest(p.keys, p.at, &pg.posts, &pg.newest)
	case readFeeds:
		if slices.ContainsFunc(p.keys, r.feed.Bodies().IsSpilled) {
			return false
		}
	case readContains, readMembers, readRows:
		q := pg.setsOf(p)
		rows, err := r.setRows(&q, pg.of, p.keys)
		if err == nil {
			p.rows = rows
		}
		return err == nil
	default:
		p.cold = r.fsm.TableOf(pg.of.table()).GetMany(p.keys, pg.width, p.rows, p.cold[:0])
		return len(p.cold) == 0
	}
	p.here = r
	return true
}
