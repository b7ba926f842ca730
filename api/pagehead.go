package api

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/shard"
)

// groupRule is the error for a name that feed.ValidGroupName refuses.
var groupRule = fmt.Sprintf("not 1 to %d of A-Z a-z 0-9 . _ -", feed.GroupNameBytesMax)

// readPostCursor parses the last post of the previous page: its id, and for a timeline its author.
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
	ks, err := r.lookUp(string(name))
	if err != nil {
		return err
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

func appendPostCursor(dst []byte, last counters.Post) []byte {
	dst = strconv.AppendUint(append(dst, `,"cursor":"`...), last.ID, 10)
	dst = strconv.AppendUint(append(dst, '.'), last.Author, 10)
	return append(dst, '"')
}
