package api

import (
	"fmt"
	"math"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

// parameters lists the parameters of the query that only some calls accept.
var parameters = [...]struct {
	name string
	of   takes // the calls that accept it
	read func(r *request, value []byte) error
}{
	{"since", takesSince, func(r *request, value []byte) error {
		v, ok := strictjson.ParseUint64(value)
		if !ok || v > math.MaxInt64 {
			return invalid("since", notCount)
		}
		r.asked.since = unread.Stand{Behind: int64(v), Known: true}
		return nil
	}},
	{"detail", takesDetail, func(r *request, value []byte) error {
		if r.asked.detail = string(value) == "true"; !r.asked.detail && string(value) != "false" {
			return invalid("detail", notBool)
		}
		return nil
	}},
	{"channels", takesNames, func(r *request, value []byte) (err error) {
		r.poll.Channels, err = namesIn(r.poll.Channels, "channels", value)
		return err
	}},
	{"dots", takesNames, func(r *request, value []byte) (err error) {
		r.poll.Dots, err = namesIn(r.poll.Dots, "dots", value)
		return err
	}},
	{"limit", takesCursor, func(r *request, value []byte) error { return readLimit(&r.asked.limit, value, followeesPageMax) }},
	{"cursor", takesCursor, func(r *request, value []byte) error {
		if r.asked.after, r.asked.hasAfter = strictjson.ParseUint64(value); !r.asked.hasAfter {
			return invalid("cursor", notCursor)
		}
		return nil
	}},
	{"limit", takesPage, func(r *request, value []byte) error { return readLimit(&r.sets.page.Limit, value, membersMax) }},
	{"cursor", takesPage, func(r *request, value []byte) (err error) {
		if r.sets.page.After, err = members.ParseCursor(value); err != nil {
			return invalid("cursor", notCursor)
		}
		r.sets.page.Continues = true
		return nil
	}},
	{"limit", takesPosts, func(r *request, value []byte) error { return readLimit(&r.asked.limit, value, timeline.LimitMax) }},
	{"cursor", takesPosts, (*request).readPostCursor},
	{"group", takesJoins, func(r *request, value []byte) error {
		if r.asked.group = string(value); !feed.ValidGroupName(value) {
			return invalid("group", groupRule)
		}
		return nil
	}},
	{"counts", takesJoins, (*request).readCountsOf},
	{"member", takesJoins, func(r *request, value []byte) error {
		if r.asked.in = string(value); len(value) == 0 {
			return invalid("member", noColumn)
		}
		return nil
	}},
}

// readParameter parses a parameter of the query that only some calls accept. The two lower bits
// of s belong to the parameters of all reads.
func (r *request) readParameter(name, value []byte, s *seen) error {
	for i := range parameters {
		p := &parameters[i]
		if r.takes&p.of == 0 || string(name) != p.name {
			continue
		}
		if s.has(2 + i) {
			return invalid(p.name, givenTwice)
		}
		*s |= 1 << (2 + i)
		return p.read(r, value)
	}
	return invalid(shown(name), "no such parameter of the query")
}

// readLimit parses the limit of a page.
func readLimit(limit *int, value []byte, most uint64) error {
	v, ok := strictjson.ParseUint64(value)
	if !ok || v < 1 || v > most {
		return invalid("limit", fmt.Sprintf("not an integer from 1 to %d", most))
	}
	*limit = int(v)
	return nil
}
