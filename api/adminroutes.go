package api

import (
	"bytes"
	"math"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/internal/strictjson"
)

// adminPaths holds the paths under /v1/admin: those without a name, and the suffixes of
// those with one.
type adminPaths struct {
	fixed  map[string]*resource // by path
	nodes  map[string]*resource // /v1/admin/nodes/{node}/<verb>
	groups map[string]*resource // /v1/admin/groups/{group}/<verb>
}

// handler serves one endpoint.
type handler = func(*Server, *fasthttp.RequestCtx, *request) error

// match finds the resource of a path. The target holds the name of the path in its field
// keyspace.
func (a *adminPaths) match(path []byte) target {
	if r, ok := a.fixed[string(path)]; ok {
		return target{resource: r}
	}
	for prefix, verbs := range map[string]map[string]*resource{"/v1/admin/nodes/": a.nodes, "/v1/admin/groups/": a.groups} {
		if rest, ok := bytes.CutPrefix(path, []byte(prefix)); ok {
			name, verb, _ := bytes.Cut(rest, []byte("/"))
			if r := verbs[string(verb)]; r != nil && len(name) > 0 {
				return target{resource: r, keyspace: name}
			}
		}
	}
	return target{}
}

// groupNumber reads {group} of the path.
func (r *request) groupNumber() (uint32, error) {
	number, ok := strictjson.ParseUint64(r.name)
	if !ok || number > math.MaxUint32 {
		return 0, invalid("group", "not the number of a group")
	}
	return uint32(number), nil
}
