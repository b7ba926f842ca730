package api

import "bytes"

// unreadPaths are the paths of unread numbers, by the names in them.
type unreadPaths struct {
	fixed    map[string]*resource // by path
	ofUser   *resource            // /v1/unread/{user}
	reset    *resource            // /v1/unread/{user}/reset
	poll     *resource            // /v1/poll/{user}
	feed     map[string]*resource // /v1/feed/{user}/<verb>
	channel  *resource            // /v1/notices/{channel}
	notice   *resource            // /v1/notices/{channel}/{seq}
	notices  *resource            // /v1/notices/{channel}/users/{user}
	read     *resource            // /v1/notices/{channel}/users/{user}/read
	dot      *resource            // /v1/dots/{name}
	fire     *resource            // /v1/dots/{name}/fire
	shows    *resource            // /v1/dots/{name}/users/{user}
	clearDot *resource            // /v1/dots/{name}/users/{user}/clear
}

// match finds the resource of a path. The target holds the channel or dot in its field
// keyspace, and the user or notice in its field id.
func (u *unreadPaths) match(path []byte) target {
	if r, ok := u.fixed[string(path)]; ok {
		return target{resource: r}
	}
	rest, ok := bytes.CutPrefix(path, []byte("/v1/"))
	if !ok {
		return target{}
	}
	var names [5][]byte // one more than any path has
	n := 0
	for name := range bytes.SplitSeq(rest, []byte("/")) {
		if n == len(names) || len(name) == 0 {
			return target{}
		}
		names[n] = name
		n++
	}
	switch string(names[0]) {
	case "unread":
		return u.aboutUser(names[1:n], u.ofUser, map[string]*resource{"reset": u.reset})
	case "poll":
		return u.aboutUser(names[1:n], u.poll, nil)
	case "feed":
		return u.aboutUser(names[1:n], nil, u.feed)
	case "notices":
		return u.aboutName(names[1:n], u.channel, nil, u.notice, u.notices, map[string]*resource{"read": u.read})
	case "dots":
		return u.aboutName(names[1:n], u.dot, u.fire, nil, u.shows, map[string]*resource{"clear": u.clearDot})
	}
	return target{}
}

// aboutUser matches {user} and {user}/<verb>.
func (u *unreadPaths) aboutUser(names [][]byte, user *resource, verbs map[string]*resource) target {
	switch len(names) {
	case 1:
		return target{resource: user, id: names[0]}
	case 2:
		return target{resource: verbs[string(names[1])], id: names[0]}
	}
	return target{}
}

// aboutName matches {name}, {name}/fire, {name}/{number}, {name}/users/{user} and
// {name}/users/{user}/<verb>.
func (u *unreadPaths) aboutName(names [][]byte, name, fire, numbered, user *resource, verbs map[string]*resource) target {
	switch len(names) {
	case 1:
		return target{resource: name, keyspace: names[0]}
	case 2:
		if string(names[1]) == "fire" && fire != nil {
			return target{resource: fire, keyspace: names[0]}
		}
		return target{resource: numbered, keyspace: names[0], id: names[1]}
	case 3:
		if string(names[1]) == "users" {
			return target{resource: user, keyspace: names[0], id: names[2]}
		}
	case 4:
		if string(names[1]) == "users" {
			return target{resource: verbs[string(names[3])], keyspace: names[0], id: names[2]}
		}
	}
	return target{}
}
