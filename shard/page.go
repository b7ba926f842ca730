package shard

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
)

// page is reusable memory for a read: the part of each shard, and its answer.
type page struct{ raftfsm.Read }

// pageWordsMax bounds the words of a part that stay in the pool, because an answer may be large.
const pageWordsMax = 16 << 10

var pagePool = sync.Pool{New: func() any { return &page{} }}

// newPage returns a page from the pool, and puts each id into the part of its shard.
func newPage(ids []uint64, route raftfsm.Route, deadline time.Time) *page {
	pg := pagePool.Get().(*page)
	shards := int(route.Shards)
	pg.IDs, pg.Route, pg.Deadline = ids, route, deadline
	pg.Parts = slices.Grow(pg.Parts[:0], shards)[:shards]
	for s := range pg.Parts {
		p := &pg.Parts[s]
		p.Shard, p.Route, p.Keys, p.At, p.Words = s, route.Of(s), p.Keys[:0], p.At[:0], p.Words[:0]
	}
	for i, id := range ids {
		s, key := route.KeyOf(id)
		p := &pg.Parts[s]
		p.Keys, p.At = append(p.Keys, key), append(p.At, i)
	}
	return pg
}

func (pg *page) release() {
	for s := range pg.Parts {
		if p := &pg.Parts[s]; cap(p.Words) > pageWordsMax {
			p.Words = nil
		}
	}
	pg.IDs, pg.Err = nil, nil
	pagePool.Put(pg)
}

// failure marks the parts whose shards failed; failures has an error or nil for each shard. If the
// query allows missing shards, failure returns nil, and otherwise the error of the read.
func (pg *page) failure(failures []error, q raftfsm.Query) error {
	var last error // error of one of the shards that failed
	read, failed := 0, 0
	for s, err := range failures {
		p := &pg.Parts[s]
		if len(p.Keys) > 0 {
			read++
		}
		switch {
		case err == nil:
			continue
		case q.Limits(0).Skip && (errors.Is(err, errNobodyHas) || errors.Is(err, ErrUnreadable)):
			p.Skipped, failures[s] = true, nil
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
	return &ReadError{ByShard: failures, Route: pg.Route}
}

// ofRequest reports whether a read failed because of the request itself, so that it fails in all
// shards.
func ofRequest(err error) bool {
	return errors.Is(err, errs.ErrBadToken) || errors.Is(err, errs.ErrUnknownKeyspace)
}
