package api

import (
	"fmt"
	"strings"
	"testing"
)

// startReal starts a server over a new node.
func startReal(t *testing.T) *fakeServer {
	t.Helper()
	return startFakeServer(t, before(openReal(t, t.TempDir())))
}

// ok checks the answer of a good request.
func (l *fakeServer) ok(body, method, path, request string, headers ...string) (token string) {
	l.t.Helper()
	return l.want(200, body, method, path, request, headers...)
}

// refused checks the answer of a bad request.
func (l *fakeServer) refused(status int, code, field, method, path, request string, headers ...string) {
	l.t.Helper()
	got := l.do(method, path, request, headers...)
	if got.status != status || !strings.Contains(got.body, fmt.Sprintf(`"code":%q`, code)) ||
		field != "" && !strings.Contains(got.body, fmt.Sprintf(`"field":%q`, field)) {
		l.t.Errorf("%s %s %s is answered %d %s, want %d %s of %s", method, path, request, got.status, got.body, status, code, field)
	}
}

const written = `,"duplicate":false,"token":"TOKEN"}`

const repeated = `,"duplicate":true,"token":"TOKEN"}`

func TestUnreadCounts(t *testing.T) {
	l := startReal(t)
	t.Run("a user never seen has zeros", func(*testing.T) {
		l.ok(`{"user":"7","counts":{"at":0,"comment":0,"like":0,"dm":0}}`, "GET", "/v1/unread/7", "")
	})
	t.Run("increments are answered as those of counters", func(*testing.T) {
		l.ok(`{"results":[{"user":"7","counts":{"at":0,"comment":5,"like":0,"dm":0}},{"user":"7","counts":{"at":0,"comment":5,"like":1,"dm":0}}]`+written,
			"POST", "/v1/unread/incr", `{"ops":[{"user":"7","add":{"comment":5}},{"user":7,"add":{"like":1}}]}`)
		l.ok(`{"applied":1`+written, "POST", "/v1/unread/incr", `{"ops":[{"user":"8","add":{"comment":5}}],"want":"none"}`)
	})
	t.Run("a reset by columns clears them", func(*testing.T) {
		l.ok(`{"user":"8","counts":{"at":0,"comment":0,"like":0,"dm":0},"cleared":{"comment":5,"dm":0}`+written,
			"POST", "/v1/unread/8/reset", `{"columns":["comment","dm"]}`)
	})
	t.Run("a reset by what was seen leaves what came in between", func(*testing.T) {
		l.ok(`{"applied":1`+written, "POST", "/v1/unread/incr", `{"ops":[{"user":"7","add":{"comment":1}}],"want":"none"}`)
		l.ok(`{"user":"7","counts":{"at":0,"comment":1,"like":1,"dm":0},"cleared":{"comment":5}`+written,
			"POST", "/v1/unread/7/reset", `{"seen":{"comment":5}}`)
	})
	t.Run("a reset never goes below zero", func(*testing.T) {
		l.ok(`{"user":"7","counts":{"at":0,"comment":0,"like":1,"dm":0},"cleared":{"comment":1}`+written,
			"POST", "/v1/unread/7/reset", `{"seen":{"comment":100}}`)
		l.ok(`{"applied":1`+written, "POST", "/v1/unread/incr", `{"ops":[{"user":"7","add":{"dm":-3}}],"want":"none"}`)
		l.ok(`{"user":"7","counts":{"at":0,"comment":0,"like":1,"dm":0},"cleared":{"dm":0}`+written,
			"POST", "/v1/unread/7/reset", `{"seen":{"dm":2}}`)
		l.ok(`{"user":"7","counts":{"at":0,"comment":0,"like":1,"dm":0},"cleared":{"dm":0}`+written,
			"POST", "/v1/unread/7/reset", `{"columns":["dm"]}`)
	})
	t.Run("a reset that is repeated clears once", func(*testing.T) {
		key := []string{"Idempotency-Key", "reset-1"}
		l.ok(`{"user":"7","counts":{"at":0,"comment":0,"like":0,"dm":0},"cleared":{"like":1}`+written, "POST", "/v1/unread/7/reset", `{"columns":["like"]}`, key...)
		l.ok(`{"applied":1`+written, "POST", "/v1/unread/incr", `{"ops":[{"user":"7","add":{"like":9}}],"want":"none"}`)
		l.ok(`{"user":"7","counts":{"at":0,"comment":0,"like":9,"dm":0},"cleared":{"like":0}`+repeated, "POST", "/v1/unread/7/reset", `{"columns":["like"]}`, key...)
		l.refused(409, "idempotency_conflict", "", "POST", "/v1/unread/7/reset", `{"columns":["dm"]}`, key...)
		l.refused(409, "idempotency_conflict", "", "POST", "/v1/unread/70/reset", `{"columns":["like"]}`, key...)
	})
	t.Run("columns that operators add", func(*testing.T) {
		l.ok(`{"name":"unread","kind":"unread","columns":["at","comment","like","dm","gift"],"shards":7,"floors":{"at":0,"comment":0,"dm":0,"gift":0,"like":0}}`, "POST", "/v1/keyspaces/unread/columns", `{"columns":["gift"]}`)
		l.ok(`{"applied":1`+written, "POST", "/v1/unread/incr", `{"ops":[{"user":"9","add":{"gift":2}}],"want":"none"}`)
		l.ok(`{"user":"9","counts":{"at":0,"comment":0,"like":0,"dm":0,"gift":1},"cleared":{"gift":1}`+written, "POST", "/v1/unread/9/reset", `{"seen":{"gift":1}}`)
	})
	t.Run("what is wrong is named", func(*testing.T) {
		for _, bad := range []struct{ field, path, body string }{
			{"user", "/v1/unread/x/reset", `{"columns":["at"]}`},
			{"columns", "/v1/unread/7/reset", `{}`},
			{"seen", "/v1/unread/7/reset", `{"columns":["at"],"seen":{"at":1}}`},
			{"seen.at", "/v1/unread/7/reset", `{"seen":{"at":-1}}`},
			{"seen.nope", "/v1/unread/7/reset", `{"seen":{"nope":1}}`},
			{"columns[0]", "/v1/unread/7/reset", `{"columns":["nope"]}`},
			{"ops[0].user", "/v1/unread/incr", `{"ops":[{"user":"x","add":{"at":1}}]}`},
			{"ops[0].user", "/v1/unread/incr", `{"ops":[{"add":{"at":1}}]}`},
			{"ops[0].id", "/v1/unread/incr", `{"ops":[{"id":"1","add":{"at":1}}]}`},
		} {
			l.refused(400, "invalid_argument", bad.field, "POST", bad.path, bad.body)
		}
	})
	t.Run("they are no counters, and others are none of theirs", func(*testing.T) {
		for _, name := range []string{"unread", "feed", "board"} {
			l.refused(404, "unknown_keyspace", "", "GET", "/v1/counters/"+name+"/7", "")
			l.refused(400, "invalid_argument", "name", "POST", "/v1/keyspaces", fmt.Sprintf(`{"name":%q,"columns":["a"]}`, name))
		}
		l.refused(400, "invalid_argument", "name", "POST", "/v1/keyspaces/board/columns", `{"columns":["a"]}`)
	})
}

