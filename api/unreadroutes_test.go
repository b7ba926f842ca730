package api

import "maps"

// all are the resources by path.
func (u *unreadPaths) all() map[string]*resource {
	all := maps.Clone(u.fixed)
	maps.Copy(all, map[string]*resource{
		"/v1/unread/{user}": u.ofUser, "/v1/unread/{user}/reset": u.reset, "/v1/poll/{user}": u.poll,
		"/v1/notices/{channel}": u.channel, "/v1/notices/{channel}/{seq}": u.notice,
		"/v1/notices/{channel}/users/{user}": u.notices, "/v1/notices/{channel}/users/{user}/read": u.read,
		"/v1/dots/{name}": u.dot, "/v1/dots/{name}/fire": u.fire,
		"/v1/dots/{name}/users/{user}": u.shows, "/v1/dots/{name}/users/{user}/clear": u.clearDot,
	})
	for verb, r := range u.feed {
		all["/v1/feed/{user}/"+verb] = r
	}
	return all
}
