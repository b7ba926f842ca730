package api

import (
	"sort"
	"strings"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/metric"
	"github.com/countd/countd/raftfsm/catalog"
)

func newRoutes(m *metric.Metrics) *routes {
	resourceOf := func(methods map[string]*endpoint) *resource {
		if get, ok := methods["GET"]; ok {
			methods["HEAD"] = get
		}
		r := &resource{methods: methods}
		var names []string
		for name, e := range methods {
			names = append(names, name)
			e.observers, e.hashed = m.ObserversOf(e.name), []byte(e.name)
		}
		sort.Strings(names)
		r.allow = strings.Join(names, ", ")
		return r
	}
	post := func(name string, takes takes, call handler) *resource {
		return resourceOf(map[string]*endpoint{"POST": {name: name, takes: takes | takesBody, call: call}})
	}
	get := func(name string, takes takes, call handler) *resource {
		return resourceOf(map[string]*endpoint{"GET": {name: name, takes: takes, call: call}})
	}
	remove := func(name string, call handler) *resource {
		return resourceOf(map[string]*endpoint{"DELETE": {name: name, takes: takesWrite | audited, call: call}})
	}
	t := &routes{
		fixed: map[string]*resource{
			"/healthz":      get("healthz", exempt|takesAnything, (*Server).healthz),
			"/readyz":       get("readyz", exempt|takesAnything, (*Server).readyz),
			"/metrics":      get("metrics", exempt|takesAnything, (*Server).gather),
			"/":             get("root", exempt, (*Server).root),
			"/openapi.yaml": get("openapi", exempt, (*Server).openAPI),
			"/v1/ops":       post("ops", takesWrite|takesOps, (*Server).ops),
			"/v1/version":   get("version", exempt, (*Server).version),
			"/v1/cluster":   get("cluster", exempt, (*Server).cluster),
			"/v1/keyspaces": resourceOf(map[string]*endpoint{
				"GET":  {name: "keyspaces_list", takes: takesRead, call: rare(listKeyspaces)},
				"POST": {name: "keyspaces_create", takes: takesBody | takesWrite | audited, call: rare(createKeyspace, "name", "columns")},
			}),
		},
		actions: map[string]*resource{
			"get":  post("counters_mget", takesRead|takesKeyspace, (*Server).getMany),
			"scan": post("counters_scan", takesRead|takesKeyspace, (*Server).scan),
			"incr": post("counters_incr", takesWrite|takesKeyspace, (*Server).incr),
			"set":  post("counters_set", takesWrite|takesKeyspace, (*Server).set),

			"correct": post("counters_correct", takesWrite|takesKeyspace, correct),
		},
		row: resourceOf(map[string]*endpoint{
			"GET":    {name: "counters_get", takes: takesRead | takesKeyspace | takesID, call: (*Server).getRow},
			"PUT":    {name: "counters_put", takes: takesBody | takesWrite | takesKeyspace | takesID, call: (*Server).putRow},
			"DELETE": {name: "counters_delete", takes: takesWrite | takesKeyspace | takesID, call: (*Server).deleteRow},
		}),
		table:   remove("keyspaces_drop", rare(dropKeyspace)),
		column:  remove("keyspaces_drop_column", rare(dropColumn)),
		columns: post("keyspaces_columns", takesWrite|audited, rare(addColumns, "columns")),
		spread:  post("keyspaces_everywhere", takesWrite|audited, rare(setEverywhere, "everywhere")),
		members: newMemberPaths(resourceOf),
		unread:  newUnreadPaths(resourceOf),
		posts:   newTimelinePaths(resourceOf),
		admin:   newAdminPaths(resourceOf),
		sources: newSourcePaths(resourceOf),
		users:   newUserPaths(resourceOf),
		none:    &endpoint{name: "none", observers: m.ObserversOf("none")},
	}
	t.setNeeds()
	return t
}

