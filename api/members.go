package api

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
)

// memberRoutes are the calls about members of columns.
func memberRoutes() []route {
	const sets = takesKeyspace | takesColumn
	read, add := auth.Read.InPath(), auth.Ingest.InPath()
	return []route{
		{"POST /v1/members/{keyspace}/{column}", "members_change", does{sets | takesWrite | takesBody | removes, add, changeMembers}},
		{"POST /v1/members/{keyspace}/{column}/check", "members_check", does{sets | takesRead | takesBody, read, checkMembers}},
		{"GET /v1/members/{keyspace}/{column}/{id}", "members_list", does{sets | takesRead | takesID | takesPage, read, listMembers}},
		{"GET /v1/members/{keyspace}/{column}/of/{member}", "members_of", does{sets | takesRead | takesID | takesMember | takesPage, read, listSets}},
	}
}

// changeMembers serves a batch of members that join or leave sets.
func changeMembers(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeMemberOps(ctx.Request.Body()); err != nil {
		return err
	}
	return s.writeBatch(ctx, r, r.sets.column+1, memberBytes)
}

// memberBytes estimates the bytes of a member in an answer.
const memberBytes = 80

// checkMembers answers whether a member is in the set of each id.
func checkMembers(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
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

// readSets sets r.sets.in: for each column, and for each of r.ids, whether the member is in the
// set. The values of a column follow each other.
func (s *Server) readSets(r *request, columns []uint8) error {
	if err := named(&r.texts); err != nil {
		return err
	}
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
func listMembers(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	column := r.sets.column
	r.ids = append(r.ids, r.id)
	if err := s.readRows(r, column+1); err != nil {
		return err
	}
	q := counters.MembersQuery{Column: uint8(column), Page: r.sets.listed()}
	if err := s.node().Read(r.keyspace, &q, r.ids, &r.read); err != nil {
		return fmt.Errorf("cannot list members: %w", err)
	}
	texts, err := r.texts.Shown(userNames(r), len(q.List.Entries), func(i int) uint64 { return q.List.Entries[i].ID }, &r.read)
	if err != nil {
		return err
	}
	answerLong(ctx, memberBytes*len(q.List.Entries), func(dst []byte) []byte {
		dst = r.texts.Append(append(dst, `{"id":`...), pathSlot, r.id)
		dst = appendNumber(append(dst, ','), "count", r.rows.Rows[column])
		dst = appendEntries(append(dst, `,"members":[`...), "member", q.List, texts)
		return append(dst, '}')
	})
	return nil
}

// listSets serves a page of the rows that a member is in.
func listSets(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := named(&r.texts); err != nil {
		return err
	}
	q := counters.RowsOfMemberQuery{Column: uint8(r.sets.column), Member: r.id, Page: r.sets.listed()}
	if err := s.node().Read(r.keyspace, &q, nil, &r.read); err != nil {
		return fmt.Errorf("cannot list the rows of a member: %w", err)
	}
	texts, err := r.texts.Shown(namesOf(r.keyspace), len(q.List.Entries), func(i int) uint64 { return q.List.Entries[i].ID }, &r.read)
	if err != nil {
		return err
	}
	answerLong(ctx, memberBytes*len(q.List.Entries), func(dst []byte) []byte {
		dst = r.texts.Append(append(dst, `{"member":`...), pathSlot, r.id)
		dst = appendEntries(append(dst, `,"ids":[`...), "id", q.List, texts)
		return append(dst, `,"lag_ms":0}`...) // the lag is 0, because a shard changes both directions in one log entry
	})
	return nil
}

// appendEntries appends the entries of a list, the end of the array and, if there may be another
// page, its cursor. name is the JSON name of an entry's id. texts is a result of Slots.Shown.
func appendEntries(dst []byte, name string, list members.List, texts names.Shown) []byte {
	for i, e := range list.Entries {
		dst = append(append(append(comma(dst, i), `{"`...), name...), `":`...)
		dst = append(texts.AppendJSON(dst, i, e.ID), `,"at":"`...)
		dst = append(e.At.Time().AppendFormat(dst, time.RFC3339Nano), `"}`...)
	}
	dst = append(dst, ']')
	if n := len(list.Entries); list.More && n > 0 {
		dst = append(members.AppendCursor(append(dst, `,"cursor":"`...), list.Entries[n-1]), '"')
	}
	return dst
}

const (
	membersMax     = 1_000 // members of a page: about 80 KB of answer
	membersDefault = 100
	// lookupsMax bounds the sets that one request reads, because each read may need the disk.
	lookupsMax = 10_000
)

// listed returns the page to list. A page without a limit gets the default limit.
func (c *setCall) listed() members.Page {
	page := c.page
	page.Limit = cmp.Or(page.Limit, membersDefault)
	return page
}

// decodeMemberOp reads the ith op, {"id":…,"member":…,"set":true or false}. The column is in the
// path.
func (r *request) decodeMemberOp(i int) {
	c := &r.cursor
	if !c.Begin('{') {
		c.Fail(opPath(i, ""), strictjson.NotObject)
	}
	at := func(field string) string { return opPath(i, field) }
	id, hasID := uint64(0), false
	m := memberOf(r, i)
	for n := 0; c.Next(n, '}'); n++ {
		switch key := c.Key(); {
		case string(key) == "id":
			if hasID {
				c.Fail(at("id"), strictjson.GivenTwice)
			}
			hasID = true
			var problem string
			if id, problem = r.texts.Read(&r.cursor.Cursor, namesOf(r.keyspace), opSlot+2*i); problem != "" {
				c.Fail(at("id"), problem)
			}
		case string(key) == "column":
			c.Fail(at("column"), "the path has the column")
		case m.Field(&c.Cursor, key, at):
		case string(key) == "set":
			c.Fail(at("set"), strictjson.NotBool)
		default:
			c.Fail(at(operate.Shown(key)), operate.NoField("id", "member", "set"))
		}
	}
	if c.Err == nil && !hasID {
		c.Fail(at("id"), strictjson.Missing)
	}
	if what := m.Missing(false); c.Err == nil && what != "" {
		c.Fail(at(what), strictjson.Missing)
	}
	r.addMemberOp(id, r.sets.column, &m)
}

// memberOf returns the Member that reads the member of the ith op.
func memberOf(r *request, i int) strictjson.Member {
	return strictjson.Member{ReadID: func(c *strictjson.Cursor) (uint64, string) { return r.texts.Read(c, r.sets.users, memberSlot+2*i) }}
}

// addMemberOp appends an op by which a member joins or leaves a set.
func (r *request) addMemberOp(id uint64, column int, m *strictjson.Member) {
	kind := engine.OpLeave
	if m.Set {
		kind = engine.OpJoin
	}
	r.cells = append(r.cells, engine.Cell{Column: uint8(column), Value: int64(m.ID)})
	r.addOp(engine.Op{ID: id, Kind: kind})
}

// decodeMemberOps reads {"ops":[…],"want":"none"?,"counted":bool?}.
func (r *request) decodeMemberOps(body []byte) error {
	r.sets.users = userNames(r)
	if err := r.decodeBatch(body, r.decodeMemberOp); err != nil || !r.sets.uncounted {
		return err
	}
	if err := r.may(auth.Write, r.name); err != nil {
		return err
	}
	for i := range r.ops {
		op := &r.ops[i]
		if op.Kind != engine.OpJoin {
			return invalid(opPath(i, "set"), "without counting, members only join")
		}
		*op = engine.Copy(op.ID, op.Cells[0].Column, uint64(op.Cells[0].Value), 0)
	}
	return nil
}

// decodeCheck reads {"member":…,"ids":[…]} into r.sets.member and r.ids.
func (r *request) decodeCheck(body []byte) error {
	return r.allMembers(body, []string{"member", "ids"}, func(_ *cursor, member int) {
		if member == 0 {
			r.readMember()
		} else {
			r.decodeIDs("ids", namesOf(r.keyspace), 1, idsMax)
		}
	})
}

// readMember parses the member that a read asks about.
func (r *request) readMember() {
	var problem string
	if r.sets.member, problem = r.texts.Read(&r.cursor.Cursor, userNames(r), names.NoSlot); problem != "" {
		r.cursor.Fail("member", problem)
	}
	r.sets.asked = true
}
