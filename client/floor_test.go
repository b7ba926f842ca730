package client_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/column"
)

func TestFloorsInRequests(t *testing.T) {
	var sent, answer string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		sent = r.Method + " " + r.URL.Path + " " + string(body)
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	c := clientOf(t, server.URL)
	must := func(want string, err error) {
		t.Helper()
		if err != nil || sent != want {
			t.Errorf("sent %s, want %s: %v", sent, want, err)
		}
	}

	answer = `{"results":[{"id":"7","counts":{"like":0},"added":{"like":-1}}],"duplicate":false,"token":"T"}`
	ops := []client.Op{{ID: client.Number(7), Cells: client.Counts{client.Delta("like", -3)}, Floor: client.Floor(0)}}
	result, err := c.IncrMany(t.Context(), "posts", ops, client.WriteOptions{})
	must(`POST /v1/counters/posts/incr {"ops":[{"id":"7","add":{"like":-3},"floor":0}]}`, err)
	if added, _ := result.Results[0].Added.Get("like"); added != -1 {
		t.Errorf("added %v", result.Results[0].Added)
	}
	row, err := c.Incr(t.Context(), "posts", client.Number(7), client.Delta("like", 1), client.Delta("view", 2))
	must(`POST /v1/counters/posts/incr {"ops":[{"id":"7","add":{"like":1,"view":2}}]}`, err)
	if like, _ := row.Counts.Get("like"); row.ID != client.Number(7) || like != 0 || row.Token != "T" {
		t.Errorf("the row is %+v", row)
	}
	answer = `{"results":[{"user":"9","counts":{"like":0},"added":{"like":0}}],"duplicate":false,"token":"T"}`
	users, err := c.IncrUnread(t.Context(), []client.Op{{ID: client.Number(9), Cells: client.Counts{client.Delta("like", -1)}, Floor: client.Floor(-5)}}, client.WriteOptions{})
	must(`POST /v1/unread/incr {"ops":[{"user":"9","add":{"like":-1},"floor":-5}]}`, err)
	if len(users.Results[0].Added) != 1 {
		t.Errorf("added %v", users.Results[0].Added)
	}
	answer = `{"name":"badges","kind":"counters","columns":["a","b","c"],"shards":2,"floors":{"b":0}}`
	columns := []column.Column{{Name: "a"}, {Name: "b", Floor: client.Floor(0)}, {Name: "c", NoFloor: true}}
	ks, err := c.CreateKeyspace(t.Context(), client.NewKeyspace{Name: "badges", Columns: columns, Shards: 2})
	must(`POST /v1/keyspaces {"name":"badges","columns":["a",{"name":"b","floor":0},{"name":"c","floor":null}],"shards":2}`, err)
	if floor, has := ks.Floors["b"]; !has || floor != 0 {
		t.Errorf("made %+v", ks)
	}
	_, err = c.ChangeColumns(t.Context(), "badges", columns[1:2])
	must(`POST /v1/keyspaces/badges/columns {"columns":[{"name":"b","floor":0}]}`, err)

	answer = `{"results":[{"id":"1","counts":{"like":1}},{"user":"9","counts":{"like":0},"added":{"like":0}}],"duplicate":false,"token":"T"}`
	result, err = c.Ops(t.Context(), []client.KeyspaceOp{
		{Keyspace: "posts", ID: client.Number(1), Add: client.Counts{client.Delta("like", 1)}},
		{Keyspace: "unread", ID: client.Number(9), Add: client.Counts{client.Delta("like", -1)}, Floor: client.Floor(0)},
	}, client.WriteOptions{})
	must(`POST /v1/ops {"ops":[{"keyspace":"posts","id":"1","add":{"like":1}},{"user":"9","add":{"like":-1},"floor":0}]}`, err)
	if len(result.Results) != 2 || result.Results[0].ID != client.Number(1) || result.Results[1].ID != client.Number(9) || len(result.Results[1].Added) != 1 {
		t.Errorf("results %+v", result.Results)
	}
	answer = `{"followees":["2","3"],"cursor":"3"}`
	followees, next, err := c.Feeds().Followees(t.Context(), client.Number(7), "", 2, client.ReadOptions{})
	must("GET /v1/feed/7/followees ", err)
	if len(followees) != 2 || followees[1] != client.Number(3) || next != "3" {
		t.Errorf("followees %v, then %q", followees, next)
	}
}
