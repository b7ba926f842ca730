package api

// timelinePaths are the paths of outboxes, timelines and groups.
type timelinePaths struct {
	outbox   *resource // /v1/outbox/{author}
	post     *resource // /v1/outbox/{author}/{id}
	timeline *resource // /v1/timeline/{user}
	groups   *resource // /v1/feed/{user}/groups
	group    *resource // /v1/feed/{user}/groups/{name}
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
