package api

import (
	"fmt"
	"strings"
	"testing"
)

// A write that only removes gives no number to an id, and its answer shows that it changed nothing. The other ops of the
// same request give numbers to theirs.
func TestRemovalsNameNothing(t *testing.T) {
	l := startTexts(t)
	const like = "/v1/members/articles/like"
	zeros := func(id string) string { return fmt.Sprintf(`{"id":"%s","counts":{"like":0,"view":0}`, id) }
	for range 2 {
		l.ok(zeros("x")+written, "DELETE", articles+"/x", "")
		l.ok(`{"changed":false,"posts":0`+written, "DELETE", "/v1/outbox/nobody/nothing", "")
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/nobody/unfollow", `{"followees":["x","y"]}`)
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/nobody/read", `{"followees":["x","y"]}`)
		l.ok(`{"followees":0`+written, "DELETE", "/v1/feed/nobody/groups/friends", "")
		l.ok(`{"user":"nobody","counts":{"at":0,"comment":0,"like":0,"dm":0},"cleared":{"at":0}`+written, "POST", "/v1/unread/nobody/reset", `{"columns":["at"]}`)
		l.assigned(0, "removals")
		if got := l.do("POST", like, opsOf(joined("x", "nobody", false))); got.status != 200 {
			t.Errorf("leave: %d %s", got.status, got.body)
		}
		if got := l.do("POST", "/v1/ops", `{"ops":[{"keyspace":"articles","column":"like","id":"x","member":"nobody","set":false}]}`); got.status != 200 {
			t.Errorf("leave by ops: %d %s", got.status, got.body)
		}
		l.assigned(0, "members that leave")
	}
	l.ok(`{"applied":3`+written, "POST", like, `{"want":"none","ops":[{"id":"a","member":"u","set":false},{"id":"a","member":"v","set":true},{"id":"b","member":"w","set":false}]}`)
	l.assigned(2, "a and v")
	l.ok(`{"applied":4`+written, "POST", "/v1/ops", `{"want":"none","ops":[{"keyspace":"articles","column":"like","id":"b","member":"w","set":false},{"keyspace":"articles","column":"like","id":"b","member":"z","set":false},`+
		`{"keyspace":"articles","id":"c","add":{"view":1}},{"set":true,"member":"z","id":"b","column":"like","keyspace":"articles"}]}`)
	l.assigned(5, "b, c and z")
	l.forget()
	l.ok(`{"results":[{"id":"a","counts":{"like":1}},{"id":"b","counts":{"like":1}},{"id":"c","counts":{"like":0}}]}`, "POST", articles+"/get", `{"ids":["a","b","c"],"columns":["like"]}`)
	l.ok(`{"results":[true,true,false]}`, "POST", like+"/check", `{"member":"v","ids":["a","a","b"]}`)
	l.forget()
	l.ok(`{"applied":1`+written, "POST", like, `{"want":"none","ops":[{"id":"b","member":"z","set":false}]}`)
	l.ok(zeros("b")+`}`, "GET", articles+"/b", "")
	l.forget()
	l.ok(zeros("c")+written, "DELETE", articles+"/c", "")
	l.ok(zeros("c")+`}`, "GET", articles+"/c", "")
}

// A reset up to a post that nobody has named is refused, and gives no number to it nor to other ids of the request.
func TestResetUpToUnknownPost(t *testing.T) {
	l := startTexts(t)
	l.ok(`{"unread":0`+written, "POST", "/v1/feed/me/reset", `{"followees":["ann"]}`)
	for _, p := range []string{"p1", "p2", "p3"} {
		l.do("POST", "/v1/outbox/ann", `{"id":"`+p+`"}`)
	}
	l.assigned(5, "me, ann and three posts")
	for _, body := range []string{`{"up_to":"p9"}`, `{"up_to":9}`, `{"followees":["ann","bob"],"up_to":"p9"}`, `{"up_to":"p9","followees":["bob"]}`} {
		for _, user := range []string{"me", "you"} {
			if got := l.do("POST", "/v1/feed/"+user+"/reset", body); got.status != 400 || !strings.Contains(got.body, `"message":"up_to: no such post"`) {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		}
	}
	l.assigned(5, "refused")
	l.ok(`{"unread":3}`, "GET", "/v1/feed/me/unread", "")
	for _, forget := range []bool{false, true} {
		if forget {
			l.forget()
		}
		if got := l.do("POST", "/v1/feed/me/reset", `{"up_to":"p2"}`); got.status != 200 {
			t.Errorf("up to a post: %d %s", got.status, got.body)
		}
	}
	l.ok(`{"unread":0`+written, "POST", "/v1/feed/you/reset", `{"followees":["bob"],"up_to":"p3"}`)
	l.assigned(7, "you and bob")
}
