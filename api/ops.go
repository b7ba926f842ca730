package api

import (
	"fmt"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// judgeKeyspace is the keyspace whose shards check the idempotency keys of writes over several
// keyspaces. The choice does not depend on the ops, and every cluster has this keyspace.
const judgeKeyspace = "posts"

// ops serves a batch of ops on any keyspaces.
func ops(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeMixedOps(ctx.Request.Body()); err != nil {
		return err
	}
	width := 0
	for _, ks := range r.write.Spaces {
		width = max(width, len(ks.Columns))
	}
	return s.writeBatch(ctx, r, width, rowsBytes(1, width))
}

// decodeMixedOps parses {"ops":[{"keyspace":…,"id":…,"add" or "set":{…},"floor":n?},…],
// "want":"none"?} into r.write. An op with a user is on the keyspace of unread numbers. An op
// with a member is {"keyspace":…,"column":…,"id":…,"member":…,"set":true or false}.
func (r *request) decodeMixedOps(body []byte) error {
	judge := r.backend.Keyspace(judgeKeyspace)
	if judge == nil {
		return errNoCluster
	}
	r.write.Spaces = append(r.write.Spaces, judge)
	r.sets.users = userNames(r)
	return r.decodeBatch(body, r.decodeMixedOp)
}

// mixedOp is an op of decodeMixedOps that is being parsed.
type mixedOp struct {
	op     engine.Op
	member string // id or user, as in the body
	verb   string // add or set, as in the body
	id     int    // position of the id, if the keyspace comes after it; otherwise 0
	cells  int    // position of the object of add or set, if the keyspace comes after it; otherwise 0
	floor  opFloor

	target strictjson.Member // only for an op with a member
	column int               // number of the op's column; only for an op with a member
}

// decodeMixedOp parses the ith op. If the columns come before the keyspace's name, which it needs
// to parse them, it parses them last.
func (r *request) decodeMixedOp(i int) {
	c := &r.cursor
	if !c.Begin('{') {
		c.Fail(opPath(i, ""), strictjson.NotObject)
	}
	r.keyspace = nil
	o := mixedOp{target: memberOf(r, i)}
	var s seen
	first := len(r.cells)
	at := func(field string) string { return opPath(i, field) }
	for n := 0; c.Next(n, '}'); n++ {
		key := c.Key()
		if o.target.Field(&c.Cursor, key, at) {
			continue
		}
		switch string(key) {
		case "keyspace":
			s.once(c, 0, opPath(i, "keyspace"))
			r.enterKeyspace(opPath(i, "keyspace"))
		case "id", "user":
			if s.has(1) && o.member != string(key) {
				c.Fail(opPath(i, string(key)), "an op has an id or a user, not both")
			}
			o.member = string(key)
			s.once(c, 1, opPath(i, o.member))
			if o.id = c.At; r.keyspace != nil {
				readMixedID(r, i, &o)
			} else if !c.skipID() {
				c.Fail(opPath(i, o.member), strictjson.NotUint64)
			}
		case changeAdd.member, changeSet.member:
			if s.has(2) && o.verb != string(key) {
				c.Fail(opPath(i, string(key)), "an op has add or set, not both")
			}
			o.verb = string(key)
			s.once(c, 2, opPath(i, o.verb))
			if o.cells = c.At; r.keyspace != nil {
				r.decodeCells(i, o.verb)
				o.cells = 0
			} else {
				c.skipCounts(opPath(i, o.verb))
			}
		case "floor":
			s.once(c, 3, opPath(i, "floor"))
			o.floor.read(c, opPath(i, "floor"))
		default:
			c.Fail(opPath(i, operate.Shown(key)), operate.NoField("keyspace", "id", "user", "add", "set", "floor", "column", "member"))
		}
	}
	r.finishMixedOp(i, &o, s)
	end := c.At
	if c.Err == nil && o.id > 0 {
		c.At = o.id
		readMixedID(r, i, &o)
	}
	if c.Err == nil && o.cells > 0 {
		c.At = o.cells
		r.decodeCells(i, o.verb)
	}
	c.At = end
	if o.floor.given {
		r.floorCells(first, o.floor.value)
	}
	if o.target.Given() {
		r.addMemberOp(o.op.ID, o.column, &o.target)
	} else {
		r.addOp(o.op)
	}
	if c.Err == nil {
		r.write.In = append(r.write.In, r.spaceOf(r.keyspace))
	}
}

// readMixedID reads the id of the ith op, whose keyspace is known.
func readMixedID(r *request, i int, o *mixedOp) {
	var problem string
	if o.op.ID, problem = r.texts.Read(&r.cursor.Cursor, namesOf(r.keyspace), opSlot+2*i); problem != "" {
		r.cursor.Fail(opPath(i, o.member), problem)
	}
	o.id = 0
}

// finishMixedOp looks up the keyspace of the ith op, and refuses an incomplete op.
func (r *request) finishMixedOp(i int, o *mixedOp, s seen) {
	c := &r.cursor
	if c.Err != nil {
		return
	}
	if !s.has(0) && o.member == "user" {
		r.name = append(r.name[:0:0], kinds.KeyspaceUnread...)
		if err := r.may(auth.Ingest, r.name); err != nil {
			c.stop(err)
			return
		}
		if err := r.findUnread(); err != nil {
			c.stop(err)
			return
		}
	}
	switch {
	case r.keyspace == nil:
		c.Fail(opPath(i, "keyspace"), strictjson.Missing)
	case !s.has(1):
		c.Fail(opPath(i, r.rowMember()), strictjson.Missing)
	case o.member != r.rowMember():
		c.Fail(opPath(i, o.member), fmt.Sprintf("rows of keyspace %s are named by %s", r.keyspace.Name, r.rowMember()))
	case o.target.Given():
		r.finishMixedMember(i, o, s)
	case !s.has(2):
		c.Fail(opPath(i, changeAdd.member), strictjson.Missing)
	case o.verb == changeSet.member && r.keyspace.Kind != kinds.Counters:
		c.Fail(opPath(i, o.verb), "counts of unread numbers are not set")
	case o.verb == changeSet.member && o.floor.given:
		c.Fail(opPath(i, "floor"), "of an add only")
	}
	o.op.Kind = changeAdd.kind
	if o.verb == changeSet.member {
		o.op.Kind = changeSet.kind
		if err := r.may(auth.Write, r.name); err != nil && c.Err == nil {
			c.stop(err)
		}
	}
}

// finishMixedMember looks up the column of the ith op, which has a member, and refuses an
// incomplete op.
func (r *request) finishMixedMember(i int, o *mixedOp, s seen) {
	c := &r.cursor
	switch lacks := o.target.Missing(true); {
	case r.keyspace.Kind != kinds.Counters:
		c.Fail(opPath(i, "member"), noMembersIn(r.keyspace))
	case s.has(2):
		c.Fail(opPath(i, o.verb), "an op with a member changes its count by itself")
	case o.floor.given:
		c.Fail(opPath(i, "floor"), "of an add only")
	case lacks != "":
		c.Fail(opPath(i, lacks), strictjson.Missing)
	default:
		end := c.At
		c.At = o.target.ColumnAt
		o.column = r.columnNumber(c.Str())
		c.At = end
		if o.column < 0 {
			c.Fail(opPath(i, "column"), noColumnOf(r.keyspace))
		}
	}
}

// enterKeyspace sets the request's keyspace to the keyspace whose name is at the cursor.
func (r *request) enterKeyspace(path string) {
	c := &r.cursor
	if c.Peek() != '"' {
		c.Fail(path, strictjson.NotString)
		return
	}
	name := c.Str()
	if c.Err != nil {
		return
	}
	r.name = append(r.name[:0:0], name...) // copy it, because the cursor's text does not stay valid
	if err := r.may(auth.Ingest, r.name); err != nil {
		c.stop(err)
		return
	}
	var err error
	r.keyspace, err = r.lookUp(string(name))
	switch {
	case err != nil:
		c.stop(err)
	case r.keyspace == nil:
		unknown := invalid(path, "no such keyspace")
		unknown.status, unknown.code = fasthttp.StatusNotFound, codeUnknownKeyspace
		c.stop(unknown)
	case r.keyspace.Kind != kinds.Counters && r.keyspace.Kind != kinds.Unread:
		c.Fail(path, "neither of counters nor of unread numbers")
	}
}

// spaceOf returns the index of a keyspace in r.write.Spaces, and adds it if necessary.
func (r *request) spaceOf(ks *shard.Keyspace) uint8 {
	same := func(other *shard.Keyspace) bool { return other.Name == ks.Name }
	at := slices.IndexFunc(r.write.Spaces, same)
	if at < 0 {
		at = len(r.write.Spaces)
		r.write.Spaces = append(r.write.Spaces, ks)
	}
	if !r.write.Spaces[at].Same(ks) { // the columns read so far have numbers of a keyspace that was replaced
		r.cursor.stop(errs.ErrUnknownKeyspace)
	}
	r.write.Spaces[at] = ks // the newest version, which may have more columns
	return uint8(at)
}

// skipID skips a string or an integer, and reports whether it was one.
func (c *cursor) skipID() bool {
	switch b := c.Peek(); {
	case b == '"':
		c.Str()
	case b >= '0' && b <= '9':
		c.Number()
	default:
		return false
	}
	return true
}

// skipCounts skips an object whose keys are columns and whose values are integers.
func (c *cursor) skipCounts(path string) {
	if !c.Begin('{') {
		c.Fail(path, strictjson.NotObject)
	}
	for n := 0; c.Next(n, '}'); n++ {
		key := c.Key()
		if c.Err != nil {
			return
		}
		if _, ok := c.Int64(); !ok {
			c.Fail(path+"."+operate.Shown(key), strictjson.NotInt64)
		}
	}
}
