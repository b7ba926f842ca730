package api

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/metric"
	"github.com/countd/countd/auth"
)

// handler serves one endpoint.
type handler = func(*Server, *fasthttp.RequestCtx, *request) error

// endpoint is one method of one path.
type endpoint struct {
	name   string // label of its metrics
	hashed []byte // hash of the name, for keys; stored with each key, so it never changes
	takes  takes
	call   handler
	need   auth.Need

	observers *metric.Observers
}

// writesRows reports whether the endpoint writes counts of rows or of several users, and not the
// catalog.
func (e *endpoint) writesRows() bool {
	ofUsers := e.takes&(takesWrite|takesUnread|takesID|takesName) == takesWrite|takesUnread
	return e.takes&(takesWrite|takesKeyspace) == takesWrite|takesKeyspace || e.takes&takesOps != 0 || ofUsers
}

// writesIDs reports whether the endpoint writes to ids. The answer to a failure then names them.
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
	takesKeyspace                   // {keyspace} of the path is an existing keyspace
	takesID                         // {id} of the path
	exempt                          // served under any load: for operators
	takesAnything                   // ignores any parameters and body: for probes
	takesChange                     // changes the cluster: pages of other sites may not call it
	takesStream                     // a body that the call reads itself
	takesUnread                     // the keyspace of unread numbers, whose rows are users
	takesName                       // {channel} or {dot} of the path
	takesNotice                     // {seq} of the path
	takesSince                      // this and the next two: parameters of the query
	takesDetail
	takesNames
	takesOps    // ops on any keyspaces
	takesCursor // limit and cursor of the query
	takesColumn // {column} of the path is one of the keyspace, with its members
	takesMember // {id} of the path is a member
	takesPage   // limit and cursor of a list of members
	audited     // logged with its caller, because it changes the cluster or a keyspace
	takesSecret // a body that must not be logged
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
	allow   string // the header Allow of a 405
}

// routes finds the endpoint of a request. Paths match byte by byte after their
// percent-encoding is undone: "//", "." and ".." are names like others, and an
// encoded slash is in no name.
type routes struct {
	resources map[string]*resource // by template
	root      pathNode
	none      *endpoint // for the metrics of requests without an endpoint
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

func (t *routes) match(path []byte) (to target) {
	if len(path) > 0 && path[0] == '/' && t.root.match(path[1:], &to) {
		return to
	}
	return target{}
}

// pathNode is one name in path templates that begin alike.
type pathNode struct {
	named    []*pathNode // by the next name
	name     string      // the node's own name, if it is in named
	any      *pathNode   // if the next name is in braces
	field    pathField   // the field that takes the name, if the node is any
	resource *resource   // nil if no template ends here
}

// pathField is the field of a target that takes a name of the path.
type pathField uint8

const (
	fieldKeyspace pathField = iota
	fieldID
	fieldColumn
)

// fieldOf returns the field for a name in braces. previous is the name in front of it.
func fieldOf(name, previous string) pathField {
	switch {
	case previous == "{author}", name == "{keyspace}", name == "{channel}", name == "{name}", name == "{source}", name == "{node}", name == "{group}":
		return fieldKeyspace
	case previous == "tokens", name == "{column}":
		return fieldColumn
	}
	return fieldID
}

// add returns the node at the end of a template.
func (n *pathNode) add(template string) *pathNode {
	names := strings.Split(template, "/")
	for i, name := range names[1:] {
		at := slices.IndexFunc(n.named, func(next *pathNode) bool { return next.name == name })
		switch {
		case strings.HasPrefix(name, "{") && n.any == nil:
			n.any = &pathNode{field: fieldOf(name, names[i])}
			fallthrough
		case strings.HasPrefix(name, "{"):
			n = n.any
		case at >= 0:
			n = n.named[at]
		default:
			next := &pathNode{name: name}
			n.named = append(n.named, next)
			n = next
		}
	}
	return n
}

// match finds the resource for the rest of a path and fills to. A literal name wins over one in
// braces, unless no template continues behind it.
func (n *pathNode) match(rest []byte, to *target) bool {
	name, deeper := rest, false
	if i := bytes.IndexByte(rest, '/'); i >= 0 {
		name, rest, deeper = rest[:i], rest[i+1:], true
	}
	for _, next := range n.named {
		if next.name != string(name) {
			continue
		}
		if !deeper && next.resource != nil {
			to.resource = next.resource
			return true
		}
		if deeper && next.match(rest, to) {
			return true
		}
		break
	}
	next := n.any
	if next == nil || len(name) == 0 {
		return false
	}
	switch next.field {
	case fieldKeyspace:
		to.keyspace = name
	case fieldID:
		to.id = name
	case fieldColumn:
		to.column = name
	}
	if deeper {
		return next.match(rest, to)
	}
	to.resource = next.resource
	return next.resource != nil
}

// unescaped undoes a path's percent-encoding. It returns false for a bad one. An encoded slash
// becomes a byte that no name has, because a slash would split the name.
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
