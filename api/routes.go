package api

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/operate"
)

// resource is one path template with its methods.
type resource struct {
	methods map[string]*endpoint
	allow   string // header Allow of a 405
}

// routes finds the endpoint of a request. Paths are compared byte by byte after percent-decoding.
// "//", "." and ".." have no special meaning. An encoded slash is a byte of a name.
type routes struct {
	resources map[string]*resource // by template
	root      pathNode
	none      *endpoint // for the metrics of requests without an endpoint
	console   *endpoint // for the metrics of requests that Config.Console answered
}

// target has the resource for a request's path, and the names in that path. The slices alias the
// path.
type target struct {
	resource     *resource
	keyspace, id []byte
	column       []byte
	// action is the resource of the action that the id is also the name of, such as "get"; nil for
	// another id.
	action *resource
}

// find returns the endpoint for a received method and path. On an error, the target has no
// resource.
func (t *routes) find(method, path []byte) (*endpoint, target, error) {
	plain, ok := gate.Unescaped(path)
	if !ok {
		return t.none, target{}, invalid("path", "bad percent-encoding")
	}
	to := t.match(method, plain)
	if to.resource == nil {
		return t.none, target{}, &fault{status: fasthttp.StatusNotFound, code: codeNotFound, message: "no such path"}
	}
	if len(plain) < len(path) {
		to.keyspace, to.id, to.column = gate.WithSlashes(to.keyspace), gate.WithSlashes(to.id), gate.WithSlashes(to.column)
	}
	if e, ok := to.resource.methods[string(method)]; ok {
		return e, to, nil
	}
	return t.none, target{}, notAllowed(method, cmp.Or(to.action, to.resource))
}

func notAllowed(method []byte, of *resource) *fault {
	return &fault{
		status:  fasthttp.StatusMethodNotAllowed,
		code:    codeMethodNotAllowed,
		message: "this path does not take " + operate.Shown(method),
		allow:   of.allow,
	}
}

func (t *routes) match(method, path []byte) (to target) {
	if len(path) > 0 && path[0] == '/' && t.root.match(method, path[1:], &to) {
		return to
	}
	return target{resource: to.action}
}

// pathNode is one name in the tree of path templates.
type pathNode struct {
	named    []*pathNode // children with a literal name
	name     string      // the node's literal name; "" if it is in braces
	any      *pathNode   // child whose name is in braces, or nil
	field    pathField   // for a name in braces: the field of target that stores it
	resource *resource   // nil if no template ends here
}

// pathField is the field of a target that stores a name of the path.
type pathField uint8

const (
	fieldKeyspace pathField = iota
	fieldID
	fieldColumn
)

// fieldOf returns the field for a name in braces. previous is the name before it in the template.
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

// match stores the resource and the names of the rest of a path in *to. It prefers literal names,
// except at the end of a path whose literal name does not take the method.
func (n *pathNode) match(method, rest []byte, to *target) bool {
	name, deeper := rest, false
	if i := bytes.IndexByte(rest, '/'); i >= 0 {
		name, rest, deeper = rest[:i], rest[i+1:], true
	}
	for _, next := range n.named {
		if next.name != string(name) {
			continue
		}
		if !deeper && next.resource != nil {
			if to.resource = next.resource; next.resource.methods[string(method)] != nil {
				return true
			}
			to.action = next.resource
		}
		if deeper && next.match(method, rest, to) {
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
		return next.match(method, rest, to)
	}
	to.resource = next.resource
	return next.resource != nil
}
