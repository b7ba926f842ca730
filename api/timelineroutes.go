package api

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
)

// timelinePaths are the paths of outboxes, timelines and groups.
type timelinePaths struct {
	outbox   *resource // /v1/outbox/{author}
	post     *resource // /v1/outbox/{author}/{id}
	timeline *resource // /v1/timeline/{user}
	groups   *resource // /v1/feed/{user}/groups
	group    *resource // /v1/feed/{user}/groups/{name}
}

func newTimelinePaths(resourceOf func(map[string]*endpoint) *resource) timelinePaths {
	return timelinePaths{
		outbox: resourceOf(map[string]*endpoint{
			"GET":  {name: "outbox_list", takes: takesRead | takesAuthor | takesPosts, call: (*Server).listOutbox},
			"POST": {name: "outbox_publish", takes: takesWrite | takesBody | takesAuthor, call: (*Server).publishPost},
		}),
		post: resourceOf(map[string]*endpoint{
			"DELETE": {name: "outbox_remove", takes: takesWrite | takesAuthor, call: (*Server).removePost},
		}),
		timeline: resourceOf(map[string]*endpoint{
			"GET": {name: "timeline", takes: takesRead | takesUser | takesPosts | takesJoins, call: (*Server).readTimeline},
		}),
		groups: resourceOf(map[string]*endpoint{
			"GET": {name: "feed_groups", takes: takesRead | takesUser, call: (*Server).listGroups},
		}),
		group: resourceOf(map[string]*endpoint{
			"GET":    {name: "feed_group_get", takes: takesRead | takesUser | takesGroup, call: (*Server).getGroup},
			"PUT":    {name: "feed_group_put", takes: takesWrite | takesBody | takesUser | takesGroup, call: (*Server).putGroup},
			"DELETE": {name: "feed_group_delete", takes: takesWrite | takesUser | takesGroup, call: (*Server).dropGroup},
		}),
	}
}

// match finds the resource of a path behind /v1/. The target has the author or user in its
// field id, and the post or group in its field keyspace.
func (t *timelinePaths) match(names [][]byte) target {
	switch {
	case len(names) == 2 && string(names[0]) == "outbox":
		return target{resource: t.outbox, id: names[1]}
	case len(names) == 3 && string(names[0]) == "outbox":
		return target{resource: t.post, id: names[1], keyspace: names[2]}
	case len(names) == 2 && string(names[0]) == "timeline":
		return target{resource: t.timeline, id: names[1]}
	case len(names) == 3 && string(names[0]) == "feed" && string(names[2]) == "groups":
		return target{resource: t.groups, id: names[1]}
	case len(names) == 4 && string(names[0]) == "feed" && string(names[2]) == "groups":
		return target{resource: t.group, id: names[1], keyspace: names[3]}
	}
	return target{}
}

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
		return invalid("member", "this server has no members of counts")
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
		return invalid("cursor", "not a cursor of this call")
	}
	return nil
}

func (r *request) readCountsOf(name []byte) error {
	if err := r.may(auth.Read, name); err != nil {
		return err
	}
	ks := r.backend.Keyspace(string(name))
	if ks == nil || ks.Kind != shard.KindCounters {
		return fmt.Errorf("%w: %s", shard.ErrUnknownKeyspace, shown(name))
	}
	r.asked.counts = ks
	return nil
}

func appendPostCursor(dst []byte, last shard.Post) []byte {
	dst = strconv.AppendUint(append(dst, `,"cursor":"`...), last.ID, 10)
	dst = strconv.AppendUint(append(dst, '.'), last.Author, 10)
	return append(dst, '"')
}
