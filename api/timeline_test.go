package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const linearizable = "?consistency=linearizable"

func TestOutbox(t *testing.T) {
	l := startReal(t)
	const box = "/v1/outbox/2"
	l.ok(`{"posts":[]}`, "GET", box, "")
	l.ok(`{"changed":true,"posts":1`+written, "POST", box, `{"id":"4467107636950632"}`)
	l.ok(`{"changed":false,"posts":1`+written, "POST", box, `{"id":4467107636950632}`)
	l.ok(`{"changed":true,"posts":2`+written, "POST", box, `{"id":"4467107636950700"}`)
	l.ok(`{"changed":true,"posts":3`+written, "POST", box, `{"id":"18446744073709551615"}`)
	l.ok(`{"posts":[{"id":"18446744073709551615"},{"id":"4467107636950700"},{"id":"4467107636950632"}]}`, "GET", box+linearizable, "")
	l.ok(`{"posts":[{"id":"18446744073709551615"}],"cursor":"18446744073709551615"}`, "GET", box+linearizable+"&limit=1", "")
	l.ok(`{"posts":[{"id":"4467107636950700"}],"cursor":"4467107636950700"}`, "GET", box+linearizable+"&limit=1&cursor=18446744073709551615", "")
	l.ok(`{"posts":[{"id":"4467107636950632"}]}`, "GET", box+linearizable+"&limit=1&cursor=4467107636950700", "")
	l.ok(`{"changed":true,"posts":2`+written, "DELETE", box+"/4467107636950700", "")
	l.ok(`{"changed":false,"posts":2`+written, "DELETE", box+"/4467107636950700", "")
	l.ok(`{"id":"2","counts":{"posts":2,"followers":0,"following":0}}`, "GET", "/v1/counters/users/2"+linearizable, "")

	t.Run("a repeat changes nothing", func(*testing.T) {
		l.ok(`{"changed":true,"posts":3`+written, "POST", box, `{"id":"9"}`, "Idempotency-Key", "k1")
		l.ok(`{"changed":true,"posts":2`+written, "DELETE", box+"/9", "", "Idempotency-Key", "k2")
		l.ok(`{"changed":false,"posts":2`+repeated, "POST", box, `{"id":"9"}`, "Idempotency-Key", "k1")
		l.ok(`{"changed":false,"posts":2`+repeated, "DELETE", box+"/9", "", "Idempotency-Key", "k2")
		l.refused(409, "idempotency_conflict", "", "POST", box, `{"id":"10"}`, "Idempotency-Key", "k1")
		l.refused(409, "idempotency_conflict", "", "DELETE", box+"/10", "", "Idempotency-Key", "k2")
		l.ok(`{"posts":[{"id":"18446744073709551615"},{"id":"4467107636950632"}]}`, "GET", box+linearizable, "")
	})
	t.Run("a deleted author has no posts", func(*testing.T) {
		l.ok(`{"changed":true,"posts":1`+written, "POST", "/v1/outbox/3", `{"id":"5"}`)
		l.ok(`{"id":"3","counts":{"posts":0,"followers":0,"following":0}`+written, "DELETE", "/v1/counters/users/3", "")
		l.ok(`{"posts":[]}`, "GET", "/v1/outbox/3"+linearizable, "")
		l.ok(`{"changed":true,"posts":1`+written, "POST", "/v1/outbox/3", `{"id":"5"}`)
	})
	t.Run("a count that overflows refuses the post", func(*testing.T) {
		l.do("PUT", "/v1/counters/users/4", `{"set":{"posts":9223372036854775807}}`)
		l.refused(409, "overflow", "", "POST", "/v1/outbox/4", `{"id":"5"}`)
		l.ok(`{"posts":[]}`, "GET", "/v1/outbox/4"+linearizable, "")
	})
	t.Run("a post that is older than what is kept is refused", func(*testing.T) {
		l.refused(400, "invalid_argument", "id", "POST", box, `{"id":"3342819171543700"}`)
		l.refused(400, "invalid_argument", "id", "POST", box, `{"id":"3342819171543700"}`, "Idempotency-Key", "old")
		l.refused(400, "invalid_argument", "id", "POST", box, `{"id":"3342819171543700"}`, "Idempotency-Key", "old")
		l.ok(`{"id":"2","counts":{"posts":2,"followers":0,"following":0}}`, "GET", "/v1/counters/users/2"+linearizable, "")
	})
	for _, bad := range []struct{ field, method, path, body string }{
		{"author", "POST", "/v1/outbox/x", `{"id":"1"}`},
		{"author", "GET", "/v1/outbox/-1", ""},
		{"author", "DELETE", "/v1/outbox/x/1", ""},
		{"id", "POST", box, `{}`},
		{"id", "POST", box, `{"id":null}`},
		{"id", "POST", box, `{"id":"18446744073709551616"}`},
		{"id", "POST", box, `{"id":"1","id":"2"}`},
		{"x", "POST", box, `{"id":"1","x":1}`},
		{"body", "POST", box, `[]`},
		{"id", "DELETE", box + "/x", ""},
		{"body", "DELETE", box + "/1", "{}"},
		{"limit", "GET", box + "?limit=0", ""},
		{"limit", "GET", box + "?limit=1001", ""},
		{"limit", "GET", box + "?limit=2&limit=2", ""},
		{"cursor", "GET", box + "?cursor=1.2", ""},
		{"counts", "GET", box + "?counts=posts", ""},
		{"consistency", "GET", box + "?consistency=x", ""},
	} {
		l.refused(400, "invalid_argument", bad.field, bad.method, bad.path, bad.body)
	}
	l.refused(405, "method_not_allowed", "", "PUT", box, "")
	l.refused(404, "not_found", "", "GET", "/v1/outbox/", "")
	l.refused(404, "not_found", "", "GET", box+"/1/2", "")
}

