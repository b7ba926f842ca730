package api

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rows"
)

// changeMembers serves a batch of members that join or leave sets.
func (s *Server) changeMembers(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeMemberOps(ctx.Request.Body()); err != nil {
		return err
	}
	r.countOps()
	w := &r.write
	if !r.wantNone {
		w.Width = r.sets.column + 1
	}
	if err := s.writeOps(r, false); err != nil {
		return err
	}
	if r.wantNone {
		answer(ctx, func(dst []byte) []byte { return appendApplied(dst, w, r.keyspace) })
		return nil
	}
	answerLong(ctx, memberBytes*len(w.Ops), func(dst []byte) []byte { return appendResults(dst, w, r.keyspace, nil) })
	return nil
}

// memberBytes estimates the bytes of a member in an answer.
const memberBytes = 80

// checkMembers answers whether a member is in the set of each id.
func (s *Server) checkMembers(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeCheck(ctx.Request.Body()); err != nil {
		return err
	}
	if err := s.readSets(r, []uint8{uint8(r.sets.column)}); err != nil {
		return err
	}
	answer(ctx, func(dst []byte) []byte {
		dst = append(dst, `{"results":[`...)
		for i, in := range r.sets.in {
			dst = strconv.AppendBool(comma(dst, i), in)
		}
		return append(dst, `]}`...)
	})
	return nil
}

// readSets fills r.sets.in with whether the member is in the sets of r.ids: all of the first
// column, then all of the next.
func (s *Server) readSets(r *request, columns []uint8) error {
	n := len(r.ids)
	r.sets.in = slices.Grow(r.sets.in[:0], n*len(columns))[:n*len(columns)]
	for i, column := range columns {
		r.sets.contains = counters.ContainsQuery{Column: column, Member: r.sets.member, In: r.sets.in[i*n : (i+1)*n]}
		if err := s.node().Read(r.keyspace, &r.sets.contains, r.ids, &r.read); err != nil {
			return fmt.Errorf("cannot read members: %w", err)
		}
	}
	return nil
}

// listMembers serves a page of the members of a row, and the row's count.
func (s *Server) listMembers(ctx *fasthttp.RequestCtx, r *request) error {
	column := r.sets.column
	r.ids = append(r.ids, r.id)
	row := rows.Query{Width: column + 1, Rows: make([]int64, column+1)}
	if err := s.node().Read(r.keyspace, &row, r.ids, &r.read); err != nil {
		return fmt.Errorf("cannot read row: %w", err)
	}
	q := counters.MembersQuery{Column: uint8(column), Page: r.sets.listed()}
	if err := s.node().Read(r.keyspace, &q, r.ids, &r.read); err != nil {
		return fmt.Errorf("cannot list members: %w", err)
	}
	answerLong(ctx, memberBytes*len(q.List.Entries), func(dst []byte) []byte {
		dst = appendID(append(dst, `{"id":`...), r.id)
		dst = appendNumber(append(dst, ','), "count", row.Rows[column])
		dst = appendEntries(append(dst, `,"members":[`...), "member", q.List)
		return append(dst, '}')
	})
	return nil
}

// listSets serves a page of the rows that a member is in.
func (s *Server) listSets(ctx *fasthttp.RequestCtx, r *request) error {
	q := counters.RowsOfMemberQuery{Column: uint8(r.sets.column), Member: r.id, Page: r.sets.listed()}
	if err := s.node().Read(r.keyspace, &q, nil, &r.read); err != nil {
		return fmt.Errorf("cannot list the rows of a member: %w", err)
	}
	answerLong(ctx, memberBytes*len(q.List.Entries), func(dst []byte) []byte {
		dst = appendID(append(dst, `{"member":`...), r.id)
		dst = appendEntries(append(dst, `,"ids":[`...), "id", q.List)
		return append(dst, `,"lag_ms":0}`...) // a shard changes both directions in one log entry
	})
	return nil
}

// appendEntries appends the entries of a list and the rest of its array, and the cursor of the
// next page if there may be one. name is the name of an entry's id.
func appendEntries(dst []byte, name string, list members.List) []byte {
	for i, e := range list.Entries {
		dst = append(append(append(comma(dst, i), `{"`...), name...), `":`...)
		dst = append(appendID(dst, e.ID), `,"at":"`...)
		dst = append(e.At.Time().AppendFormat(dst, time.RFC3339Nano), `"}`...)
	}
	dst = append(dst, ']')
	if n := len(list.Entries); list.More && n > 0 {
		dst = append(members.AppendCursor(append(dst, `,"cursor":"`...), list.Entries[n-1]), '"')
	}
	return dst
}