func newAdminPaths(resourceOf func(map[string]*endpoint) *resource) adminPaths {
	get := func(name string, call handler) *resource {
		return resourceOf(map[string]*endpoint{"GET": {name: "admin_" + name, takes: exempt, call: call}})
	}
	post := func(name string, call handler) *resource {
		return resourceOf(map[string]*endpoint{"POST": {name: "admin_" + name, takes: exempt | takesBody | takesChange | audited, call: call}})
	}
	return adminPaths{
		fixed: map[string]*resource{
			"/v1/admin/nodes":   get("nodes", viewed(func(v *admin.View) any { return v.ClusterNodes })),
			"/v1/admin/groups":  get("groups", viewed(func(v *admin.View) any { return map[string]any{"groups": v.Groups} })),
			"/v1/admin/digests": get("digests", viewed(func(v *admin.View) any { return map[string]any{"groups": v.Digests} })),
			"/v1/admin/plan":    get("plan", rare(adminPlan)),
			"/v1/admin/cold":    get("cold", rare(adminCold)),
			"/v1/admin/audit": resourceOf(map[string]*endpoint{
				"GET": {name: "admin_audit", takes: exempt | takesCursor, call: adminAudit},
			}),

			"/v1/admin/cold/migrate": post("cold_migrate", rare(migrateCold)),
			"/v1/admin/cold/stop":    post("cold_stop", rare(stopCold)),

			"/v1/admin/sources": resourceOf(map[string]*endpoint{
				"GET":  {name: "admin_sources", takes: exempt, call: rare(saveSources)},
				"POST": {name: "admin_source_restore", takes: exempt | takesBody | takesChange | takesSecret | audited, call: restoreSource},
			}),
			"/v1/admin/version": resourceOf(map[string]*endpoint{
				"GET":  {name: "admin_version", takes: exempt, call: viewed(func(v *admin.View) any { return v.Version })},
				"POST": {name: "admin_version_change", takes: exempt | takesBody | takesChange | audited, call: changes(changeVersion)},
			}),
		},
		nodes: map[string]*resource{
			"drain":   post("node_drain", changeNode(catalog.NodeDraining)),
			"undrain": post("node_undrain", changeNode(catalog.NodeActive)),
			"remove":  post("node_remove", changeNode(catalog.NodeLeaving)),
		},
		groups: map[string]*resource{
			"transfer": post("group_transfer", changes(transferGroup, "to")),
			"move":     post("group_move", changes(moveGroup, "from", "to")),
			"snapshot": get("group_snapshot", snapshotGroup),
			"restore": resourceOf(map[string]*endpoint{
				"POST": {name: "admin_group_restore", takes: exempt | takesStream | audited, call: restoreGroup},
			}),
		},
	}
}

