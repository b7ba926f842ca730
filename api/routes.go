package api

import (
	"bytes"
	"encoding/hex"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/metric"
	"github.com/countd/countd/auth"
)

// endpoint is one method of one path.
type endpoint struct {
	name   string // label of its metrics
	hashed []byte // of it, for keys; stored with each key, so it never changes
	takes  takes
	call   handler
	need   auth.Need // of the matrix

	observers *metric.Observers
}

// writesRows reports whether the endpoint writes counts of rows or of several users, not the
// catalog.
func (e *endpoint) writesRows() bool {
	ofUsers := e.takes&(takesWrite|takesUnread|takesID|takesName) == takesWrite|takesUnread
	return e.takes&(takesWrite|takesKeyspace) == takesWrite|takesKeyspace || e.takes&takesOps != 0 || ofUsers
}

// takes is a set of properties of an endpoint.
type takes uint32

const (
	takesBody     takes = 1 << iota // others refuse one
	takesRead                       // the headers and parameters of a read
	takesWrite                      // the headers of a write
	takesKeyspace                   // {keyspace} of the path is an existing keyspace
	takesID                         // {id} of the path
	exempt                          // served whatever the load: for operators
	takesAnything                   // ignores any parameters and body: for probes
	takesChange                     // changes the cluster: pages of other sites may not call it
	takesStream                     // a body that the call reads itself
	takesUnread                     // the keyspace of unread numbers, whose rows are users
	takesName                       // {channel} or {dot} of the path
	takesNotice                     // {seq} of the path
	takesSince                      // these of the query
	takesDetail
	takesNames
	takesOps    // ops on any keyspaces
	takesCursor // limit and cursor of the query
	takesColumn // {column} of the path is one of the keyspace, with its members
	takesMember // {id} of the path is a member
	takesPage   // limit and cursor of a list of members
	audited     // in the node's log with its caller: it changes the cluster or a keyspace
	takesSecret // a body that is in no log
	takesPosts  // limit and cursor of a page of posts
	takesJoins  // group, counts and member of a timeline
	takesGroup  // {name} of a group
	ofAuthor    // {author} of the path
)

const (
	// takesUser is for a call about one user: {user} of the path.
	takesUser = takesID | takesUnread
	// takesAuthor is for a call about one author: {author} of the path.
	takesAuthor = takesID | ofAuthor
)

// resource is one path with its methods.
type resource struct {
	methods map[string]*endpoint
	allow   string // header of a 405
}

// routes finds the endpoint of a request. Paths match byte by byte after their
// percent-encoding is undone: "//", "." and ".." are names like others, and an
// encoded slash is in no name.
type routes struct {
	fixed   map[string]*resource // by path
	actions map[string]*resource // /v1/counters/{keyspace}/<action>
	row     *resource            // /v1/counters/{keyspace}/{id}
	table   *resource            // /v1/keyspaces/{keyspace}
	columns *resource            // /v1/keyspaces/{keyspace}/columns
	column  *resource            // /v1/keyspaces/{keyspace}/columns/{column}
	spread  *resource            // /v1/keyspaces/{keyspace}/everywhere
	members memberPaths          // of members of columns
	unread  unreadPaths          // of unread numbers
	posts   timelinePaths        // of outboxes, timelines and groups
	admin   adminPaths           // /v1/admin/…
	sources sourcePaths          // /v1/sources/…
	users   userPaths            // /v1/users/…
	none    *endpoint            // for the metrics of requests without an endpoint
}

// target is the resource and the names of a request's path. The slices alias the path.
type target struct {
	resource     *resource
	keyspace, id []byte
	column       []byte
}

// find returns the endpoint for a method and a path as received; with an error, the target
// has none.
func (t *routes) find(method, path []byte) (*endpoint, target, error) {
	path, ok := unescaped(path)
	if !ok {
		return t.none, target{}, invalid("path", "bad percent-encoding")
	}
	to := t.match(path)
	if to.resource == nil {
		return t.none, target{}, &fault{status: fasthttp.StatusNotFound, code: codeNotFound, message: "no such path"}
	}
	if e, ok := to.resource.methods[string(method)]; ok {
		return e, to, nil
	}
	return t.none, target{}, &fault{
		status:  fasthttp.StatusMethodNotAllowed,
		code:    codeMethodNotAllowed,
		message: "this path does not take " + shown(method),
		allow:   to.resource.allow,
	}
}

func (t *routes) match(path []byte) target {
	if r, ok := t.fixed[string(path)]; ok {
		return target{resource: r}
	}
	if rest, ok := bytes.CutPrefix(path, []byte("/v1/counters/")); ok {
		keyspace, last, _ := bytes.Cut(rest, []byte("/"))
		if len(keyspace) == 0 || len(last) == 0 || bytes.IndexByte(last, '/') >= 0 {
			return target{}
		}
		if r, ok := t.actions[string(last)]; ok {
			return target{resource: r, keyspace: keyspace}
		}
		return target{resource: t.row, keyspace: keyspace, id: last}
	}
	if rest, ok := bytes.CutPrefix(path, []byte("/v1/keyspaces/")); ok {
		keyspace, last, deeper := bytes.Cut(rest, []byte("/"))
		column, isColumn := bytes.CutPrefix(last, []byte("columns/"))
		switch {
		case len(keyspace) > 0 && !deeper:
			return target{resource: t.table, keyspace: keyspace}
		case len(keyspace) > 0 && isColumn && len(column) > 0 && bytes.IndexByte(column, '/') < 0:
			return target{resource: t.column, keyspace: keyspace, column: column}
		case len(keyspace) > 0 && string(last) == "columns":
			return target{resource: t.columns, keyspace: keyspace}
		case len(keyspace) > 0 && string(last) == "everywhere":
			return target{resource: t.spread, keyspace: keyspace}
		}
	}
	if rest, ok := bytes.CutPrefix(path, []byte("/v1/members/")); ok {
		return t.members.match(rest)
	}
	if to := t.unread.match(path); to.resource != nil {
		return to
	}
	if to := t.sources.match(path); to.resource != nil {
		return to
	}
	if to := t.users.match(path); to.resource != nil {
		return to
	}
	if rest, ok := bytes.CutPrefix(path, []byte("/v1/")); ok {
		if to := t.posts.match(bytes.Split(rest, []byte("/"))); to.resource != nil && len(to.id) > 0 {
			return to
		}
	}
	return t.admin.match(path)
}

// unescaped undoes a path's percent-encoding. It reports false for a bad one.
// An encoded slash becomes a byte that no name has, because as a slash it would
// move the borders of the names.
func unescaped(path []byte) ([]byte, bool) {
	if bytes.IndexByte(path, '%') < 0 {
		return path, true
	}
	plain := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		b := path[i]
		if b == '%' {
			if i+2 >= len(path) {
				return nil, false
			}
			var decoded [1]byte
			if _, err := hex.Decode(decoded[:], path[i+1:i+3]); err != nil {
				return nil, false
			}
			if b = decoded[0]; b == '/' {
				b = 0
			}
			i += 2
		}
		plain = append(plain, b)
	}
	return plain, true
}