// timelineOf reads pages of a timeline until there are no more.
func (l *fakeServer) timelineOf(path string, limit int) (posts []string) {
	l.t.Helper()
	for cursor := ""; ; {
		url := fmt.Sprintf("%s%slimit=%d&consistency=linearizable", path, map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")], limit)
		if cursor != "" {
			url += "&cursor=" + cursor
		}
		got := l.do("GET", url, "")
		var page struct {
			Posts []struct {
				ID     string
				Author string
			}
			Cursor string
		}
		if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != 200 || len(page.Posts) > limit {
			l.t.Fatalf("GET %s: %d %s", url, got.status, got.body)
		}
		for _, p := range page.Posts {
			posts = append(posts, p.ID+"/"+p.Author)
		}
		if cursor = page.Cursor; cursor == "" {
			return posts
		}
	}
}

func TestTimeline(t *testing.T) {
	l := startReal(t)
	l.ok(`{"posts":[]}`, "GET", "/v1/timeline/7", "")
	for author := 1; author <= 9; author++ {
		for post := range author {
			l.do("POST", fmt.Sprintf("/v1/outbox/%d", author), fmt.Sprintf(`{"id":"%d"}`, 100*post+author))
		}
		l.do("POST", fmt.Sprintf("/v1/outbox/%d", author), `{"id":"5000"}`) // every author has a post with this id
	}
	l.do("POST", "/v1/feed/7/follow", `{"followees":["1","2","3","9","77"]}`)
	l.ok(`{"posts":[{"id":"5000","author":"1"},{"id":"5000","author":"2"}],"cursor":"5000.2"}`, "GET", "/v1/timeline/7"+linearizable+"&limit=2", "")
	l.ok(`{"posts":[{"id":"5000","author":"3"},{"id":"5000","author":"9"},{"id":"809","author":"9"}],"cursor":"809.9"}`, "GET", "/v1/timeline/7"+linearizable+"&limit=3&cursor=5000.2", "")
	all := l.timelineOf("/v1/timeline/7", 1000)
	if len(all) != 19 {
		t.Errorf("the timeline has %v", all)
	}
	for _, limit := range []int{1, 2, 7, 18, 19} {
		if got := l.timelineOf("/v1/timeline/7", limit); strings.Join(got, " ") != strings.Join(all, " ") {
			t.Errorf("by pages of %d: %v, want %v", limit, got, all)
		}
	}

	t.Run("counts", func(*testing.T) {
		l.do("POST", "/v1/counters/posts/incr", `{"ops":[{"id":"5000","add":{"like":3}}]}`)
		l.ok(`{"posts":[{"id":"5000","author":"1","counts":{"repost":0,"comment":0,"like":3,"view":0}}],"cursor":"5000.1"}`,
			"GET", "/v1/timeline/7"+linearizable+"&limit=1&counts=posts", "")
		l.refused(404, "unknown_keyspace", "counts", "GET", "/v1/timeline/7?counts=nothing", "")
		l.refused(404, "unknown_keyspace", "counts", "GET", "/v1/timeline/7?counts=unread", "")
	})
	t.Run("member", func(*testing.T) {
		l.do("POST", "/v1/members/posts/like", `{"ops":[{"id":"5000","member":"7","set":true},{"id":"5000","member":"8","set":true}]}`)
		l.ok(`{"posts":[{"id":"5000","author":"1","member":{"like":true}}],"cursor":"5000.1"}`,
			"GET", "/v1/timeline/7"+linearizable+"&limit=1&member=like", "")
		l.ok(`{"posts":[{"id":"5000","author":"1","counts":{"repost":0,"comment":0,"like":5,"view":0},"member":{"view":false,"like":true}}],"cursor":"5000.1"}`,
			"GET", "/v1/timeline/7"+linearizable+"&limit=1&member=view,like&counts=posts", "")
	})
	t.Run("a page goes on where it ended, whatever comes and goes", func(*testing.T) {
		l.do("POST", "/v1/outbox/1", `{"id":"9000"}`)
		l.do("DELETE", "/v1/outbox/2/5000", "")
		l.ok(`{"posts":[{"id":"5000","author":"3"}],"cursor":"5000.3"}`, "GET", "/v1/timeline/7"+linearizable+"&limit=1&cursor=5000.2", "")
		l.do("POST", "/v1/feed/7/unfollow", `{"followees":["3"]}`)
		l.ok(`{"posts":[{"id":"5000","author":"9"}],"cursor":"5000.9"}`, "GET", "/v1/timeline/7"+linearizable+"&limit=1&cursor=5000.3", "")
		l.ok(`{"posts":[{"id":"9000","author":"1"}],"cursor":"9000.1"}`, "GET", "/v1/timeline/7"+linearizable+"&limit=1", "")
	})
	t.Run("a reset leaves what is newer unread", func(*testing.T) {
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/7/reset", "")
		l.do("POST", "/v1/outbox/2", `{"id":"9001"}`)
		l.do("POST", "/v1/outbox/2", `{"id":"9001"}`)
		l.do("POST", "/v1/outbox/9", `{"id":"9002"}`)
		l.do("POST", "/v1/outbox/3", `{"id":"9003"}`) // user 7 does not follow author 3
		l.ok(`{"unread":2}`, "GET", "/v1/feed/7/unread"+linearizable, "")
		l.ok(`{"posts":[{"id":"9002","author":"9"},{"id":"9001","author":"2"},{"id":"9000","author":"1"}],"cursor":"9000.1"}`, "GET", "/v1/timeline/7"+linearizable+"&limit=3", "")
		l.do("DELETE", "/v1/outbox/9/9002", "")
		l.ok(`{"unread":1}`, "GET", "/v1/feed/7/unread"+linearizable, "")
	})
	for _, bad := range []struct{ field, path string }{
		{"user", "/v1/timeline/x"},
		{"limit", "/v1/timeline/7?limit=x"},
		{"cursor", "/v1/timeline/7?cursor=1"},
		{"cursor", "/v1/timeline/7?cursor=1.x"},
		{"cursor", "/v1/timeline/7?cursor="},
		{"group", "/v1/timeline/7?group=a%20b"},
		{"group", "/v1/timeline/7?group="},
		{"member", "/v1/timeline/7?member=likes"},
		{"member", "/v1/timeline/7?member=like,"},
		{"member", "/v1/timeline/7?member="},
		{"member", "/v1/timeline/7?member=like,like"},
		{"counts", "/v1/timeline/7?member=like&counts=posts&counts=posts"},
		{"other", "/v1/timeline/7?other=1"},
	} {
		l.refused(400, "invalid_argument", bad.field, "GET", bad.path, "")
	}
	l.refused(405, "method_not_allowed", "", "POST", "/v1/timeline/7", "")
}

func TestGroups(t *testing.T) {
	l := startReal(t)
	const groups = "/v1/feed/7/groups"
	l.ok(`{"groups":[]}`, "GET", groups+linearizable, "")
	l.do("POST", "/v1/feed/7/follow", `{"followees":["1","2","3"]}`)
	for author := 1; author <= 3; author++ {
		l.do("POST", fmt.Sprintf("/v1/outbox/%d", author), fmt.Sprintf(`{"id":"%d"}`, 10+author))
	}
	l.ok(`{"followees":2`+written, "PUT", groups+"/stars", `{"followees":["3","2","3"]}`)
	l.ok(`{"followees":0`+written, "PUT", groups+"/Empty-1.2_", `{"followees":[]}`)
	l.ok(`{"groups":[{"name":"Empty-1.2_","followees":0},{"name":"stars","followees":2}]}`, "GET", groups+linearizable, "")
	l.ok(`{"followees":["2","3"]}`, "GET", groups+"/stars"+linearizable, "")
	l.ok(`{"posts":[{"id":"13","author":"3"},{"id":"12","author":"2"}]}`, "GET", "/v1/timeline/7"+linearizable+"&group=stars", "")
	l.ok(`{"posts":[]}`, "GET", "/v1/timeline/7"+linearizable+"&group=Empty-1.2_", "")
	l.refused(404, "not_found", "", "GET", "/v1/timeline/7"+linearizable+"&group=none", "")
	l.refused(404, "not_found", "", "GET", groups+"/none"+linearizable, "")

	l.refused(400, "invalid_argument", "followees[1]", "PUT", groups+"/stars", `{"followees":["2","9"]}`)
	l.ok(`{"followees":["2","3"]}`, "GET", groups+"/stars"+linearizable, "")
	l.refused(400, "invalid_argument", "followees", "PUT", groups+"/stars", `{}`)
	l.refused(400, "invalid_argument", "name", "PUT", groups+"/a%20b", `{"followees":[]}`)
	l.refused(400, "invalid_argument", "name", "GET", groups+"/"+strings.Repeat("a", 64), "")
	l.refused(405, "method_not_allowed", "", "POST", groups+"/stars", "{}")

	l.ok(`{"followees":1`+written, "PUT", groups+"/one", `{"followees":["1"]}`, "Idempotency-Key", "k")
	l.ok(`{"followees":1`+repeated, "PUT", groups+"/one", `{"followees":["1"]}`, "Idempotency-Key", "k")

	l.do("POST", "/v1/feed/7/unfollow", `{"followees":["3"]}`)
	l.ok(`{"followees":["2"]}`, "GET", groups+"/stars"+linearizable, "")
	l.do("POST", "/v1/feed/7/follow", `{"followees":["3"]}`)
	l.ok(`{"followees":["2"]}`, "GET", groups+"/stars"+linearizable, "")
	l.do("POST", "/v1/feed/7/reset", `{"followees":["1"]}`)
	l.ok(`{"followees":[]}`, "GET", groups+"/stars"+linearizable, "")
	l.do("POST", "/v1/feed/7/unfollow", `{"followees":["1"]}`)
	l.ok(`{"groups":[{"name":"Empty-1.2_","followees":0},{"name":"one","followees":0},{"name":"stars","followees":0}]}`, "GET", groups+linearizable, "")
	l.ok(`{"followees":0`+written, "DELETE", groups+"/stars", "")
	l.ok(`{"followees":0`+written, "DELETE", groups+"/stars", "")
	l.refused(404, "not_found", "", "GET", groups+"/stars"+linearizable, "")

	for i := range 30 {
		l.ok(`{"followees":0`+written, "PUT", fmt.Sprintf("%s/g%d", groups, i), `{"followees":[]}`)
	}
	l.refused(400, "invalid_argument", "name", "PUT", groups+"/more", `{"followees":[]}`)
}