func TestNotices(t *testing.T) {
	l := startReal(t)
	publish := func(channel string, n int) {
		for range n {
			if got := l.do("POST", "/v1/notices/"+channel, ""); got.status != 200 {
				t.Fatalf("publish: %+v", got)
			}
		}
	}
	t.Run("a channel that nobody published to is empty, and a look does not make it", func(*testing.T) {
		l.ok(`{"unread":0,"last_read":null,"latest":0}`, "GET", "/v1/notices/news/users/7", "")
		l.ok(`{"unread":{"at":0,"comment":0,"like":0,"dm":0},"notices":{"news":0},"dots":{"shop":false},"feed":0}`, "GET", "/v1/poll/7?channels=news&dots=shop", "")
		l.refused(404, "not_found", "", "DELETE", "/v1/notices/news/1", "")
		l.ok(`{"channels":[]}`, "GET", "/v1/notices?consistency=linearizable", "")
	})
	t.Run("who reads a channel before its first notice stands before it", func(*testing.T) {
		for channel, body := range map[string]string{"latest": "{}", "zero": `{"up_to":0}`, "since": `{"since":0}`, "beyond": `{"up_to":5}`} {
			path := "/v1/notices/" + channel + "/users/1"
			token := l.ok(`{"unread":0,"last_read":0,"latest":0`+written, "POST", path+"/read", body, "Idempotency-Key", channel)
			l.ok(`{"unread":0,"last_read":0,"latest":0}`, "GET", path, "", "Countd-Token", token)
			publish(channel, 2)
			l.ok(`{"unread":2,"last_read":0,"latest":2`+repeated, "POST", path+"/read", body, "Idempotency-Key", channel)
			l.ok(`{"unread":2,"last_read":0,"latest":2}`, "GET", path+"?consistency=linearizable", "")
			l.refused(409, "idempotency_conflict", "", "POST", path+"/read", `{"up_to":1}`, "Idempotency-Key", channel)
		}
	})
	t.Run("notices are numbered", func(*testing.T) {
		l.ok(`{"seq":1`+written, "POST", "/v1/notices/news", `{}`)
		l.ok(`{"seq":2`+written, "POST", "/v1/notices/news", ``)
	})
	t.Run("a user never seen has none", func(*testing.T) {
		l.ok(`{"unread":0,"last_read":null,"latest":2}`, "GET", "/v1/notices/news/users/7", "")
		l.ok(`{"unread":1,"last_read":null,"latest":2}`, "GET", "/v1/notices/news/users/7?since=1", "")
	})
	t.Run("1 to 7, the last read 4: 3", func(*testing.T) {
		publish("news", 5)
		l.ok(`{"unread":3,"last_read":4,"latest":7`+written, "POST", "/v1/notices/news/users/7/read", `{"up_to":4}`)
		l.ok(`{"unread":3,"last_read":4,"latest":7}`, "GET", "/v1/notices/news/users/7", "")
		l.ok(`{"unread":3,"last_read":4,"latest":7}`, "GET", "/v1/notices/news/users/7?since=1", "")
	})
	t.Run("a cursor never moves back", func(*testing.T) {
		l.ok(`{"unread":3,"last_read":4,"latest":7`+written, "POST", "/v1/notices/news/users/7/read", `{"up_to":2}`)
	})
	t.Run("what is retracted nobody counts", func(*testing.T) {
		l.ok(`{"seq":6`+written, "DELETE", "/v1/notices/news/6", "")
		l.ok(`{"seq":6`+written, "DELETE", "/v1/notices/news/6", "")
		l.ok(`{"unread":2,"last_read":4,"latest":7}`, "GET", "/v1/notices/news/users/7", "")
		if got := l.do("GET", "/v1/notices", ""); !strings.Contains(got.body, `{"name":"news","latest":7,"retracted":1}`) {
			t.Errorf("channels %+v", got)
		}
	})
	t.Run("what was never published cannot be retracted", func(*testing.T) {
		l.refused(404, "not_found", "", "DELETE", "/v1/notices/news/8", "")
		l.refused(404, "not_found", "", "DELETE", "/v1/notices/nope/1", "")
		l.refused(404, "not_found", "", "DELETE", "/v1/notices/news/0", "")
	})
	t.Run("without up_to a read goes to the latest", func(*testing.T) {
		l.ok(`{"unread":0,"last_read":7,"latest":7`+written, "POST", "/v1/notices/news/users/7/read", `{}`)
		publish("news", 1)
		l.ok(`{"unread":1,"last_read":7,"latest":8}`, "GET", "/v1/notices/news/users/7?consistency=linearizable", "")
	})
	t.Run("up_to beyond the latest is the latest", func(*testing.T) {
		l.ok(`{"unread":0,"last_read":8,"latest":8`+written, "POST", "/v1/notices/news/users/7/read", `{"up_to":1000}`)
		publish("news", 1)
		l.ok(`{"unread":1,"last_read":8,"latest":9}`, "GET", "/v1/notices/news/users/7?consistency=linearizable", "")
	})
	t.Run("since begins where there is no cursor", func(*testing.T) {
		l.ok(`{"unread":4,"last_read":4,"latest":9`+written, "POST", "/v1/notices/news/users/8/read", `{"since":4}`)
		l.ok(`{"unread":4,"last_read":4,"latest":9`+written, "POST", "/v1/notices/news/users/8/read", `{"since":9}`)
	})
	t.Run("a publish that is repeated is one notice, and learns its number", func(*testing.T) {
		l.ok(`{"seq":10`+written, "POST", "/v1/notices/news", `{}`, "Idempotency-Key", "p")
		publish("news", 2)
		l.ok(`{"seq":10`+repeated, "POST", "/v1/notices/news", `{}`, "Idempotency-Key", "p")
		l.refused(409, "idempotency_conflict", "", "POST", "/v1/notices/ads", `{}`, "Idempotency-Key", "p")
		l.ok(`{"unread":0,"last_read":null,"latest":12}`, "GET", "/v1/notices/news/users/99?consistency=linearizable", "")
	})
	t.Run("a read that is repeated moves nothing", func(*testing.T) {
		l.ok(`{"unread":0,"last_read":12,"latest":12`+written, "POST", "/v1/notices/news/users/7/read", ``, "Countd-Producer", "p", "Countd-Seq", "1")
		publish("news", 1)
		l.ok(`{"unread":1,"last_read":12,"latest":13`+repeated, "POST", "/v1/notices/news/users/7/read", ``, "Countd-Producer", "p", "Countd-Seq", "1")
	})
	t.Run("a token sees what it was given for", func(*testing.T) {
		token := l.ok(`{"seq":14`+written, "POST", "/v1/notices/news", ``)
		l.ok(`{"unread":2,"last_read":12,"latest":14}`, "GET", "/v1/notices/news/users/7?consistency=stale", "", "Countd-Token", token)
	})
	t.Run("what is wrong is named", func(*testing.T) {
		for _, bad := range []struct{ field, method, path, body string }{
			{"name", "POST", "/v1/notices/News", ""},
			{"name", "GET", "/v1/notices/1a/users/7", ""},
			{"user", "GET", "/v1/notices/news/users/x", ""},
			{"seq", "DELETE", "/v1/notices/news/x", ""},
			{"seq", "DELETE", "/v1/notices/news/9223372036854775808", ""},
			{"since", "GET", "/v1/notices/news/users/7?since=-1", ""},
			{"up_to", "POST", "/v1/notices/news/users/7/read", `{"up_to":-1}`},
			{"since", "POST", "/v1/notices/news/users/7/read", `{"up_to":1,"since":1}`},
			{"text", "POST", "/v1/notices/news", `{"text":"hello"}`},
		} {
			l.refused(400, "invalid_argument", bad.field, bad.method, bad.path, bad.body)
		}
		l.refused(404, "not_found", "", "GET", "/v1/notices/news/users/7/more", "")
		l.refused(405, "method_not_allowed", "", "POST", "/v1/notices/news/users/7", "")
	})
}

