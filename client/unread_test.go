package client_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/countd/countd/client"
)

// TestUnreadCalls checks that each call sends the request of the API's contract, and returns the
// server's answer.
func TestUnreadCalls(t *testing.T) {
	var got, body string
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got, body = r.Method+" "+r.URL.RequestURI(), string(raw)
		if r.Method != http.MethodGet && r.URL.Path != "/v1/poll" && r.Header.Get("Idempotency-Key") == "" {
			t.Errorf("%s has no key", got)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	c := dial(t, server.URL)
	two, four := int64(2), int64(4)
	const written = `,"duplicate":true,"token":"T"}`
	done := client.Written{Duplicate: true, Token: "T"}
	counts := client.Counts{{Column: "at", Value: 1}, {Column: "like", Value: 2}}
	read, write := client.ReadOptions{}, client.WriteOptions{}
	for _, test := range []struct {
		name          string
		call          func(context.Context) (any, error)
		request, body string
		answer        string
		want          any
	}{
		{"unread", func(ctx context.Context) (any, error) {
			return c.Unread(ctx, client.Number(7), client.ReadOptions{Consistency: "stale"})
		},
			"GET /v1/unread/7?consistency=stale", "", `{"user":"7","counts":{"at":1,"like":2}}`, client.UserCounts{User: client.Number(7), Counts: counts}},
		{"incr", func(ctx context.Context) (any, error) {
			return c.IncrUnread(ctx, []client.Op{{ID: client.Number(7), Cells: counts}}, write)
		}, "POST /v1/unread/incr", `{"ops":[{"user":"7","add":{"at":1,"like":2}}]}`, `{"results":[{"user":"7","counts":{"at":1,"like":2}}]` + written,
			client.WriteResult{Results: []client.OpResult{{ID: client.Number(7), Counts: counts}}, Written: done}},
		{"incr quietly", func(ctx context.Context) (any, error) {
			return c.IncrUnread(ctx, []client.Op{{ID: client.Number(7), Cells: counts}}, client.WriteOptions{Quiet: true})
		}, "POST /v1/unread/incr", `{"want":"none","ops":[{"user":"7","add":{"at":1,"like":2}}]}`, `{"applied":1` + written, client.WriteResult{Applied: 1, Written: done}},
		{"reset", func(ctx context.Context) (any, error) {
			return c.ResetUnread(ctx, client.Number(7), []string{"at"}, write)
		},
			"POST /v1/unread/7/reset", `{"columns":["at"]}`, `{"user":"7","counts":{"at":1,"like":2},"cleared":{"at":1,"like":2}` + written,
			client.ResetResult{UserCounts: client.UserCounts{User: client.Number(7), Counts: counts}, Cleared: counts, Written: done}},
		{"reset by what was seen", func(ctx context.Context) (any, error) { return c.ResetSeen(ctx, client.Number(7), counts, write) },
			"POST /v1/unread/7/reset", `{"seen":{"at":1,"like":2}}`, `{"user":"7","counts":{"at":1},"cleared":{"at":2}` + written,
			client.ResetResult{UserCounts: client.UserCounts{User: client.Number(7), Counts: counts[:1]}, Cleared: client.Counts{{Column: "at", Value: 2}}, Written: done}},
		{"channels", func(ctx context.Context) (any, error) { return c.Channels().List(ctx, read) },
			"GET /v1/notices", "", `{"channels":[{"name":"n","latest":3,"retracted":1}]}`, []client.Channel{{Name: "n", Latest: 3, Retracted: 1}}},
		{"publish", func(ctx context.Context) (any, error) { return c.Channels().Publish(ctx, "n", write) },
			"POST /v1/notices/n", "", `{"seq":4` + written, client.Published{Seq: 4, Written: done}},
		{"retract", func(ctx context.Context) (any, error) { return c.Channels().Retract(ctx, "n", 4, write) },
			"DELETE /v1/notices/n/4", "", `{"seq":4` + written, client.Published{Seq: 4, Written: done}},
		{"notices", func(ctx context.Context) (any, error) {
			return c.Channels().Notices(ctx, "n", client.Number(7), nil, read)
		},
			"GET /v1/notices/n/users/7", "", `{"unread":0,"last_read":null,"latest":3}`, client.Notices{Latest: 3}},
		{"notices since", func(ctx context.Context) (any, error) {
			return c.Channels().Notices(ctx, "n", client.Number(7), &two, client.ReadOptions{Consistency: "bounded"})
		}, "GET /v1/notices/n/users/7?since=2&consistency=bounded", "", `{"unread":1,"last_read":2,"latest":3}`, client.Notices{Unread: 1, LastRead: &two, Latest: 3}},
		{"read", func(ctx context.Context) (any, error) {
			return c.Channels().Read(ctx, "n", client.Number(7), nil, write)
		},
			"POST /v1/notices/n/users/7/read", "", `{"unread":0,"last_read":4,"latest":4` + written,
			client.NoticesRead{Notices: client.Notices{LastRead: &four, Latest: 4}, Written: done}},
		{"read up to", func(ctx context.Context) (any, error) {
			return c.Channels().Read(ctx, "n", client.Number(7), &two, write)
		},
			"POST /v1/notices/n/users/7/read", `{"up_to":2}`, `{"unread":2,"last_read":2,"latest":4` + written,
			client.NoticesRead{Notices: client.Notices{Unread: 2, LastRead: &two, Latest: 4}, Written: done}},
		{"begin", func(ctx context.Context) (any, error) {
			return c.Channels().Begin(ctx, "n", client.Number(7), 2, write)
		},
			"POST /v1/notices/n/users/7/read", `{"since":2}`, `{"unread":2,"last_read":2,"latest":4` + written,
			client.NoticesRead{Notices: client.Notices{Unread: 2, LastRead: &two, Latest: 4}, Written: done}},
		{"dots", func(ctx context.Context) (any, error) { return c.Dots().List(ctx, read) },
			"GET /v1/dots", "", `{"dots":[{"name":"d","fired":3,"new_users":true}]}`, []client.Dot{{Name: "d", Fired: 3, NewUsers: true}}},
		{"fire", func(ctx context.Context) (any, error) { return c.Dots().Fire(ctx, "d", write) },
			"POST /v1/dots/d/fire", "", `{"fired":3` + written, client.Fired{Fired: 3, Written: done}},
		{"set dot", func(ctx context.Context) (any, error) { return c.Dots().Set(ctx, "d", false, write) },
			"PUT /v1/dots/d", `{"new_users":false}`, `{"fired":3,"new_users":false` + written, client.Fired{Fired: 3, Written: done}},
		{"shows dot", func(ctx context.Context) (any, error) { return c.Dots().Shows(ctx, "d", client.Number(7), read) },
			"GET /v1/dots/d/users/7", "", `{"show":true}`, true},
		{"clear dot", func(ctx context.Context) (any, error) { return c.Dots().Clear(ctx, "d", client.Number(7), write) },
			"POST /v1/dots/d/users/7/clear", "", `{"show":false` + written, client.Shown{Written: done}},
		{"feed", func(ctx context.Context) (any, error) { return c.Feeds().Unread(ctx, client.Number(7), false, read) },
			"GET /v1/feed/7/unread", "", `{"unread":7}`, client.Feed{Unread: 7}},
		{"feed in detail", func(ctx context.Context) (any, error) { return c.Feeds().Unread(ctx, client.Number(7), true, read) },
			"GET /v1/feed/7/unread?detail=true", "", `{"unread":7,"followees":{"2":4,"18446744073709551615":3}}`,
			client.Feed{Unread: 7, Followees: map[client.ID]int64{client.Number(2): 4, client.Number(1<<64 - 1): 3}}},
		{"reset feed", func(ctx context.Context) (any, error) { return c.Feeds().Reset(ctx, client.Number(7), nil, write) },
			"POST /v1/feed/7/reset", "", `{"unread":0` + written, client.FeedResult{Written: done}},
		{"reset feed to none", func(ctx context.Context) (any, error) {
			return c.Feeds().Reset(ctx, client.Number(7), []client.ID{}, write)
		},
			"POST /v1/feed/7/reset", `{"followees":[]}`, `{"unread":0` + written, client.FeedResult{Written: done}},
		{"follow", func(ctx context.Context) (any, error) {
			return c.Feeds().Follow(ctx, client.Number(7), []client.ID{client.Number(2), client.Number(3)}, write)
		},
			"POST /v1/feed/7/follow", `{"followees":["2","3"]}`, `{"unread":5` + written, client.FeedResult{Unread: 5, Written: done}},
		{"unfollow", func(ctx context.Context) (any, error) { return c.Feeds().Unfollow(ctx, client.Number(7), nil, write) },
			"POST /v1/feed/7/unfollow", `{"followees":[]}`, `{"unread":5` + written, client.FeedResult{Unread: 5, Written: done}},
		{"read feed", func(ctx context.Context) (any, error) {
			return c.Feeds().Read(ctx, client.Number(7), []client.ID{client.Number(2)}, write)
		},
			"POST /v1/feed/7/read", `{"followees":["2"]}`, `{"unread":5` + written, client.FeedResult{Unread: 5, Written: done}},
		{"timeline", func(ctx context.Context) (any, error) {
			return c.Timeline(ctx, client.Number(7), client.PostQuery{Limit: 1, Cursor: "6.2", Group: "g", Counts: "posts", Member: []string{"like", "view"}}, read)
		}, "GET /v1/timeline/7?counts=posts&cursor=6.2&group=g&limit=1&member=like%2Cview", "", `{"posts":[{"id":"5","author":"2","counts":{"view":9,"like":1},"member":{"like":true,"view":false}}],"cursor":"5.2"}`,
			client.PostPage{Posts: []client.Post{{ID: client.Number(5), Author: client.Number(2), Counts: client.Counts{{Column: "view", Value: 9}, {Column: "like", Value: 1}}, Member: map[string]bool{"like": true, "view": false}}}, Cursor: "5.2"}},
		{"poll", func(ctx context.Context) (any, error) {
			return c.Poll(ctx, client.Number(7), []string{"a", "b"}, []string{"x"}, read)
		},
			"GET /v1/poll/7?channels=a%2Cb&dots=x", "", `{"unread":{"at":1,"like":2},"notices":{"a":3,"b":0},"dots":{"x":true},"feed":7}`,
			client.Poll{User: client.Number(7), Unread: counts, Notices: map[string]int64{"a": 3, "b": 0}, Dots: map[string]bool{"x": true}, Feed: 7}},
		{"poll many", func(ctx context.Context) (any, error) {
			return c.PollMany(ctx, []client.ID{client.Number(7), client.Number(8)}, nil, []string{"x"}, client.ReadOptions{Consistency: "stale"})
		}, "POST /v1/poll?consistency=stale", `{"users":["7","8"],"dots":["x"]}`, `{"results":[{"user":"8","unread":{"at":1},"notices":{},"dots":{"x":false},"feed":0}]}`,
			[]client.Poll{{User: client.Number(8), Unread: counts[:1], Notices: map[string]int64{}, Dots: map[string]bool{"x": false}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer = test.answer
			value, err := test.call(t.Context())
			if err != nil || got != test.request || body != test.body {
				t.Errorf("sent %s %s, %v; want %s %s", got, body, err, test.request, test.body)
			}
			if !reflect.DeepEqual(value, test.want) {
				t.Errorf("answered %+v, want %+v", value, test.want)
			}
		})
	}
}
