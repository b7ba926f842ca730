package api

import (
	"strings"
	"testing"
)

// Each path matches its template. Each name in the path is stored in the field of the target that
// the call reads.
func TestPathsMatch(t *testing.T) {
	r := startFakeServer(t, nil).server.routes
	for path, want := range map[string]struct{ template, keyspace, id, column string }{
		"/":                               {"/", "", "", ""},
		"/healthz":                        {"/healthz", "", "", ""},
		"/v1/counters/posts/7":            {"/v1/counters/{keyspace}/{id}", "posts", "7", ""},
		"/v1/counters/posts/get":          {"/v1/counters/{keyspace}/get", "posts", "", ""},
		"/v1/counters/incr/incr":          {"/v1/counters/{keyspace}/incr", "incr", "", ""},
		"/v1/counters/../7":               {"/v1/counters/{keyspace}/{id}", "..", "7", ""},
		"/v1/keyspaces/k/columns/columns": {"/v1/keyspaces/{keyspace}/columns/{column}", "k", "", "columns"},
		"/v1/members/k/c":                 {"/v1/members/{keyspace}/{column}", "k", "", "c"},
		"/v1/members/k/c/of":              {"/v1/members/{keyspace}/{column}/{id}", "k", "of", "c"},
		"/v1/members/k/c/of/7":            {"/v1/members/{keyspace}/{column}/of/{member}", "k", "7", "c"},
		"/v1/members/k/c/check":           {"/v1/members/{keyspace}/{column}/check", "k", "", "c"},
		"/v1/unread/incr":                 {"/v1/unread/incr", "", "", ""},
		"/v1/unread/7/reset":              {"/v1/unread/{user}/reset", "", "7", ""},
		"/v1/notices/news/3":              {"/v1/notices/{channel}/{seq}", "news", "3", ""},
		"/v1/notices/users/users/7":       {"/v1/notices/{channel}/users/{user}", "users", "7", ""},
		"/v1/dots/d/users/7/clear":        {"/v1/dots/{name}/users/{user}/clear", "d", "7", ""},
		"/v1/outbox/7/9":                  {"/v1/outbox/{author}/{id}", "9", "7", ""},
		"/v1/feed/7/groups/stars":         {"/v1/feed/{user}/groups/{name}", "stars", "7", ""},
		"/v1/admin/nodes/n1/drain":        {"/v1/admin/nodes/{node}/drain", "n1", "", ""},
		"/v1/admin/groups/3/move":         {"/v1/admin/groups/{group}/move", "3", "", ""},
		"/v1/sources/likes/seek":          {"/v1/sources/{source}/seek", "likes", "", ""},
		"/v1/users/web/tokens/k3":         {"/v1/users/{name}/tokens/{id}", "web", "", "k3"},
		"":                                {}, "//": {}, "/v1": {}, "/v1/": {}, "/v1/counters": {}, "/v1/counters/posts": {}, "/v1/counters//7": {}, "/v1/counters/posts/": {}, "/v1/counters/posts/7/": {},
		"/v1/counters/posts/get/": {}, "/v1/keyspaces/": {}, "/v1/keyspaces/k/columns/": {}, "/v1/members/k/c/of/": {}, "/v1/members/k/c/x/7": {}, "/v1/admin/nodes//drain": {}, "/v1/users/web/tokens/": {}, "/V1/version": {}, "/v1/version/": {},
	} {
		method := "GET"
		if of := r.resources[want.template]; of != nil {
			method, _, _ = strings.Cut(of.allow, ",")
		}
		got := r.match([]byte(method), []byte(path))
		if string(got.keyspace) != want.keyspace || string(got.id) != want.id || string(got.column) != want.column || got.resource != r.resources[want.template] {
			t.Errorf("%s is matched by %+v, want %+v", path, got, want)
		}
	}
}

func TestFindDoesNotAllocate(t *testing.T) {
	r := startFakeServer(t, nil).server.routes
	method, path := []byte("POST"), []byte("/v1/counters/posts/incr")
	if n := testing.AllocsPerRun(100, func() { r.find(method, path) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFind(b *testing.B) {
	r := startFakeServer(b, nil).server.routes
	for name, path := range map[string]string{"row": "/v1/counters/posts/4467107636950632", "incr": "/v1/counters/posts/incr", "poll": "/v1/poll/7", "feed": "/v1/feed/7/unread", "timeline": "/v1/timeline/7"} {
		b.Run(name, func(b *testing.B) {
			method, path := []byte("GET"), []byte(path)
			if name == "incr" {
				method = []byte("POST")
			}
			b.ReportAllocs()
			for b.Loop() {
				r.find(method, path)
			}
		})
	}
}