func TestDots(t *testing.T) {
	l := startReal(t)
	shows := func(shows bool, dot string, user int) {
		l.t.Helper()
		l.ok(fmt.Sprintf(`{"show":%v}`, shows), "GET", fmt.Sprintf("/v1/dots/%s/users/%d?consistency=linearizable", dot, user), "")
	}
	t.Run("before the first fire nobody sees it", func(*testing.T) {
		shows(false, "shop", 7)
		l.ok(`{"dots":[]}`, "GET", "/v1/dots?consistency=linearizable", "")
		l.ok(`{"show":false`+written, "POST", "/v1/dots/shop/users/7/clear", "")
		l.ok(`{"dots":[{"name":"shop","fired":0,"new_users":true}]}`, "GET", "/v1/dots?consistency=linearizable", "")
		shows(false, "shop", 7)
	})
	t.Run("who was never seen sees one that was fired", func(*testing.T) {
		l.ok(`{"fired":1`+written, "POST", "/v1/dots/shop/fire", "{}")
		shows(true, "shop", 7)
		shows(true, "shop", 8)
	})
	t.Run("a clear hides it until the next fire", func(*testing.T) {
		l.ok(`{"show":false`+written, "POST", "/v1/dots/shop/users/7/clear", "{}")
		shows(false, "shop", 7)
		shows(true, "shop", 8)
		l.ok(`{"fired":2`+written, "POST", "/v1/dots/shop/fire", "")
		shows(true, "shop", 7)
	})
	t.Run("a fire that is repeated is one", func(*testing.T) {
		l.ok(`{"fired":3`+written, "POST", "/v1/dots/shop/fire", "", "Idempotency-Key", "f")
		l.ok(`{"fired":4`+written, "POST", "/v1/dots/shop/fire", "")
		l.ok(`{"fired":3`+repeated, "POST", "/v1/dots/shop/fire", "", "Idempotency-Key", "f")
		l.ok(`{"dots":[{"name":"shop","fired":4,"new_users":true}]}`, "GET", "/v1/dots", "")
	})
	t.Run("one that is not for new users they do not see", func(*testing.T) {
		l.ok(`{"fired":0,"new_users":false`+written, "PUT", "/v1/dots/move", `{"new_users":false}`)
		l.ok(`{"fired":1`+written, "POST", "/v1/dots/move/fire", "")
		shows(false, "move", 1000)
		shows(true, "move", 7) // user 7 has cleared another dot
		l.ok(`{"fired":1,"new_users":true`+written, "PUT", "/v1/dots/move", `{"new_users":true}`)
		shows(true, "move", 1000)
	})
	t.Run("who cleared one before it was made is not new", func(*testing.T) {
		l.ok(`{"show":false`+written, "POST", "/v1/dots/early/users/70/clear", "")
		l.ok(`{"fired":0,"new_users":false`+written, "PUT", "/v1/dots/early", `{"new_users":false}`)
		l.ok(`{"fired":1`+written, "POST", "/v1/dots/early/fire", "")
		shows(true, "early", 70)
		shows(false, "early", 71)
	})
	t.Run("what is wrong is named", func(*testing.T) {
		l.refused(400, "invalid_argument", "name", "POST", "/v1/dots/Shop/fire", "")
		l.refused(400, "invalid_argument", "new_users", "PUT", "/v1/dots/shop", "{}")
		l.refused(400, "invalid_argument", "new_users", "PUT", "/v1/dots/shop", `{"new_users":1}`)
		l.refused(400, "invalid_argument", "fired", "POST", "/v1/dots/shop/fire", `{"fired":9}`)
	})
}

