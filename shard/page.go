package shard

import (
	"slices"
	"sync"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/keyspace"
)

// page is the scratch memory of a read of several ids: the query for each shard, and the answers.
type page struct {
	readQuery
	byShard []pagePart
	newest  outbox.Newest // of readPosts; Author is an index in the request
}

// pagePart is one shard's part of a page.
type pagePart struct {
	keys []uint64
	at   []int         // index of each key in the request
	rows []int64       // by key: width counts each, or the form of localReplica.rows
	cold []int         // indexes of the keys whose rows are not in memory
	here *localReplica // of feeds and posts: this node's replica, which answers instead of rows

	// Only for posts.
	outboxes *spill.Bodies // the outboxes of here
	disk     bool          // an outbox could not be read, or moved: fetch reads the whole part

	after members.Entry // of readRows: the last entry of the page before, with the key in this shard
}

var pagePool = sync.Pool{New: func() any { return &page{} }}

// newPage returns a page from the pool, with each id in the part of its shard.
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

// forget drops the references to replicas and to answers of calls.
func (pg *page) forget() {
	for s := range pg.byShard {
		p := &pg.byShard[s]
		if !pg.of.isTable() && p.here == nil && len(p.keys) > 0 {
			p.rows = nil // the answer of a call, of any size
		}
		p.here, p.outboxes, p.disk = nil, nil, false
	}
	pg.newest.Reset(0)
}

// fetch reads a part from the disk of this node's replica r, nil for none, or from another node.
func (pg *page) fetch(rd *reader, g *shardReplica, s int, r *localReplica, opt *ReadOptions) error {
	p, q := &pg.byShard[s], pg.readQuery
	if q.sets = pg.setsOf(p); q.of == readPosts { // Below is an index in the part
		q.posts.Below, _ = slices.BinarySearch(p.at, q.posts.Below)
	}
	rows, err := rd.fetch(g, r, q, p.keys, opt)
	if err == nil {
		p.rows = rows
	}
	return err
}

// setsOf returns a part's query of sets.
func (pg *page) setsOf(p *pagePart) setQuery {
	q := pg.sets
	if pg.of == readRows {
		q.page.After = p.after
	}
	return q
}

// fromMemory fills a part from this node's replica. It reports whether memory had the whole part. For
// feeds it only records the replica, so that the caller copies them once. It adds posts to
// pg.newest. It reads sets even if they are on disk.
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
