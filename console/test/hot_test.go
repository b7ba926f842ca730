package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// checkHot checks that the page shows the rows of both calls, and the errors of the gains.
func checkHot(t *testing.T, b *browser, n *proctest.Node) {
	type object = map[string]any
	// More ids than the shards' lists have entries, so that the gains of later ids have an error.
	for batch := range 10 {
		var ops []any
		for i := range 10_000 {
			ops = append(ops, object{"id": fmt.Sprint(1_000_000 + 10_000*batch + i), "add": object{"repost": 1}})
		}
		n.MustCall("POST", "/v1/counters/posts/incr", object{"ops": ops, "want": "none"}, nil)
	}
	var posts, users []any
	for i := range 120 {
		id := fmt.Sprint(uint64(18446744073709551615) - uint64(i)*7)
		posts = append(posts, object{"id": id, "add": object{"repost": 90_000 / (i + 1), "comment": 200 - i}})
		users = append(users, object{"id": id, "add": object{"followers": 1 + i/2}})
	}
	n.MustCall("POST", "/v1/counters/posts/incr", object{"ops": posts}, nil)
	n.MustCall("POST", "/v1/counters/users/incr", object{"ops": users}, nil)

	b.goTo("hot")
	b.click("main .links a", "users")
	b.click("main .links a", "followers")
	checkLists(b, n, "users", "followers", 10)
	b.awaitText("[aria-label='Last hour']", "These gains are exact. No other id gained more than ")
	b.awaitText("[aria-label='Largest counts']", "These counts are exact.")
	b.click("main .links a", "following")
	checkLists(b, n, "users", "following", 10)
	b.awaitText("[aria-label='Last hour']", " UTC. No id gained.")
	b.awaitText("[aria-label='Largest counts']", "No count is above 0.")
	b.goTo("hot/feed")
	b.awaitText("main", "There is no such keyspace of counters.")
	b.click("main .links a", "posts")
	if !checkLists(b, n, "posts", "repost", 10) {
		t.Error("no gain of a storm has an error")
	}
	b.awaitText("[aria-label='Last hour']", "A gain may be off by the number after ±. No other id gained more than ")
	b.shoot("hot")
	b.click("main .links a", "100")
	checkLists(b, n, "posts", "repost", 100)

	b.goTo("hot/posts/comment")
	b.click("[aria-label='Largest counts'] a", post)
	b.awaitText("main h2", "posts "+post)
	// A quote in an address must not begin a separate command in the curl line that a reader
	// copies.
	if curl := evaluate[string](b, `import('./api.js').then(({curl}) => curl("v1/hot/posts/x';reboot;'"))`); curl != "curl '"+n.URL+`/v1/hot/posts/x'\'';reboot;'\'''` {
		t.Errorf("curl is %s", curl)
	}
}

// checkLists checks the page of a column against the API. It reports whether the API estimates a
// gain of the last hour with an error.
func checkLists(b *browser, n *proctest.Node, keyspace, column string, limit int) (estimated bool) {
	b.t.Helper()
	for _, list := range []struct{ name, call, query string }{
		{"Last minute", "hot", "window=1m&"}, {"Last hour", "hot", "window=1h&"}, {"Last day", "hot", "window=24h&"}, {"Largest counts", "top", ""},
	} {
		path := fmt.Sprintf("/v1/%s/%s/%s?%slimit=%d", list.call, keyspace, column, list.query, limit)
		card := fmt.Sprintf("[aria-label='%s']", list.name)
		for began := time.Now(); ; time.Sleep(200 * time.Millisecond) { // until the page reads the list again
			var answer struct {
				OthersAtMost int64 `json:"others_at_most"`
				Results      []client.HotRow
			}
			n.MustCall("GET", path, nil, &answer)
			var rows []string
			for _, r := range answer.Results {
				count, _ := r.Counts.Get(column)
				row := r.ID.String()
				if list.call == "hot" {
					row += " " + grouped(r.Gained)
				}
				if r.Error != 0 {
					row += " ± " + grouped(r.Error)
					estimated = estimated || list.name == "Last hour"
				}
				rows = append(rows, row+" "+grouped(count))
			}
			want := strings.Join(rows, "; ")
			got := evaluate[string](b, fmt.Sprintf("[...document.querySelectorAll(%q)].map(r => [...r.cells].map(c => c.textContent).join(' ')).join('; ')", card+" tbody tr"))
			bound := answer.OthersAtMost == 0 || strings.Contains(b.text(card), " gained more than "+grouped(answer.OthersAtMost)+".")
			if got == want && bound {
				break
			}
			if time.Since(began) > must.BecomeMax {
				b.t.Fatalf("%s of %s shows %s\nwant %s\nand the bound %d", list.name, column, b.text(card), want, answer.OthersAtMost)
			}
		}
		if curl := b.text(card + " code"); curl != "curl '"+n.URL+path+"'" {
			b.t.Errorf("%s has the command %s", list.name, curl)
		}
	}
	return estimated
}
