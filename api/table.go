package api

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/rankings"
)

// newRoutes returns the endpoints of all routes. An endpoint of GET also serves HEAD.
func newRoutes(m *gate.Metrics) *routes {
	t := &routes{
		resources: map[string]*resource{},
		none:      &endpoint{name: "none", observers: m.ObserversOf("none")},
		console:   &endpoint{name: "console", observers: m.ObserversOf("console")},
	}
	for _, r := range allRoutes() {
		method, path := r.split()
		of := t.resources[path]
		if of == nil {
			of = &resource{methods: map[string]*endpoint{}}
			t.resources[path], t.root.add(path).resource = of, of
		}
		others := func(p parameter) bool { return r.takes&p.calls == 0 }
		e := &endpoint{query: slices.DeleteFunc(parameters(), others), does: r.does, name: r.name, hashed: []byte(r.name), observers: m.ObserversOf(r.name)}
		of.methods[method] = e
		if method == "GET" {
			of.methods["HEAD"] = e
		}
	}
	for _, of := range t.resources {
		var names []string
		for name := range of.methods {
			names = append(names, name)
		}
		slices.Sort(names)
		of.allow = strings.Join(names, ", ")
	}
	return t
}

func allRoutes() []route {
	return slices.Concat(counterRoutes(), keyspaceRoutes(), memberRoutes(), rankingRoutes(), pollRoutes(), unreadRoutes(), feedRoutes(), boardRoutes(), timelineRoutes(),
		nodeRoutes(), adminRoutes(), sourceRoutes(), userRoutes())
}

// parameters returns the parameters of the query that only some calls accept.
func parameters() []parameter {
	return []parameter{
		{consistency, takesRead, func(r *request, value []byte) error { r.asked.level = value; return nil }},
		{maxStaleness, takesRead, func(r *request, value []byte) error { r.asked.staleness = value; return nil }},
		{"since", takesSince, func(r *request, value []byte) error {
			v, ok := strictjson.ParseUint64(value)
			if !ok || v > math.MaxInt64 {
				return invalid("since", notCount)
			}
			r.asked.since = inbox.Stand{Behind: int64(v), Known: true}
			return nil
		}},
		{"detail", takesDetail, func(r *request, value []byte) error {
			if r.asked.detail = string(value) == "true"; !r.asked.detail && string(value) != "false" {
				return invalid("detail", strictjson.NotBool)
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
		{"limit", takesRanking, func(r *request, value []byte) error { return readLimit(&r.asked.limit, value, counters.RankingMax) }},
		{"window", takesWindow, func(r *request, value []byte) (err error) {
			if r.asked.window, err = rankings.ParseWindow(string(value)); err != nil {
				return invalid("window", err.Error())
			}
			r.asked.hasWindow = true
			return nil
		}},
		{"limit", takesPosts, func(r *request, value []byte) error { return readLimit(&r.asked.limit, value, inbox.TimelinePostsMax) }},
		{"cursor", takesPosts, (*request).readPostCursor},
		{"group", takesJoins, func(r *request, value []byte) error {
			if r.asked.group = string(value); !feed.ValidGroupName(value) {
				return invalid("group", inbox.GroupRule)
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
