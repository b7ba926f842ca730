package api

import (
	"slices"
	"strings"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/metric"
	"github.com/countd/countd/raftfsm/catalog"
)

// route is a method of a path. Its name is the label of its metrics.
type route struct {
	method, path, name string
	takes              takes
	call               handler
}

// newRoutes returns the endpoints of all routes. HEAD goes with GET.
func newRoutes(m *metric.Metrics) *routes {
	t := &routes{resources: map[string]*resource{}, none: &endpoint{name: "none", observers: m.ObserversOf("none")}}
	for _, all := range [][]route{countRoutes(), memberRoutes(), unreadRoutes(), postRoutes(), operatorRoutes()} {
		for _, r := range all {
			of := t.resources[r.path]
			if of == nil {
				of = &resource{methods: map[string]*endpoint{}}
				t.resources[r.path], t.root.add(r.path).resource = of, of
			}
			e := &endpoint{name: r.name, hashed: []byte(r.name), takes: r.takes, call: r.call, observers: m.ObserversOf(r.name)}
			of.methods[r.method] = e
			if r.method == "GET" {
				of.methods["HEAD"] = e
			}
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
	t.setNeeds()
	return t
}

// countRoutes are the calls about counts and keyspaces, the most frequent ones first.
func countRoutes() []route {
	const (
		many  = takesBody | takesRead | takesKeyspace
		write = takesBody | takesWrite | takesKeyspace
		shape = takesWrite | audited
	)
	return []route{
		{"POST", "/v1/counters/{keyspace}/get", "counters_mget", many, (*Server).getMany},
		{"POST", "/v1/counters/{keyspace}/incr", "counters_incr", write, (*Server).incr},
		{"POST", "/v1/counters/{keyspace}/set", "counters_set", write, (*Server).set},
		{"POST", "/v1/counters/{keyspace}/scan", "counters_scan", many, (*Server).scan},
		{"POST", "/v1/counters/{keyspace}/correct", "counters_correct", write, correct},
		{"GET", "/v1/counters/{keyspace}/{id}", "counters_get", takesRead | takesKeyspace | takesID, (*Server).getRow},
		{"PUT", "/v1/counters/{keyspace}/{id}", "counters_put", write | takesID, (*Server).putRow},
		{"DELETE", "/v1/counters/{keyspace}/{id}", "counters_delete", takesWrite | takesKeyspace | takesID, (*Server).deleteRow},
		{"POST", "/v1/ops", "ops", takesBody | takesWrite | takesOps, (*Server).ops},

		{"GET", "/v1/keyspaces", "keyspaces_list", takesRead, rare(listKeyspaces)},
		{"POST", "/v1/keyspaces", "keyspaces_create", shape | takesBody, rare(createKeyspace, "name", "columns")},
		{"DELETE", "/v1/keyspaces/{keyspace}", "keyspaces_drop", shape, rare(dropKeyspace)},
		{"POST", "/v1/keyspaces/{keyspace}/columns", "keyspaces_columns", shape | takesBody, rare(addColumns, "columns")},
		{"DELETE", "/v1/keyspaces/{keyspace}/columns/{column}", "keyspaces_drop_column", shape, rare(dropColumn)},
		{"POST", "/v1/keyspaces/{keyspace}/everywhere", "keyspaces_everywhere", shape | takesBody, rare(setEverywhere, "everywhere")},
	}
}

// memberRoutes are the calls about members of columns.
func memberRoutes() []route {
	const sets = takesKeyspace | takesColumn
	return []route{
		{"POST", "/v1/members/{keyspace}/{column}", "members_change", sets | takesWrite | takesBody, (*Server).changeMembers},
		{"POST", "/v1/members/{keyspace}/{column}/check", "members_check", sets | takesRead | takesBody, (*Server).checkMembers},
		{"GET", "/v1/members/{keyspace}/{column}/{id}", "members_list", sets | takesRead | takesID | takesPage, (*Server).listMembers},
		{"GET", "/v1/members/{keyspace}/{column}/of/{member}", "members_of", sets | takesRead | takesID | takesMember | takesPage, (*Server).listSets},
	}
}

// unreadRoutes are the calls about unread numbers.
func unreadRoutes() []route {
	const write = takesWrite | takesBody
	return []route{
		{"GET", "/v1/poll/{user}", "poll", takesRead | takesUser | takesNames, (*Server).poll},
		{"POST", "/v1/poll", "polls", takesRead | takesBody | takesUnread, (*Server).polls},
		{"POST", "/v1/unread/incr", "unread_incr", write | takesUnread, (*Server).incr},
		{"GET", "/v1/unread/{user}", "unread_get", takesRead | takesUser, (*Server).getRow},
		{"POST", "/v1/unread/{user}/reset", "unread_reset", write | takesUser, (*Server).resetUnread},

		{"POST", "/v1/feed/{user}/reset", "feed_reset", write | takesUser, (*Server).resetFeed},
		{"POST", "/v1/feed/{user}/follow", "feed_follow", write | takesUser, (*Server).follow},
		{"POST", "/v1/feed/{user}/unfollow", "feed_unfollow", write | takesUser, (*Server).unfollow},
		{"POST", "/v1/feed/{user}/read", "feed_read", write | takesUser, (*Server).readFeed},
		{"GET", "/v1/feed/{user}/unread", "feed_unread", takesRead | takesUser | takesDetail, (*Server).feedUnread},
		{"GET", "/v1/feed/{user}/followees", "feed_followees", takesRead | takesUser | takesCursor, (*Server).followees},

		{"GET", "/v1/notices", "notices_list", takesRead | takesUnread, rare(listChannels)},
		{"POST", "/v1/notices/{channel}", "notices_publish", write | takesUnread | takesName, numbered("seq", publish)},
		{"DELETE", "/v1/notices/{channel}/{seq}", "notices_retract", takesWrite | takesUnread | takesName | takesNotice, numbered("seq", retract)},
		{"GET", "/v1/notices/{channel}/users/{user}", "notices_get", takesRead | takesUser | takesName | takesSince, (*Server).notices},
		{"POST", "/v1/notices/{channel}/users/{user}/read", "notices_read", write | takesUser | takesName, (*Server).readNotices},

		{"GET", "/v1/dots", "dots_list", takesRead | takesUnread, rare(listDots)},
		{"PUT", "/v1/dots/{name}", "dots_set", write | takesUnread | takesName, (*Server).setDot},
		{"POST", "/v1/dots/{name}/fire", "dots_fire", write | takesUnread | takesName, numbered("fired", fire)},
		{"GET", "/v1/dots/{name}/users/{user}", "dots_get", takesRead | takesUser | takesName, (*Server).showDot},
		{"POST", "/v1/dots/{name}/users/{user}/clear", "dots_clear", write | takesUser | takesName, (*Server).clearDot},
	}
}

// postRoutes are the calls about outboxes, timelines and groups of followees.
func postRoutes() []route {
	const group = takesUser | takesGroup
	return []route{
		{"GET", "/v1/timeline/{user}", "timeline", takesRead | takesUser | takesPosts | takesJoins, (*Server).readTimeline},
		{"GET", "/v1/outbox/{author}", "outbox_list", takesRead | takesAuthor | takesPosts, (*Server).listOutbox},
		{"POST", "/v1/outbox/{author}", "outbox_publish", takesWrite | takesBody | takesAuthor, (*Server).publishPost},
		{"DELETE", "/v1/outbox/{author}/{id}", "outbox_remove", takesWrite | takesAuthor, (*Server).removePost},
		{"GET", "/v1/feed/{user}/groups", "feed_groups", takesRead | takesUser, rare(listGroups)},
		{"GET", "/v1/feed/{user}/groups/{name}", "feed_group_get", takesRead | group, (*Server).getGroup},
		{"PUT", "/v1/feed/{user}/groups/{name}", "feed_group_put", takesWrite | takesBody | group, (*Server).putGroup},
		{"DELETE", "/v1/feed/{user}/groups/{name}", "feed_group_delete", takesWrite | group, (*Server).dropGroup},
	}
}

// operatorRoutes are the calls of operators and probes.
func operatorRoutes() []route {
	const (
		order  = exempt | takesChange | audited
		change = order | takesBody
	)
	return []route{
		{"GET", "/healthz", "healthz", exempt | takesAnything, (*Server).healthz},
		{"GET", "/readyz", "readyz", exempt | takesAnything, (*Server).readyz},
		{"GET", "/metrics", "metrics", exempt | takesAnything, (*Server).gather},
		{"GET", "/", "root", exempt, rare(root)},
		{"GET", "/openapi.yaml", "openapi", exempt, (*Server).openAPI},
		{"GET", "/v1/version", "version", exempt, rare(programVersion)},
		{"GET", "/v1/cluster", "cluster", exempt, rare(clusterStatus)},

		{"GET", "/v1/admin/nodes", "admin_nodes", exempt, viewed(func(v *admin.View) any { return v.ClusterNodes })},
		{"POST", "/v1/admin/nodes/{node}/drain", "admin_node_drain", change, changeNode(catalog.NodeDraining)},
		{"POST", "/v1/admin/nodes/{node}/undrain", "admin_node_undrain", change, changeNode(catalog.NodeActive)},
		{"POST", "/v1/admin/nodes/{node}/remove", "admin_node_remove", change, changeNode(catalog.NodeLeaving)},
		{"GET", "/v1/admin/groups", "admin_groups", exempt, viewed(func(v *admin.View) any { return map[string]any{"groups": v.Groups} })},
		{"POST", "/v1/admin/groups/{group}/transfer", "admin_group_transfer", change, changes(transferGroup, "to")},
		{"POST", "/v1/admin/groups/{group}/move", "admin_group_move", change, changes(moveGroup, "from", "to")},
		{"GET", "/v1/admin/groups/{group}/snapshot", "admin_group_snapshot", exempt, snapshotGroup},
		{"POST", "/v1/admin/groups/{group}/restore", "admin_group_restore", exempt | takesStream | audited, restoreGroup},
		{"GET", "/v1/admin/digests", "admin_digests", exempt, viewed(func(v *admin.View) any { return map[string]any{"groups": v.Digests} })},
		{"GET", "/v1/admin/plan", "admin_plan", exempt, rare(adminPlan)},
		{"GET", "/v1/admin/cold", "admin_cold", exempt, rare(adminCold)},
		{"POST", "/v1/admin/cold/migrate", "admin_cold_migrate", change, rare(migrateCold)},
		{"POST", "/v1/admin/cold/stop", "admin_cold_stop", change, rare(stopCold)},
		{"GET", "/v1/admin/version", "admin_version", exempt, viewed(func(v *admin.View) any { return v.Version })},
		{"POST", "/v1/admin/version", "admin_version_change", change, changes(changeVersion)},
		{"GET", "/v1/admin/audit", "admin_audit", exempt | takesCursor, rare(adminAudit)},
		{"GET", "/v1/admin/sources", "admin_sources", exempt, rare(saveSources)},
		{"POST", "/v1/admin/sources", "admin_source_restore", change | takesSecret, restoreSource},

		{"GET", "/v1/sources", "sources_list", exempt, rare(listSources)},
		{"GET", "/v1/sources/{source}", "sources_get", exempt, rare(getSource)},
		{"PUT", "/v1/sources/{source}", "sources_put", change | takesSecret, putSource},
		{"DELETE", "/v1/sources/{source}", "sources_delete", order, rare(deleteSource)},
		{"POST", "/v1/sources/{source}/pause", "sources_pause", change, rare(pauseSource)},
		{"POST", "/v1/sources/{source}/resume", "sources_resume", change, rare(resumeSource)},
		{"POST", "/v1/sources/{source}/seek", "sources_seek", change, rare(seekSource, "positions")},
		{"POST", "/v1/sources/{source}/past", "sources_past", exempt | takesBody, rare(pastOfSource, "keyspace", "partition", "from")},
		{"POST", "/v1/sources/{source}/rows", "sources_rows", exempt | takesBody, rare(rowsOfSource, "keyspace", "ids")},

		{"GET", "/v1/users", "users_list", exempt, rare(listUsers)},
		{"GET", "/v1/users/{name}", "users_get", exempt, rare(getUser)},
		{"PUT", "/v1/users/{name}", "users_put", change, rare(putUser, "grants")},
		{"DELETE", "/v1/users/{name}", "users_delete", order, rare(deleteUser)},
		{"POST", "/v1/users/{name}/tokens", "users_tokens_create", change, unstored(rare(createToken))},
		{"DELETE", "/v1/users/{name}/tokens/{id}", "users_tokens_revoke", order, rare(revokeToken)},
	}
}
