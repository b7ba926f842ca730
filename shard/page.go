package shard

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm"
)

// page is the scratch memory of a read: the part of each shard, and its answer.
type page struct{ raftfsm.Read }

// pageWordsMax bounds the words of a part that the pool keeps. An answer of another node may be large.
const pageWordsMax = 16 << 10

var pagePool = sync.Pool{New: func() any { return &page{} }}

// newPage returns a page from the pool, with each id in the part of its shard.
func newPage(ids []uint64, route raftfsm.Route, deadline time.Time) *page {
	pg := pagePool.Get().(*page)
	shards := int(route.Shards)
	pg.IDs, pg.Route, pg.Deadline = ids, route, deadline
	pg.Parts = slices.Grow(pg.Parts[:0], shards)[:shards]
	for s := range pg.Parts {
		p := &pg.Parts[s]
		p.Shard, p.Keys, p.At, p.Words = s, p.Keys[:0], p.At[:0], p.Words[:0]
	}
	for i, id := range ids {
		s, key := route.KeyOf(id)
		p := &pg.Parts[s]
		p.Keys, p.At = append(p.Keys, key), append(p.At, i)
	}
	return pg
}

// release returns the page to the pool.
func (pg *page) release() {
	for s := range pg.Parts {
		if p := &pg.Parts[s]; cap(p.Words) > pageWordsMax {
			p.Words = nil
		}
	}
	pg.IDs, pg.Err = nil, nil
	pagePool.Put(pg)
}

// failure marks the parts that failed with errs, which are by shard, and returns the error of the read: nil
// if the answers of the other shards are of use without theirs.
func (pg *page) failure(errs []error, q raftfsm.Query, hash bool) error {
	var last error // of the shards that failed
	read, failed := 0, 0
	for s, err := range errs {
		p := &pg.Parts[s]
		if len(p.Keys) > 0 {
			read++
		}
		switch {
		case err == nil:
			continue
		case q.Limits(0).Skip && (errors.Is(err, errNobodyHas) || errors.Is(err, ErrUnreadable)):
			p.Skipped, errs[s] = true, nil
			continue
		}
		p.Failed, p.Words = true, p.Words[:0]
		if failed++; !ofRequest(last) {
			last = err
		}
	}
	switch {
	case last == nil:
		return nil
	case q.Limits(0).Partial && failed < read && !ofRequest(last):
		return nil
	case q.Limits(0).Partial || len(pg.IDs) == 1:
		return last
	}
	return &ReadError{ByShard: errs, hash: hash}
}

// ofRequest reports whether a read failed because of the request itself, so that all shards would fail.
func ofRequest(err error) bool {
	return errors.Is(err, ErrBadToken) || errors.Is(err, ErrUnknownKeyspace)
}
