package shard

import (
	"errors"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
)

// failureOf marks the parts whose shards failed; failures has an error or nil for each shard. If the
// query allows missing shards, failureOf returns nil, and otherwise the error of the read.
func failureOf(pg *raftfsm.Read, failures []error, q raftfsm.Query) error {
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
		case q.Limits(0).Skip && (errors.Is(err, errNobodyHas) || errors.Is(err, errs.ErrUnreadable)):
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