func TestNamesAreBounded(t *testing.T) {
	l := startReal(t)
	for i := range 63 {
		path := fmt.Sprintf("/v1/notices/c%d", i)
		if i%2 == 1 {
			path = fmt.Sprintf("/v1/dots/d%d/fire", i)
		}
		if got := l.do("POST", path, ""); got.status != 200 {
			t.Fatalf("name %d: %+v", i, got)
		}
	}
	l.refused(400, "invalid_argument", "channel", "POST", "/v1/notices/more", "")
	l.refused(400, "invalid_argument", "name", "POST", "/v1/dots/more/fire", "")
	l.refused(400, "invalid_argument", "channel", "POST", "/v1/notices/more/users/7/read", "")
	l.refused(400, "invalid_argument", "name", "POST", "/v1/dots/more/users/7/clear", "")
	l.ok(`{"seq":2`+written, "POST", "/v1/notices/c0", "")
}

func TestFeed(t *testing.T) {
	l := startReal(t)
	posts := func(by string) {
		l.t.Helper()
		if got := l.do("POST", "/v1/counters/users/incr", `{"ops":[`+by+`],"want":"none"}`); got.status != 200 {
			t.Fatalf("posts: %+v", got)
		}
	}
	unread := func(answer string) {
		l.t.Helper()
		l.ok(answer, "GET", "/v1/feed/1/unread?detail=true&consistency=linearizable", "")
	}
	t.Run("no snapshot: 0", func(*testing.T) {
		l.ok(`{"unread":0}`, "GET", "/v1/feed/1/unread", "")
		unread(`{"unread":0,"followees":{}}`)
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/1/reset", ``)
	})
	t.Run("B, C, D have 10, 8, 14 posts, the snapshot 6, 7, 12: 7", func(*testing.T) {
		posts(`{"id":"2","add":{"posts":6}},{"id":"3","add":{"posts":7}},{"id":"4","add":{"posts":12}}`)
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/1/reset", `{"followees":["2",3,"4","2"]}`)
		posts(`{"id":"2","add":{"posts":4}},{"id":"3","add":{"posts":1}},{"id":"4","add":{"posts":2}}`)
		unread(`{"unread":7,"followees":{"2":4,"3":1,"4":2}}`)
		l.ok(`{"unread":7}`, "GET", "/v1/feed/1/unread?detail=false&consistency=linearizable", "")
	})
	t.Run("who is followed adds nothing, who is left takes the unread along", func(*testing.T) {
		posts(`{"id":"9","add":{"posts":100}}`)
		l.ok(`{"unread":7`+written, "POST", "/v1/feed/1/follow", `{"followees":["9"]}`)
		posts(`{"id":"9","add":{"posts":5}}`)
		unread(`{"unread":12,"followees":{"2":4,"3":1,"4":2,"9":5}}`)
		l.ok(`{"unread":12`+written, "POST", "/v1/feed/1/follow", `{"followees":["9","2"]}`)
		l.ok(`{"unread":7`+written, "POST", "/v1/feed/1/unfollow", `{"followees":["9","1000"]}`)
	})
	t.Run("a read resets only these", func(*testing.T) {
		l.ok(`{"unread":3`+written, "POST", "/v1/feed/1/read", `{"followees":["2","77"]}`)
		unread(`{"unread":3,"followees":{"2":0,"3":1,"4":2}}`)
	})
	t.Run("a followee whose count went down adds nothing", func(*testing.T) {
		posts(`{"id":"4","add":{"posts":-10}}`)
		unread(`{"unread":1,"followees":{"2":0,"3":1,"4":0}}`)
	})
	t.Run("a reset without followees takes those that there are", func(*testing.T) {
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/1/reset", `{}`)
		unread(`{"unread":0,"followees":{"2":0,"3":0,"4":0}}`)
		posts(`{"id":"4","add":{"posts":2}}`)
		unread(`{"unread":2,"followees":{"2":0,"3":0,"4":2}}`)
	})
	t.Run("a follow that is repeated is one", func(*testing.T) {
		key := []string{"Idempotency-Key", "follow"}
		l.ok(`{"unread":2`+written, "POST", "/v1/feed/1/follow", `{"followees":["5"]}`, key...)
		l.ok(`{"unread":2`+written, "POST", "/v1/feed/1/unfollow", `{"followees":["5"]}`)
		posts(`{"id":"5","add":{"posts":3}}`)
		l.ok(`{"unread":2`+repeated, "POST", "/v1/feed/1/follow", `{"followees":["5"]}`, key...)
		unread(`{"unread":2,"followees":{"2":0,"3":0,"4":2}}`)
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/1/reset", `{}`, "Idempotency-Key", "reset")
		posts(`{"id":"4","add":{"posts":1}}`)
		l.ok(`{"unread":1`+repeated, "POST", "/v1/feed/1/reset", `{}`, "Idempotency-Key", "reset")
	})
	t.Run("a reset with none follows nobody", func(*testing.T) {
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/1/reset", `{"followees":[]}`)
		unread(`{"unread":0,"followees":{}}`)
	})
	t.Run("a reset up to a post leaves what is newer", func(*testing.T) {
		for _, post := range [][2]string{{"31", "900"}, {"32", "900"}, {"31", "901"}, {"31", "902"}} { // author, id
			if r := l.do("POST", "/v1/outbox/"+post[0], `{"id":"`+post[1]+`"}`); r.status != 200 {
				t.Fatal(r)
			}
		}
		l.ok(`{"unread":2`+written, "POST", "/v1/feed/30/reset", `{"followees":["31","32"],"up_to":"900"}`)
		l.ok(`{"unread":1`+written, "POST", "/v1/feed/30/reset", `{"up_to":901}`)
		l.ok(`{"unread":2`+written, "POST", "/v1/feed/30/reset", `{"up_to":"900"}`)
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/30/reset", `{"up_to":"18446744073709551615"}`)
		for _, bad := range []string{`"902.31"`, `"902 "`, `""`, `null`, `-1`, `9.5`, `1e3`, `18446744073709551616`, `["902"]`, `true`} {
			l.refused(400, "invalid_argument", "up_to", "POST", "/v1/feed/30/reset", `{"up_to":`+bad+`}`)
		}
		l.refused(400, "invalid_argument", "up_to", "POST", "/v1/feed/30/reset", `{"up_to":"1","up_to":"2"}`)
		l.refused(400, "invalid_argument", "up_to", "POST", "/v1/feed/30/follow", `{"followees":["1"],"up_to":"2"}`)
		l.ok(`{"unread":0}`, "GET", "/v1/feed/30/unread?consistency=linearizable", "")
	})
	t.Run("5,000 followees, and not one more", func(*testing.T) {
		many := func(n int) string { return `{"followees":[` + ids(n) + `]}` }
		l.ok(`{"unread":0`+written, "POST", "/v1/feed/2/reset", many(5000))
		l.refused(400, "invalid_argument", "followees", "POST", "/v1/feed/2/reset", many(5001))
		l.refused(400, "invalid_argument", "followees", "POST", "/v1/feed/2/follow", `{"followees":["9999999"]}`)
		posts(`{"id":"1","add":{"posts":1}},{"id":"4999","add":{"posts":2}}`)
		l.ok(`{"unread":3}`, "GET", "/v1/feed/2/unread?consistency=linearizable", "")
		l.ok(`{"unread":1`+written, "POST", "/v1/feed/2/unfollow", `{"followees":["4999"]}`)
		l.ok(`{"unread":1`+written, "POST", "/v1/feed/2/follow", `{"followees":["9999999"]}`)
	})
	t.Run("what is wrong is named", func(*testing.T) {
		l.refused(400, "invalid_argument", "followees[1]", "POST", "/v1/feed/1/follow", `{"followees":["1","x"]}`)
		l.refused(400, "invalid_argument", "followees", "POST", "/v1/feed/1/follow", `{}`)
		l.refused(400, "invalid_argument", "body", "POST", "/v1/feed/1/read", ``)
		l.refused(400, "invalid_argument", "detail", "GET", "/v1/feed/1/unread?detail=yes", "")
		l.refused(404, "not_found", "", "GET", "/v1/feed/1", "")
	})
}