func newUnreadPaths(resourceOf func(map[string]*endpoint) *resource) unreadPaths {
	one := func(method, name string, takes takes, call handler) *resource {
		return resourceOf(map[string]*endpoint{method: {name: name, takes: takes, call: call}})
	}
	get := func(name string, takes takes, call handler) *resource { return one("GET", name, takes|takesRead, call) }
	post := func(name string, takes takes, call handler) *resource {
		return one("POST", name, takes|takesWrite|takesBody, call)
	}
	return unreadPaths{
		fixed: map[string]*resource{
			"/v1/unread/incr": post("unread_incr", takesUnread, (*Server).incr),
			"/v1/poll":        one("POST", "polls", takesRead|takesBody|takesUnread, (*Server).polls),
			"/v1/notices":     get("notices_list", takesUnread, (*Server).listChannels),
			"/v1/dots":        get("dots_list", takesUnread, (*Server).listDots),
		},
		ofUser: get("unread_get", takesUser, (*Server).getRow),
		reset:  post("unread_reset", takesUser, (*Server).resetUnread),
		poll:   get("poll", takesUser|takesNames, (*Server).poll),
		feed: map[string]*resource{
			"reset":    post("feed_reset", takesUser, (*Server).resetFeed),
			"follow":   post("feed_follow", takesUser, (*Server).follow),
			"unfollow": post("feed_unfollow", takesUser, (*Server).unfollow),
			"read":     post("feed_read", takesUser, (*Server).readFeed),
			"unread":   get("feed_unread", takesUser|takesDetail, (*Server).feedUnread),

			"followees": get("feed_followees", takesUser|takesCursor, (*Server).followees),
		},
		channel:  post("notices_publish", takesUnread|takesName, (*Server).publish),
		notice:   one("DELETE", "notices_retract", takesWrite|takesUnread|takesName|takesNotice, (*Server).retract),
		notices:  get("notices_get", takesUser|takesName|takesSince, (*Server).notices),
		read:     post("notices_read", takesUser|takesName, (*Server).readNotices),
		dot:      one("PUT", "dots_set", takesWrite|takesBody|takesUnread|takesName, (*Server).setDot),
		fire:     post("dots_fire", takesUnread|takesName, (*Server).fire),
		shows:    get("dots_get", takesUser|takesName, (*Server).showDot),
		clearDot: post("dots_clear", takesUser|takesName, (*Server).clearDot),
	}
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

func newSourcePaths(resourceOf func(map[string]*endpoint) *resource) sourcePaths {
	const change = exempt | takesChange | audited
	verb := func(name string, call handler) *resource {
		return resourceOf(map[string]*endpoint{"POST": {name: "sources_" + name, takes: change | takesBody, call: call}})
	}
	look := func(name string, call handler) *resource {
		return resourceOf(map[string]*endpoint{"POST": {name: "sources_" + name, takes: exempt | takesBody, call: call}})
	}
	return sourcePaths{
		list: resourceOf(map[string]*endpoint{"GET": {name: "sources_list", takes: exempt, call: rare(listSources)}}),
		one: resourceOf(map[string]*endpoint{
			"GET":    {name: "sources_get", takes: exempt, call: rare(getSource)},
			"PUT":    {name: "sources_put", takes: change | takesBody | takesSecret, call: putSource},
			"DELETE": {name: "sources_delete", takes: change, call: rare(deleteSource)},
		}),
		verbs: map[string]*resource{
			"pause":  verb("pause", rare(pauseSource)),
			"resume": verb("resume", rare(resumeSource)),
			"seek":   verb("seek", rare(seekSource, "positions")),
			"past":   look("past", rare(pastOfSource, "keyspace", "partition", "from")),
			"rows":   look("rows", rare(rowsOfSource, "keyspace", "ids")),
		},
	}
}

func newUserPaths(resourceOf func(map[string]*endpoint) *resource) userPaths {
	const change = exempt | takesChange | audited
	return userPaths{
		all: resourceOf(map[string]*endpoint{"GET": {name: "users_list", takes: exempt, call: rare(listUsers)}}),
		one: resourceOf(map[string]*endpoint{
			"GET":    {name: "users_get", takes: exempt, call: rare(getUser)},
			"PUT":    {name: "users_put", takes: change | takesBody, call: rare(putUser, "grants")},
			"DELETE": {name: "users_delete", takes: change, call: rare(deleteUser)},
		}),
		tokens: resourceOf(map[string]*endpoint{"POST": {name: "users_tokens_create", takes: change | takesBody, call: unstored(rare(createToken))}}),
		token:  resourceOf(map[string]*endpoint{"DELETE": {name: "users_tokens_revoke", takes: change, call: rare(revokeToken)}}),
	}
}

func newMemberPaths(resourceOf func(map[string]*endpoint) *resource) memberPaths {
	one := func(method, name string, takes takes, call handler) *resource {
		return resourceOf(map[string]*endpoint{method: {name: name, takes: takesKeyspace | takesColumn | takes, call: call}})
	}
	return memberPaths{
		change: one("POST", "members_change", takesWrite|takesBody, (*Server).changeMembers),
		check:  one("POST", "members_check", takesRead|takesBody, (*Server).checkMembers),
		list:   one("GET", "members_list", takesRead|takesID|takesPage, (*Server).listMembers),
		of:     one("GET", "members_of", takesRead|takesID|takesMember|takesPage, (*Server).listSets),
	}
}
