package api

import (
	"bytes"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// notCount is the problem of a value that is no count or notice number.
const notCount = "not an integer from 0 to 9223372036854775807"

// The bounds of a page of followees.
const (
	followeesPageDefault = 1_000
	followeesPageMax     = unread.FolloweesMax
)

// idName returns the name of the number in the path, for errors.
func (r *request) idName() string {
	if r.takes&takesMember != 0 {
		return "member"
	}
	if r.takes&takesNotice != 0 {
		return "seq"
	}
	if r.takes&ofAuthor != 0 {
		return "author"
	}
	return r.rowMember()
}

// findUnread sets the request's keyspace to that of unread numbers.
func (r *request) findUnread() error {
	r.keyspace = r.backend.Keyspace(shard.KeyspaceUnread)
	if r.keyspace == nil { // every cluster has this keyspace
		return errNoCluster
	}
	return nil
}

// namesIn parses names with commas between them.
func namesIn(names []string, path string, text []byte) ([]string, error) {
	names = names[:0]
	if len(text) == 0 {
		return names, nil
	}
	for name := range bytes.SplitSeq(text, []byte(",")) {
		if problem := unread.NameProblem(names, name); problem != "" {
			return names, invalid(path, shown(name)+": "+problem)
		}
		names = appendName(names, name)
	}
	return names, nil
}

// appendName appends a name. Clients poll for the same names repeatedly, so it reuses the
// string of the previous request if it is the same.
func appendName(names []string, name []byte) []string {
	if n := len(names); n < cap(names) && names[:n+1][n] == string(name) {
		return names[:n+1]
	}
	return append(names, string(name))
}

// decodeReset parses {"columns":[…]} or {"seen":{column:value,…}} into two ops: one that
// clears, and one that returns the remaining counts.
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
		return invalid("columns", missing)
	}
	for _, column := range r.columns {
		r.cells = append(r.cells, engine.Cell{Column: column})
	}
	var ops [2]engine.Op
	ops, r.cells = unread.ResetOps(r.id, r.cells, s.has(0))
	r.write.Ops = append(r.write.Ops, ops[:]...)
	return nil
}

// decodeFollowees parses {"followees":[…]} into r.ids.
func (r *request) decodeFollowees(body []byte) error {
	return r.allMembers(body, []string{"followees"}, func(*cursor, int) { r.decodeIDs("followees", 0, unread.FolloweesMax) })
}

// decodeFeedReset parses {"followees":[…]?,"up_to":id?} into r.ids and upTo, which is nil if
// missing. given reports whether the body has followees.
func (r *request) decodeFeedReset(body []byte) (given bool, upTo *uint64, err error) {
	s, err := r.members(optional(body), []string{"followees", "up_to"}, func(c *cursor, member int) {
		if member == 0 {
			r.decodeIDs("followees", 0, unread.FolloweesMax)
		} else if id, ok := c.ID(); ok {
			upTo = &id
		} else {
			c.Fail("up_to", notUint64)
		}
	})
	return s.has(0), upTo, err
}

// decodePoll reads {"users":[…],"channels":[…]?,"dots":[…]?} into r.poll.
func (r *request) decodePoll(body []byte) error {
	known := []string{"users", "channels", "dots"}
	p := &r.poll
	p.Channels, p.Dots = p.Channels[:0], p.Dots[:0]
	s, err := r.members(body, known, func(_ *cursor, member int) {
		switch member {
		case 0:
			r.decodeIDs("users", 0, unread.PollUsersMax)
		case 1:
			p.Channels = r.decodeNameList(p.Channels, "channels")
		case 2:
			p.Dots = r.decodeNameList(p.Dots, "dots")
		}
	})
	if err == nil && !s.has(0) {
		err = invalid("users", missing)
	}
	if err == nil && len(r.ids) == 0 {
		err = invalid("users", "at least one is needed")
	}
	p.Users = append(p.Users[:0], r.ids...)
	return err
}

// decodeNameList reads the names of channels or dots.
func (r *request) decodeNameList(names []string, path string) []string {
	c := &r.cursor
	if !c.Begin('[') {
		c.Fail(path, notArray)
	}
	for n := 0; c.Next(n, ']'); n++ {
		if c.Peek() != '"' {
			c.Fail(fmt.Sprintf("%s[%d]", path, n), notString)
			return names
		}
		name := c.Str()
		if problem := unread.NameProblem(names, name); problem != "" {
			c.Fail(fmt.Sprintf("%s[%d]", path, n), problem)
			return names
		}
		names = appendName(names, name)
	}
	return names
}
