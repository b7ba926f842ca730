package api

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
)

// groupRule is the error for a name that raftfsm.ValidGroupName refuses.
var groupRule = fmt.Sprintf("not 1 to %d of A-Z a-z 0-9 . _ -", raftfsm.GroupNameBytesMax)

// readPageParameter reads a parameter of a page of posts. It returns false if it is none.
func (r *request) readPageParameter(name, value []byte, s *seen) (is bool, err error) {
	at := slices.Index(pageParameters, string(name))
	switch {
	case at < 0 || r.takes&takesPosts == 0 || at >= joinParameters && r.takes&takesJoins == 0:
		return false, nil
	case s.has(8 + at):
		return true, invalid(string(name), givenTwice)
	}
	*s |= 1 << (8 + at)
	return true, r.setPageParameter(name, value)
}

// pageParameters are those of a page of posts. From joinParameters on they are of a timeline
// alone.
var pageParameters = []string{"limit", "cursor", "group", "counts", "member"}

const joinParameters = 2

func (r *request) setPageParameter(name, value []byte) error {
	a := &r.asked
	switch string(name) {
	case "limit":
		v, ok := strictjson.ParseUint64(value)
		if !ok || v < 1 || v > timeline.LimitMax {
			return invalid("limit", fmt.Sprintf("not an integer from 1 to %d", timeline.LimitMax))
		}
		a.limit = int(v)
	case "cursor":
		return r.readPostCursor(value)
	case "group":
		if !raftfsm.ValidGroupName(value) {
			return invalid("group", groupRule)
		}
		a.group = string(value)
	case "counts":
		return r.readCountsOf(value)
	case "member":
		if r.asked.in = string(value); len(value) == 0 {
			return invalid("member", noColumn)
		}
	}
	return nil
}

// readPostCursor reads the last post of the page before: its id in an outbox, and in a
// timeline also the author.
func (r *request) readPostCursor(value []byte) error {
	id, author, ok := value, []byte("0"), true
	if r.takes&takesJoins != 0 {
		id, author, ok = bytes.Cut(value, []byte("."))
	}
	a := &r.asked
	var okID, okAuthor bool
	a.post.ID, okID = strictjson.ParseUint64(id)
	a.post.Author, okAuthor = strictjson.ParseUint64(author)
	if a.hasAfter = ok && okID && okAuthor; !a.hasAfter {
		return invalid("cursor", notCursor)
	}
	return nil
}

func (r *request) readCountsOf(name []byte) error {
	if err := r.may(auth.Read, name); err != nil {
		return err
	}
	ks := r.backend.Keyspace(string(name))
	if ks == nil && !r.caughtUp {
		if err := r.catchUp(); err != nil {
			return err
		}
		ks = r.backend.Keyspace(string(name))
	}
	if ks == nil || ks.Kind != shard.KindCounters {
		return &fault{
			status: fasthttp.StatusNotFound, code: codeUnknownKeyspace,
			message: "counts: " + shard.ErrUnknownKeyspace.Error(), field: "counts",
		}
	}
	r.asked.counts = ks
	return nil
}

func appendPostCursor(dst []byte, last shard.Post) []byte {
	dst = strconv.AppendUint(append(dst, `,"cursor":"`...), last.ID, 10)
	dst = strconv.AppendUint(append(dst, '.'), last.Author, 10)
	return append(dst, '"')
}
