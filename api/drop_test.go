package api

import (
	"strings"
	"testing"
)

// No answer shows a dropped keyspace or column. A keyspace or column that is created again under
// the same name counts from zero.
func TestDropped(t *testing.T) {
	l := startReal(t)
	do := func(status int, want, method, path, body string) {
		t.Helper()
		if got := l.do(method, path, body); got.status != status || !strings.Contains(got.body, want) {
			t.Errorf("%s %s %s: answered %d %s, want %d and %s", method, path, body, got.status, got.body, status, want)
		}
	}
	do(200, `"songs"`, "POST", "/v1/keyspaces", `{"name":"songs","columns":["plays","likes","skips"],"shards":1}`)
	do(200, ``, "POST", "/v1/counters/songs/incr", `{"ops":[{"id":"7","add":{"plays":1,"likes":2,"skips":3}},{"id":"8","add":{"likes":4}}]}`)
	do(200, `{"name":"songs","kind":"counters","columns":["plays","skips"],"shards":1,"dropped_columns":[1]}`, "DELETE", "/v1/keyspaces/songs/columns/likes", "")
	do(200, `"columns":["plays","skips"]`, "GET", "/v1/keyspaces", "")
	const row = `"counts":{"plays":1,"skips":3}}`
	do(200, row, "GET", "/v1/counters/songs/7", "")
	do(200, row, "POST", "/v1/counters/songs/get", `{"ids":["7"]}`)
	do(200, `{"results":[{"id":"7",`+row+`]`, "POST", "/v1/counters/songs/scan", `{}`)
	do(200, row, "POST", "/v1/ops", `{"ops":[{"keyspace":"songs","id":"7","add":{"plays":0}}]}`)
	for _, column := range []string{"likes", ""} {
		do(400, `invalid_argument`, "POST", "/v1/counters/songs/incr", `{"ops":[{"id":"7","add":{"`+column+`":1}}]}`)
		do(400, `invalid_argument`, "POST", "/v1/counters/songs/get", `{"ids":["7"],"columns":["`+column+`"]}`)
	}
	do(404, `no such column`, "DELETE", "/v1/keyspaces/songs/columns/likes", "")
	do(200, `["plays","skips","likes"]`, "POST", "/v1/keyspaces/songs/columns", `{"columns":["likes"]}`)
	do(200, `"counts":{"plays":1,"skips":3,"likes":0}`, "GET", "/v1/counters/songs/7", "")
	do(200, `"dropped_columns":[0,1]`, "DELETE", "/v1/keyspaces/songs/columns/plays", "")
	do(200, `"dropped_columns":[0,1,2]`, "DELETE", "/v1/keyspaces/songs/columns/skips", "")
	do(409, `last column`, "DELETE", "/v1/keyspaces/songs/columns/likes", "")
	do(200, `"at":0,"comment":0,"like":0,"dm":0,"save":2`, "POST", "/v1/ops", addedToUnread(l))
	do(200, `"columns":["at","comment","like","dm"]`, "DELETE", "/v1/keyspaces/unread/columns/save", "")
	do(200, `"counts":{"at":0,"comment":0,"like":0,"dm":0}`, "GET", "/v1/unread/9", "")
	do(200, `"unread":{"at":0,"comment":0,"like":0,"dm":0}`, "GET", "/v1/poll/9", "")
	do(200, `"songs"`, "DELETE", "/v1/keyspaces/songs", "")
	do(404, `unknown_keyspace`, "GET", "/v1/counters/songs/7", "")
	do(404, `unknown_keyspace`, "DELETE", "/v1/keyspaces/songs", "")
	do(404, `unknown_keyspace`, "POST", "/v1/ops", `{"ops":[{"keyspace":"songs","id":"7","add":{"plays":1}}]}`)
	do(200, `"songs"`, "POST", "/v1/keyspaces", `{"name":"songs","columns":["likes"],"shards":1}`)
	do(200, `"counts":{"likes":0}`, "GET", "/v1/counters/songs/8", "")
}

// addedToUnread adds a column to the keyspace of unread numbers, and returns ops for it.
func addedToUnread(l *fakeServer) string {
	l.do("POST", "/v1/keyspaces/unread/columns", `{"columns":["save"]}`)
	return `{"ops":[{"user":"9","add":{"save":2}}]}`
}
