package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/nodetest"
)

func TestMembers(t *testing.T) {
	ctx, c := t.Context(), dial(t, nodetest.New(t).URL)
	likes := c.Members("posts", "like")
	for _, want := range []client.MemberOutcome{{Member: client.Number(7), Changed: true, Count: 1}, {Member: client.Number(7), Changed: false, Count: 1}, {Member: client.Number(8), Changed: true, Count: 2}} {
		got, err := likes.Add(ctx, client.Number(1), want.Member)
		if err != nil || got.MemberOutcome != want || got.ID != client.Number(1) || got.Token == "" {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if got, err := likes.Remove(ctx, client.Number(1), client.Number(8)); err != nil || got.MemberOutcome != (client.MemberOutcome{Member: client.Number(8), Changed: true, Count: 1}) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err := likes.Check(ctx, client.Number(7), []client.ID{client.Number(1), client.Number(2), client.Number(1)}, client.ReadOptions{Consistency: "linearizable"}); err != nil || !slices.Equal(got, []bool{true, false, true}) {
		t.Fatalf("got %v, %v", got, err)
	}
	copied, err := likes.Copy(ctx, []client.MemberOp{{ID: client.Number(1), Member: client.Number(9)}}, client.WriteOptions{})
	if err != nil || len(copied.Results) != 1 || copied.Results[0].Count != 1 || !copied.Results[0].Changed {
		t.Fatalf("got %+v, %v", copied, err)
	}
	quiet, err := likes.Change(ctx, []client.MemberOp{{ID: client.Number(2), Member: client.Number(7)}, {ID: client.Number(1), Member: client.Number(9), Leave: true}}, client.WriteOptions{Quiet: true})
	if err != nil || quiet.Applied != 2 || quiet.Results != nil {
		t.Fatalf("got %+v, %v", quiet, err)
	}
	page, err := likes.List(ctx, client.Number(1), "", 0, client.ReadOptions{})
	if err != nil || page.ID != client.Number(1) || page.Count != 0 || len(page.Members) != 1 || page.Members[0].Member != client.Number(7) || page.Members[0].At.IsZero() {
		t.Fatalf("got %+v, %v", page, err)
	}
	if _, err := c.Members("posts", "likes").Add(ctx, client.Number(1), client.Number(7)); err == nil {
		t.Error("a column that is not there was accepted")
	}
}

// Iterators follow the cursors, and stop when the caller's loop ends.
func TestMembersIterate(t *testing.T) {
	ctx, c := t.Context(), dial(t, nodetest.New(t).URL)
	likes := c.Members("posts", "like")
	var ops []client.MemberOp
	for n := range uint64(client.MembersPageMax + 500) {
		ops = append(ops, client.MemberOp{ID: client.Number(1), Member: client.Number(n)}, client.MemberOp{ID: client.Number(10 + n), Member: client.Number(7)})
	}
	if _, err := likes.Change(ctx, ops, client.WriteOptions{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	next := client.MembersPageMax + 499
	for m, err := range likes.All(ctx, client.Number(1), client.ReadOptions{}) {
		if err != nil || m.Member != client.Number(uint64(next)) {
			t.Fatalf("got %+v, %v, want %d", m, err, next)
		}
		next--
	}
	if next != -1 {
		t.Errorf("%d members are missing", next+1)
	}
	rows := 0
	for row, err := range likes.AllOf(ctx, client.Number(7), client.ReadOptions{}) {
		if err != nil || row.At.IsZero() {
			t.Fatal(err)
		}
		if rows++; rows == 1200 {
			break
		}
	}
	if rows != 1200 {
		t.Errorf("%d rows", rows)
	}
	for _, err := range c.Members("nope", "like").All(ctx, client.Number(1), client.ReadOptions{}) {
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != "unknown_keyspace" {
			t.Errorf("the error is %v", err)
		}
	}
}

func TestMembersAmongOps(t *testing.T) {
	text, err := json.Marshal(client.KeyspaceOp{Keyspace: "posts", ID: client.Number(1), Member: &client.KeyspaceMember{Column: "like", Member: client.Number(7)}})
	if want := `{"keyspace":"posts","column":"like","id":"1","member":"7","set":true}`; err != nil || string(text) != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
	var sent string
	server := nodetest.New(t)
	server.Fail = func(_ *http.Request, body []byte) *nodetest.Fault {
		sent = string(body)
		return &nodetest.Fault{Status: 400, Code: "invalid_argument"}
	}
	_, _ = dial(t, server.URL).GetManyOf(t.Context(), "posts", client.Number(7), []client.ID{client.Number(1)}, []string{"like"}, client.ReadOptions{})
	if want := `{"ids":["1"],"columns":["like"],"member":"7"}`; sent != want {
		t.Errorf("sent %s, want %s", sent, want)
	}
	var row client.Row
	if err := json.Unmarshal([]byte(`{"id":"1","counts":{"like":1},"member":{"like":true}}`), &row); err != nil || !row.Member["like"] {
		t.Errorf("got %+v, %v", row, err)
	}
	var result client.OpResult
	if err := json.Unmarshal([]byte(`{"id":"1","member":"7","changed":true,"count":13}`), &result); err != nil || result.MemberOutcome == nil || *result.MemberOutcome != (client.MemberOutcome{Member: client.Number(7), Changed: true, Count: 13}) {
		t.Errorf("got %+v, %v", result, err)
	}
	if err := json.Unmarshal([]byte(`{"id":"1","counts":{"like":1}}`), &result); err != nil || fmt.Sprint(result.Counts) != "[{like 1}]" {
		t.Errorf("got %+v, %v", result, err)
	}
}
