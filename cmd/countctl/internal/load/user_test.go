package load

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func userWorker(op Kind) *worker {
	return newWorker(&Config{
		Addr: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Keyspace: UnreadKeyspace, Column: "at", Op: op, Page: 3, Batch: 2,
		Channels: []string{"news", "shop"}, Dots: []string{"x"}, Followees: 90, Authors: 1_000_000, IDs: IDs{Dist: Each, N: 100},
	}, new(atomic.Uint64), 0)
}

func TestRequestsAboutUsers(t *testing.T) {
	cases := []struct {
		op           Kind
		method, path string // expected in the second request
		body         string // expected body; "*" for any, because it is random
		ops          int64
	}{
		{Poll, "GET", "/v1/poll/2?channels=news,shop&dots=x", "", 1},
		{Polls, "POST", "/v1/poll", `{"users":["4","5","6"],"channels":["news","shop"],"dots":["x"]}`, 3},
		{Feed, "POST", "/v1/feed/2/reset", "*", 0},
		{Seen, "POST", "/v1/notices/news/users/2/read", "", 1},
		{Clear, "POST", "/v1/dots/x/users/2/clear", "", 1},
		{Publish, "POST", "/v1/notices/news", "", 1},
		{Post, "POST", "/v1/outbox/2", "*", 1},
		{Timeline, "GET", "/v1/timeline/2?limit=3&counts=posts", "", 1},
		{Incr, "POST", "/v1/unread/incr", `{"ops":[{"user":"3","add":{"at":1}},{"user":"4","add":{"at":1}}]}`, 2},
		{Read, "GET", "/v1/unread/2", "", 1},
	}
	for _, c := range cases {
		t.Run(string(c.op), func(t *testing.T) {
			w := userWorker(c.op)
			w.prepare()
			r, _, ops := w.prepare()
			if got := string(r.Header.Method()) + " " + string(r.URI().RequestURI()); got != c.method+" "+c.path {
				t.Errorf("the request is %s, want %s %s", got, c.method, c.path)
			}
			if c.body != "*" && (string(r.Body()) != c.body || ops != c.ops) {
				t.Errorf("the body is %s of %d ops, want %s of %d", r.Body(), ops, c.body, c.ops)
			}
		})
	}
}

// The posts of all workers have different ids. The ids of a worker rise, and contain the current
// time.
func TestPostsAreNew(t *testing.T) {
	var each atomic.Uint64
	cfg := userWorker(Post).cfg
	workers := []*worker{newWorker(cfg, &each, 0), newWorker(cfg, &each, ConcurrencyMax-1)}
	seen := map[uint64]bool{}
	before := time.Now().Unix()
	for range 3000 {
		for _, w := range workers {
			last := w.post
			r, _, _ := w.prepare()
			var body struct {
				ID uint64 `json:",string"`
			}
			if err := json.Unmarshal(r.Body(), &body); err != nil || body.ID <= last || seen[body.ID] {
				t.Fatalf("post %s behind %d: %v", r.Body(), last, err)
			}
			seen[body.ID] = true
		}
	}
	for id := range seen {
		if at := int64(id>>postTimeBits) + postEpoch; at < before || at > time.Now().Unix()+10 {
			t.Fatalf("post %d has the time %d, want %d", id, at, before)
		}
	}
}

func TestFeedsAreDrawn(t *testing.T) {
	w := userWorker(Feed)
	const feeds = 20_000
	total, most, few := int64(0), 0, 0
	for range feeds {
		r, _, ops := w.prepare()
		var body struct{ Followees []string }
		if err := json.Unmarshal(r.Body(), &body); err != nil || int64(len(body.Followees)) != ops || body.Followees[0] != "1" {
			t.Fatalf("%d followees, %v: %.80s", ops, err, r.Body())
		}
		for _, id := range body.Followees {
			if n, err := strconv.ParseUint(id, 10, 64); err != nil || n < 1 || n > w.cfg.Authors {
				t.Fatalf("an author %q: %v", id, err)
			}
		}
		total += ops
		most = max(most, len(body.Followees))
		if ops < 90 {
			few++
		}
	}
	if mean := float64(total) / feeds; mean < 80 || mean > 100 || most < 1000 || most > FolloweesMax || few < feeds/2 {
		t.Errorf("%.1f followees on average, %d at the most, %d of %d feeds below 90", mean, most, few, feeds)
	}
}

func TestConfigsOfUsers(t *testing.T) {
	good := *userWorker(Poll).cfg
	good.Concurrency, good.Requests, good.Timeout = 1, 1, 1
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"good":           {func(*Config) {}, ""},
		"page of polls":  {func(c *Config) { c.Op, c.Page = Polls, PollMax+1 }, "1 to 100 users"},
		"no channel":     {func(c *Config) { c.Op, c.Channels = Publish, nil }, "channel"},
		"no dot":         {func(c *Config) { c.Op, c.Dots = Clear, nil }, "dot"},
		"channel":        {func(c *Config) { c.Channels = []string{"news", `a"b`} }, `a\"b`},
		"dot":            {func(c *Config) { c.Dots = []string{"x&y"} }, "x&y"},
		"empty channel":  {func(c *Config) { c.Channels = []string{""} }, "name"},
		"followees":      {func(c *Config) { c.Op, c.Followees = Feed, FolloweesMax+1 }, "2000"},
		"no author":      {func(c *Config) { c.Op, c.Authors = Feed, 0 }, "author"},
		"another op":     {func(c *Config) { c.Op = "frob" }, "frob"},
		"another choice": {func(c *Config) { c.IDs.Dist = "frob" }, "each"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			err := cfg.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}
