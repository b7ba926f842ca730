package api

import (
	"slices"
	"strings"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/metric"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
)

// route is a method of a path. Its name is the label of its metrics.
type route struct {
	method, path, name string
	takes              takes
	need               auth.Need // nobody may call a route without one
	call               handler
}

// newRoutes returns the endpoints of all routes. HEAD goes with GET.
func newRoutes(m *metric.Metrics) *routes {
	t := &routes{resources: map[string]*resource{}, none: &endpoint{name: "none", observers: m.ObserversOf("none")}}
	for _, r := range allRoutes() {
		of := t.resources[r.path]
		if of == nil {
			of = &resource{methods: map[string]*endpoint{}}
			t.resources[r.path], t.root.add(r.path).resource = of, of
		}
		e := &endpoint{name: r.name, hashed: []byte(r.name), takes: r.takes, need: r.need, call: r.call, observers: m.ObserversOf(r.name)}
		of.methods[r.method] = e
		if r.method == "GET" {
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
	return slices.Concat(countRoutes(), memberRoutes(), unreadRoutes(), postRoutes(), operatorRoutes())
}

// countRoutes are the calls about counts and keyspaces, the most frequent ones first.
func countRoutes() []route {
	const (
		many  = takesBody | takesRead | takesKeyspace
		write = takesBody | takesWrite | takesKeyspace
		shape = takesWrite | audited
	)
	read, add, put := auth.Read.InPath(), auth.Ingest.InPath(), auth.Write.InPath()
	return []route{
		{"POST", "/v1/counters/{keyspace}/get", "counters_mget", many, read, (*Server).getMany},
		{"POST", "/v1/counters/{keyspace}/incr", "counters_incr", write, add, (*Server).incr},
		{"POST", "/v1/counters/{keyspace}/set", "counters_set", write, put, (*Server).set},
		{"POST", "/v1/counters/{keyspace}/scan", "counters_scan", many, read, (*Server).scan},
		{"POST", "/v1/counters/{keyspace}/correct", "counters_correct", write, put, correct},
		{"GET", "/v1/counters/{keyspace}/{id}", "counters_get", takesRead | takesKeyspace | takesID, read, (*Server).getRow},
		{"PUT", "/v1/counters/{keyspace}/{id}", "counters_put", write | takesID, put, (*Server).putRow},
		{"DELETE", "/v1/counters/{keyspace}/{id}", "counters_delete", takesWrite | takesKeyspace | takesID, put, (*Server).deleteRow},
		{"POST", "/v1/ops", "ops", takesBody | takesWrite | takesOps, auth.Ingest.InBody(), (*Server).ops},

		{"GET", "/v1/keyspaces", "keyspaces_list", takesRead, auth.Known.Need(), rare(listKeyspaces)},
		{"POST", "/v1/keyspaces", "keyspaces_create", shape | takesBody, auth.Admin.Need(), rare(createKeyspace, "name", "columns")},
		{"DELETE", "/v1/keyspaces/{keyspace}", "keyspaces_drop", shape, auth.Admin.Need(), rare(dropKeyspace)},
		{"POST", "/v1/keyspaces/{keyspace}/columns", "keyspaces_columns", shape | takesBody, auth.Admin.Need(), rare(addColumns, "columns")},
		{"DELETE", "/v1/keyspaces/{keyspace}/columns/{column}", "keyspaces_drop_column", shape, auth.Admin.Need(), rare(dropColumn)},
		{"POST", "/v1/keyspaces/{keyspace}/everywhere", "keyspaces_everywhere", shape | takesBody, auth.Admin.Need(), rare(setEverywhere, "everywhere")},
	}
}

// memberRoutes are the calls about members of columns.
func memberRoutes() []route {
	const sets = takesKeyspace | takesColumn
	read, add := auth.Read.InPath(), auth.Ingest.InPath()
	return []route{
		{"POST", "/v1/members/{keyspace}/{column}", "members_change", sets | takesWrite | takesBody, add, (*Server).changeMembers},
		{"POST", "/v1/members/{keyspace}/{column}/check", "members_check", sets | takesRead | takesBody, read, (*Server).checkMembers},
		{"GET", "/v1/members/{keyspace}/{column}/{id}", "members_list", sets | takesRead | takesID | takesPage, read, (*Server).listMembers},
		{"GET", "/v1/members/{keyspace}/{column}/of/{member}", "members_of", sets | takesRead | takesID | takesMember | takesPage, read, (*Server).listSets},
	}
}

// unreadRoutes are the calls about unread numbers.
func unreadRoutes() []route {
	const write = takesWrite | takesBody
	reads, writes := auth.Read.On(shard.KeyspaceUnread), auth.Write.On(shard.KeyspaceUnread)
	readsFeed, writesFeed := auth.Read.On(shard.KeyspaceFeed), auth.Write.On(shard.KeyspaceFeed)
	polls := auth.Read.On(shard.KeyspaceUnread, shard.KeyspaceFeed)
	return []route{
		{"GET", "/v1/poll/{user}", "poll", takesRead | takesUser | takesNames, polls, (*Server).poll},
		{"POST", "/v1/poll", "polls", takesRead | takesBody | takesUnread, polls, (*Server).polls},
		{"POST", "/v1/unread/incr", "unread_incr", write | takesUnread, auth.Ingest.On(shard.KeyspaceUnread), (*Server).incr},
		{"GET", "/v1/unread/{user}", "unread_get", takesRead | takesUser, reads, (*Server).getRow},
		{"POST", "/v1/unread/{user}/reset", "unread_reset", write | takesUser, writes, (*Server).resetUnread},

		{"POST", "/v1/feed/{user}/reset", "feed_reset", write | takesUser, writesFeed, (*Server).resetFeed},
		{"POST", "/v1/feed/{user}/follow", "feed_follow", write | takesUser, writesFeed, (*Server).follow},
		{"POST", "/v1/feed/{user}/unfollow", "feed_unfollow", write | takesUser, writesFeed, (*Server).unfollow},
		{"POST", "/v1/feed/{user}/read", "feed_read", write | takesUser, writesFeed, (*Server).readFeed},
		{"GET", "/v1/feed/{user}/unread", "feed_unread", takesRead | takesUser | takesDetail, readsFeed, (*Server).feedUnread},
		{"GET", "/v1/feed/{user}/followees", "feed_followees", takesRead | takesUser | takesCursor, readsFeed, (*Server).followees},

		{"GET", "/v1/notices", "notices_list", takesRead | takesUnread, reads, rare(listChannels)},
		{"POST", "/v1/notices/{channel}", "notices_publish", write | takesUnread | takesName, writes, rare(publish)},
		{"DELETE", "/v1/notices/{channel}/{seq}", "notices_retract", takesWrite | takesUnread | takesName | takesNotice, writes, rare(retract)},
		{"GET", "/v1/notices/{channel}/users/{user}", "notices_get", takesRead | takesUser | takesName | takesSince, reads, rare(notices)},
		{"POST", "/v1/notices/{channel}/users/{user}/read", "notices_read", write | takesUser | takesName, writes, rare(readNotices)},

		{"GET", "/v1/dots", "dots_list", takesRead | takesUnread, reads, rare(listDots)},
		{"PUT", "/v1/dots/{name}", "dots_set", write | takesUnread | takesName, writes, rare(setDot, "new_users")},
		{"POST", "/v1/dots/{name}/fire", "dots_fire", write | takesUnread | takesName, writes, rare(fire)},
		{"GET", "/v1/dots/{name}/users/{user}", "dots_get", takesRead | takesUser | takesName, reads, rare(showDot)},
		{"POST", "/v1/dots/{name}/users/{user}/clear", "dots_clear", write | takesUser | takesName, writes, rare(clearDot)},
	}
}

// postRoutes are the calls about outboxes, timelines and groups of followees.
func postRoutes() []route {
	const group = takesUser | takesGroup
	return []route{
		{"GET", "/v1/timeline/{user}", "timeline", takesRead | takesUser | takesPosts | takesJoins, auth.Read.On(shard.KeyspaceFeed, shard.KeyspaceUsers), (*Server).readTimeline},
		{"GET", "/v1/outbox/{author}", "outbox_list", takesRead | takesAuthor | takesPosts, auth.Read.On(shard.KeyspaceUsers), (*Server).listOutbox},
		{"POST", "/v1/outbox/{author}", "outbox_publish", takesWrite | takesBody | takesAuthor, auth.Ingest.On(shard.KeyspaceUsers), rare(publishPost, "id")},
		{"DELETE", "/v1/outbox/{author}/{id}", "outbox_remove", takesWrite | takesAuthor, auth.Ingest.On(shard.KeyspaceUsers), rare(removePost)},
		{"GET", "/v1/feed/{user}/groups", "feed_groups", takesRead | takesUser, auth.Read.On(shard.KeyspaceFeed), rare(listGroups)},
		{"GET", "/v1/feed/{user}/groups/{name}", "feed_group_get", takesRead | group, auth.Read.On(shard.KeyspaceFeed), (*Server).getGroup},
		{"PUT", "/v1/feed/{user}/groups/{name}", "feed_group_put", takesWrite | takesBody | group, auth.Write.On(shard.KeyspaceFeed), (*Server).putGroup},
		{"DELETE", "/v1/feed/{user}/groups/{name}", "feed_group_delete", takesWrite | group, auth.Write.On(shard.KeyspaceFeed), rare(dropGroup)},
	}
}

// operatorRoutes are the calls of operators and probes.
func operatorRoutes() []route {
	const (
		order  = exempt | takesChange | audited
		change = order | takesBody
	)
	public, known, status, operator := auth.Public.Need(), auth.Known.Need(), auth.Status.Need(), auth.Admin.Need()
	return []route{
		{"GET", "/healthz", "healthz", exempt | takesAnything, public, (*Server).healthz},
		{"GET", "/readyz", "readyz", exempt | takesAnything, public, (*Server).readyz},
		{"GET", "/metrics", "metrics", exempt | takesAnything, status, (*Server).gather},
		{"GET", "/", "root", exempt, known, rare(root)},
		{"GET", "/openapi.yaml", "openapi", exempt, known, (*Server).openAPI},
		{"GET", "/v1/version", "version", exempt, known, rare(programVersion)},
		{"GET", "/v1/cluster", "cluster", exempt, status, rare(clusterStatus)},

		{"GET", "/v1/admin/nodes", "admin_nodes", exempt, status, viewed(func(v *admin.View) any { return v.ClusterNodes })},
		{"POST", "/v1/admin/nodes/{node}/drain", "admin_node_drain", change, operator, changeNode(catalog.NodeDraining)},
		{"POST", "/v1/admin/nodes/{node}/undrain", "admin_node_undrain", change, operator, changeNode(catalog.NodeActive)},
		{"POST", "/v1/admin/nodes/{node}/remove", "admin_node_remove", change, operator, changeNode(catalog.NodeLeaving)},
		{"GET", "/v1/admin/groups", "admin_groups", exempt, status, viewed(func(v *admin.View) any { return map[string]any{"groups": v.Groups} })},
		{"POST", "/v1/admin/groups/{group}/transfer", "admin_group_transfer", change, operator, changes(transferGroup, "to")},
		{"POST", "/v1/admin/groups/{group}/move", "admin_group_move", change, operator, changes(moveGroup, "from", "to")},
		{"GET", "/v1/admin/groups/{group}/snapshot", "admin_group_snapshot", exempt, operator, snapshotGroup},
		{"POST", "/v1/admin/groups/{group}/restore", "admin_group_restore", exempt | takesStream | audited, operator, restoreGroup},
		{"GET", "/v1/admin/digests", "admin_digests", exempt, status, viewed(func(v *admin.View) any { return map[string]any{"groups": v.Digests} })},
		{"GET", "/v1/admin/plan", "admin_plan", exempt, status, rare(adminPlan)},
		{"GET", "/v1/admin/cold", "admin_cold", exempt, status, rare(adminCold)},
		{"POST", "/v1/admin/cold/migrate", "admin_cold_migrate", change, operator, rare(migrateCold)},
		{"POST", "/v1/admin/cold/stop", "admin_cold_stop", change, operator, rare(stopCold)},
		{"GET", "/v1/admin/version", "admin_version", exempt, status, viewed(func(v *admin.View) any { return v.Version })},
		{"POST", "/v1/admin/version", "admin_version_change", change, operator, changes(changeVersion)},
		{"GET", "/v1/admin/audit", "admin_audit", exempt | takesCursor, operator, rare(adminAudit)},
		{"GET", "/v1/admin/sources", "admin_sources", exempt, operator, rare(saveSources)},
		{"POST", "/v1/admin/sources", "admin_source_restore", change | takesSecret, operator, withSource(restoreSource)},

		{"GET", "/v1/sources", "sources_list", exempt, operator, rare(listSources)},
		{"GET", "/v1/sources/{source}", "sources_get", exempt, operator, ofSource(Sources.Get)},
		{"PUT", "/v1/sources/{source}", "sources_put", change | takesSecret, operator, withSource(putSource)},
		{"DELETE", "/v1/sources/{source}", "sources_delete", order, operator, rare(deleteSource)},
		{"POST", "/v1/sources/{source}/pause", "sources_pause", change, operator, ofSource(Sources.Pause)},
		{"POST", "/v1/sources/{source}/resume", "sources_resume", change, operator, ofSource(Sources.Resume)},
		{"POST", "/v1/sources/{source}/seek", "sources_seek", change, operator, rare(seekSource, "positions")},
		{"POST", "/v1/sources/{source}/past", "sources_past", exempt | takesBody, operator, rare(pastOfSource, "keyspace", "partition", "from")},
		{"POST", "/v1/sources/{source}/rows", "sources_rows", exempt | takesBody, operator, rare(rowsOfSource, "keyspace", "ids")},

		{"GET", "/v1/users", "users_list", exempt, operator, rare(listUsers)},
		{"GET", "/v1/users/{name}", "users_get", exempt, operator, rare(getUser)},
		{"PUT", "/v1/users/{name}", "users_put", change, operator, rare(putUser, "grants")},
		{"DELETE", "/v1/users/{name}", "users_delete", order, operator, rare(deleteUser)},
		{"POST", "/v1/users/{name}/tokens", "users_tokens_create", change, operator, unstored(rare(createToken))},
		{"DELETE", "/v1/users/{name}/tokens/{id}", "users_tokens_revoke", order, operator, rare(revokeToken)},
	}
}
