package api

import (
	"fmt"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/opjson"
	"github.com/countd/countd/shard"
)

const (
	membersMax     = 1_000 // members of a page: about 80 KB of answer
	membersDefault = 100
	// lookupsMax bounds the sets that one request reads: a disk may have to answer each read.
	lookupsMax = 10_000
)

// listed returns the page to list, with the default limit.
func (c *setCall) listed() members.Page {
	page := c.page
	if page.Limit == 0 {
		page.Limit = membersDefault
	}
	return page
}

// noMembersIn returns why a keyspace that exists has no members.
func noMembersIn(ks *shard.Keyspace) string {
	return fmt.Sprintf("keyspace %s has no members: only keyspaces of counters have", ks.Name)
}

// findColumn sets the number of the column that the path names.
func (r *request) findColumn() error {
	r.sets.column = r.columnNumber(r.column)
	if r.cursor.Err != nil {
		return r.cursor.fault()
	}
	if r.sets.column < 0 {
		return invalid("column", noColumnOf(r.keyspace))
	}
	return nil
}

// decodeMemberOp reads the ith op, {"id":…,"member":…,"set":true or false}. The column is
// that of the path.
func (r *request) decodeMemberOp(i int) {
	c := &r.cursor
	if !c.Begin('{') {
		c.Fail(opPath(i, ""), notObject)
	}
	at := func(field string) string { return opPath(i, field) }
	id, hasID := uint64(0), false
	var m opjson.Member
	for n := 0; c.Next(n, '}'); n++ {
		switch key := c.Key(); {
		case string(key) == "id":
			if hasID {
				c.Fail(at("id"), givenTwice)
			}
			hasID = true
			var ok bool
			if id, ok = c.ID(); !ok {
				c.Fail(at("id"), notUint64)
			}
		case string(key) == "column":
			c.Fail(at("column"), "the path has the column")
		case m.Field(&c.Cursor, key, at):
		case string(key) == "set":
			c.Fail(at("set"), notBool)
		default:
			c.Fail(at(shown(key)), noField("id", "member", "set"))
		}
	}
	if c.Err == nil && !hasID {
		c.Fail(at("id"), missing)
	}
	if what := m.Missing(false); c.Err == nil && what != "" {
		c.Fail(at(what), missing)
	}
	r.addMemberOp(id, r.sets.column, &m)
}

// addMemberOp appends an op by which a member joins or leaves a set.
func (r *request) addMemberOp(id uint64, column int, m *opjson.Member) {
	kind := engine.OpLeave
	if m.Set {
		kind = engine.OpJoin
	}
	r.cells = append(r.cells, engine.Cell{Column: uint8(column), Value: int64(m.ID)})
	r.addOp(engine.Op{ID: id, Kind: kind})
}

// decodeMemberOps reads {"ops":[…],"want":"none"?,"counted":bool?}.
func (r *request) decodeMemberOps(body []byte) error {
	if err := r.decodeBatch(body, r.decodeMemberOp); err != nil || !r.sets.uncounted {
		return err
	}
	if err := r.may(auth.Write, r.name); err != nil {
		return err
	}
	for i := range r.write.Ops {
		op := &r.write.Ops[i]
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
			r.decodeIDs("ids", 1, idsMax)
		}
	})
}

// readMember reads the member of a read.
func (r *request) readMember() {
	c := &r.cursor
	var ok bool
	if r.sets.member, ok = c.ID(); !ok {
		c.Fail("member", notUint64)
	}
	r.sets.asked = true
}