func ids(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d", i)
	}
	return b.String()
}

func TestPoll(t *testing.T) {
	l := startReal(t)
	for _, r := range []struct{ path, body string }{
		{"/v1/counters/users/incr", `{"ops":[{"id":"2","add":{"posts":6}}]}`},
		{"/v1/feed/7/reset", `{"followees":["2"]}`},
		{"/v1/counters/users/incr", `{"ops":[{"id":"2","add":{"posts":7}}]}`},
		{"/v1/unread/incr", `{"ops":[{"user":"7","add":{"at":1,"like":4}}]}`},
		{"/v1/notices/a", ``}, {"/v1/notices/a/users/7/read", ``}, {"/v1/notices/a", ``}, {"/v1/notices/a", ``}, {"/v1/notices/a", ``},
		{"/v1/dots/x/fire", ``},
	} {
		if got := l.do("POST", r.path, r.body); got.status != 200 {
			t.Fatalf("%s: %+v", r.path, got)
		}
	}
	const now = "consistency=linearizable"
	t.Run("all that a client polls for, in one call", func(*testing.T) {
		l.ok(`{"unread":{"at":1,"comment":0,"like":4,"dm":0},"notices":{"a":3},"dots":{"x":true},"feed":7}`, "GET", "/v1/poll/7?channels=a&dots=x&"+now, "")
		l.ok(`{"unread":{"at":1,"comment":0,"like":4,"dm":0},"notices":{},"dots":{},"feed":7}`, "GET", "/v1/poll/7?"+now, "")
	})
	t.Run("what nobody published or fired is nothing", func(*testing.T) {
		l.ok(`{"unread":{"at":0,"comment":0,"like":0,"dm":0},"notices":{"b":0,"a":0},"dots":{"x":true,"y":false},"feed":0}`,
			"GET", "/v1/poll/8?channels=b,a&dots=x,y&"+now, "")
	})
	t.Run("many users, in the order asked, doubles kept", func(*testing.T) {
		l.ok(`{"results":[{"user":"8","unread":{"at":0,"comment":0,"like":0,"dm":0},"notices":{"a":0},"dots":{"x":true},"feed":0},`+
			`{"user":"7","unread":{"at":1,"comment":0,"like":4,"dm":0},"notices":{"a":3},"dots":{"x":true},"feed":7},`+
			`{"user":"8","unread":{"at":0,"comment":0,"like":0,"dm":0},"notices":{"a":0},"dots":{"x":true},"feed":0}]}`,
			"POST", "/v1/poll?"+now, `{"users":["8",7,"8"],"channels":["a"],"dots":["x"]}`)
	})
	t.Run("what is wrong is named", func(*testing.T) {
		l.refused(400, "invalid_argument", "channels", "GET", "/v1/poll/7?channels=A", "")
		l.refused(400, "invalid_argument", "channels", "GET", "/v1/poll/7?channels=a,a", "")
		l.refused(400, "invalid_argument", "dots", "GET", "/v1/poll/7?dots=x,", "")
		l.refused(400, "invalid_argument", "since", "GET", "/v1/poll/7?since=4", "")
		l.refused(400, "invalid_argument", "users", "POST", "/v1/poll", `{"users":[]}`)
		l.refused(400, "invalid_argument", "users", "POST", "/v1/poll", `{"users":[`+ids(101)+`]}`)
		l.refused(400, "invalid_argument", "channels[1]", "POST", "/v1/poll", `{"users":[1],"channels":["a","a"]}`)
		l.refused(400, "invalid_argument", "dots[0]", "POST", "/v1/poll", `{"users":[1],"dots":[7]}`)
	})
}
