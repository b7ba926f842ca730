package api

import (
	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/raftfsm/kinds"
)

// unreadRoutes are the calls about counts of users.
func unreadRoutes() []route {
	const write = takesWrite | takesBody
	return []route{
		{"POST /v1/unread/incr", "unread_incr", does{write | takesUnread, auth.Ingest.On(kinds.KeyspaceUnread), incr}},
		{"GET /v1/unread/{user}", "unread_get", does{takesRead | takesUser, auth.Read.On(kinds.KeyspaceUnread), getRow}},
		{"POST /v1/unread/{user}/reset", "unread_reset", does{write | takesUser | removes, auth.Write.On(kinds.KeyspaceUnread), resetUnread}},
	}
}

func resetUnread(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeReset(ctx.Request.Body()); err != nil {
		return err
	}
	if err := s.writeOps(r, len(r.keyspace.Columns)); err != nil {
		return err
	}
	w := &r.write
	cleared, after := w.Rows[:w.Width], w.Rows[w.Width:]
	if w.Repeated {
		clear(cleared) // a repeat clears nothing
	}
	named := make([]uint8, 0, len(r.ops[0].Cells))
	for _, cell := range r.ops[0].Cells {
		named = append(named, cell.Column)
	}
	answer(ctx, func(dst []byte) []byte {
		dst = appendRow(dst, &r.texts, r.id, r.keyspace, after)
		dst = append(dst, `,"cleared":`...)
		dst = appendColumns(dst, r.keyspace, named, cleared)
		return append(appendOutcome(dst, w), '}')
	})
	return nil
}

// decodeReset parses {"columns":[…]} or {"seen":{column:value,…}} into two ops: the first clears
// counts, and the second returns the remaining counts.
func (r *request) decodeReset(body []byte) error {
	s, err := r.members(body, []string{"columns", "seen"}, func(c *cursor, member int) {
		if member == 0 {
			r.decodeColumns()
			return
		}
		r.decodeCells(bodyOp, "seen")
		for _, cell := range r.cells {
			if cell.Value < 0 {
				c.Fail("seen."+r.keyspace.Columns[cell.Column], notCount)
			}
		}
	})
	switch {
	case err != nil:
		return err
	case s.has(0) && s.has(1):
		return invalid("seen", "a reset has columns or what was seen, not both")
	case !s.has(0) && !s.has(1):
		return invalid("columns", "columns or seen is needed")
	}
	for _, column := range r.columns {
		r.cells = append(r.cells, engine.Cell{Column: column})
	}
	var ops [2]engine.Op
	ops, r.cells = inbox.ResetOps(r.id, r.cells, s.has(0))
	r.ops = append(r.ops, ops[:]...)
	return nil
}
