package api

import (
	"bytes"
	"math"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/tiering"
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

func newAdminPaths(resourceOf func(map[string]*endpoint) *resource) adminPaths {
	get := func(name string, call handler) *resource {
		return resourceOf(map[string]*endpoint{"GET": {name: "admin_" + name, takes: exempt, call: call}})
	}
	post := func(name string, call handler) *resource {
		return resourceOf(map[string]*endpoint{"POST": {name: "admin_" + name, takes: exempt | takesBody | takesChange | audited, call: call}})
	}
	nodeVerb := func(verb string, state catalog.NodeState) *resource {
		return post("node_"+verb, func(s *Server, ctx *fasthttp.RequestCtx, r *request) error { return s.changeNode(ctx, r, state) })
	}
	coldVerb := func(verb tiering.ColdVerb) *resource {
		return post("cold_"+string(verb), func(s *Server, ctx *fasthttp.RequestCtx, r *request) error { return s.orderCold(ctx, r, verb) })
	}
	return adminPaths{
		fixed: map[string]*resource{
			"/v1/admin/nodes":   get("nodes", (*Server).adminNodes),
			"/v1/admin/groups":  get("groups", (*Server).adminGroups),
			"/v1/admin/digests": get("digests", (*Server).adminDigests),
			"/v1/admin/plan":    get("plan", (*Server).adminPlan),
			"/v1/admin/cold":    get("cold", (*Server).adminCold),
			"/v1/admin/audit": resourceOf(map[string]*endpoint{
				"GET": {name: "admin_audit", takes: exempt | takesCursor, call: (*Server).adminAudit},
			}),

			"/v1/admin/cold/migrate": coldVerb(tiering.ColdMigrate),
			"/v1/admin/cold/warm":    coldVerb(tiering.ColdWarm),
			"/v1/admin/cold/stop":    coldVerb(tiering.ColdStop),

			"/v1/admin/gossip/keys": resourceOf(map[string]*endpoint{
				"GET":  {name: "admin_gossip_keys", takes: exempt, call: (*Server).listGossipKeys},
				"POST": {name: "admin_gossip_key_change", takes: exempt | takesBody | takesChange | takesSecret | audited, call: (*Server).changeGossipKey},
			}),
			"/v1/admin/version": resourceOf(map[string]*endpoint{
				"GET":  {name: "admin_version", takes: exempt, call: (*Server).adminVersion},
				"POST": {name: "admin_version_change", takes: exempt | takesBody | takesChange | audited, call: (*Server).changeVersion},
			}),
		},
		nodes: map[string]*resource{
			"drain":   nodeVerb("drain", catalog.NodeDraining),
			"undrain": nodeVerb("undrain", catalog.NodeActive),
			"remove":  nodeVerb("remove", catalog.NodeLeaving),
		},
		groups: map[string]*resource{
			"transfer": post("group_transfer", (*Server).transferGroup),
			"move":     post("group_move", (*Server).moveGroup),
			"snapshot": get("group_snapshot", (*Server).snapshotGroup),
			"restore": resourceOf(map[string]*endpoint{
				"POST": {name: "admin_group_restore", takes: exempt | takesStream | audited, call: (*Server).restoreGroup},
			}),
		},
	}
}

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
