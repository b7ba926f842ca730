package api

import (
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/auth"
)

// route is one call of the API: its method and path, such as GET /v1/poll/{user}, and the label of
// its metrics.
type route struct {
	target, name string
	does
}

// split returns the method and the path.
func (r *route) split() (method, path string) {
	method, path, _ = strings.Cut(r.target, " ")
	return method, path
}

// does describes a call: the input that it takes, the rights that it needs, and its handler.
type does struct {
	takes takes
	need  auth.Need // a call without a need is refused
	call  handler
}

// handler serves one endpoint.
type handler = func(*Server, *fasthttp.RequestCtx, *request) error

// endpoint is one method of one path.
type endpoint struct {
	does
	name   string      // label of its metrics
	query  []parameter // parameters that the endpoint accepts
	hashed []byte      // hash of the name, which is stored with each idempotency key, so it must never change

	observers *gate.Observers
}

// writesRows reports whether the endpoint writes counts of rows or of several users.
func (e *endpoint) writesRows() bool {
	ofUsers := e.takes&(takesWrite|takesUnread|takesID|takesName) == takesWrite|takesUnread
	return e.takes&(takesWrite|takesKeyspace) == takesWrite|takesKeyspace || e.takes&takesOps != 0 || ofUsers
}

// writesIDs reports whether the endpoint writes to ids. If so, the answer to a failure must list
// them.
func (e *endpoint) writesIDs() bool {
	of := e.takes & (takesKeyspace | takesOps | takesUnread | takesID)
	return e.takes&takesWrite != 0 && of != 0 && e.takes&(takesName|takesID) != takesName
}

// takes is a set of properties of an endpoint.
type takes uint32

const (
	takesBody     takes = 1 << iota // has a body; other endpoints refuse one
	takesRead                       // the headers and parameters of a read
	takesWrite                      // the headers of a write
	takesKeyspace                   // the path has the {keyspace} of an existing keyspace
	takesID                         // {id} of the path
	exempt                          // for operators: served under any load
	takesAnything                   // for probes: ignores parameters and body
	takesChange                     // changes the cluster, so pages of other sites must not call it
	takesStream                     // a body that the handler of the call reads as a stream
	takesUnread                     // uses the keyspace of unread numbers, whose rows are users
	takesName                       // {channel} or {dot} of the path
	takesNotice                     // {seq} of the path
	takesSince                      // the query parameter of that name, like the next two
	takesDetail
	takesNames
	takesOps     // ops on any keyspaces
	takesCursor  // limit and cursor of the query
	takesColumn  // the {column} in the path is a column of the keyspace; the call uses its members
	takesMember  // {id} of the path is a member
	takesPage    // limit and cursor of a list of members
	audited      // changes the cluster or a keyspace, so it is logged with its caller
	takesNobody  // served without a token too, because clients use it to find out whether they need one
	takesSecret  // a body that must not be logged
	takesPosts   // limit and cursor of a page of posts
	takesJoins   // group, counts and member of a timeline
	takesGroup   // {name} of a group
	ofAuthor     // {author} of the path
	takesRanking // limit of the query, for a ranking of a column
	takesWindow  // window of the query
	removes      // a write that only removes, or whose ops may: ids are only looked up, see name
)

const (
	// takesUser is for a call about one user, the {user} in the path.
	takesUser = takesID | takesUnread
	// takesAuthor is for a call about one author, the {author} in the path.
	takesAuthor = takesID | ofAuthor
)

// parameter is a parameter of the query that only some calls accept.
type parameter struct {
	name  string
	calls takes // the calls that accept it
	read  func(r *request, value []byte) error
}
