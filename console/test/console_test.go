package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	post = "18446744073709551615" // an id that a double cannot represent; its count is the same number
	big  = 9007199254740993
	user = "4467107636950632001"
)

// seed writes something for each page to show.
func seed(n *proctest.Node) {
	type object = map[string]any
	n.MustCall("POST", "/v1/counters/posts/incr", object{"ops": []any{object{"id": post, "add": object{"like": big, "view": 120_000}}}}, nil)
	var likes []any
	for member := range 25 {
		likes = append(likes, object{"id": post, "member": fmt.Sprint(uint64(4467107636950632000) + uint64(member)), "set": true})
	}
	n.MustCall("POST", "/v1/members/posts/like", object{"ops": likes}, nil)
	var rows []any
	for id := range 20_000 {
		rows = append(rows, object{"id": fmt.Sprint(4467107636950632 + id), "add": object{"like": id % 100, "comment": id % 7}})
	}
	for batch := range 2 {
		n.MustCall("POST", "/v1/counters/posts/incr", object{"ops": rows[batch*10_000 : (batch+1)*10_000], "want": "none"}, nil)
	}
	n.MustCall("POST", "/v1/unread/incr", object{"ops": []any{object{"user": user, "add": object{"like": 4, "at": 1}}}}, nil)
	n.MustCall("POST", "/v1/notices/news", object{}, nil)
	n.MustCall("GET", "/v1/notices/news/users/"+user, nil, nil)
	n.MustCall("POST", "/v1/notices/news/users/"+user+"/read", object{}, nil)
	n.MustCall("POST", "/v1/notices/news", object{}, nil)
	n.MustCall("PUT", "/v1/dots/shop", object{"new_users": true}, nil)
	n.MustCall("POST", "/v1/dots/shop/fire", object{}, nil)
	n.MustCall("POST", "/v1/feed/"+user+"/reset", object{"followees": []string{"2", "3"}}, nil)
	for id := range 30 {
		n.MustCall("POST", fmt.Sprintf("/v1/outbox/%d", 2+id%2), object{"id": fmt.Sprint(4467107636950632 + id)}, nil)
	}
}

// load increments and reads until the test ends.
func load(t *testing.T, n *proctest.Node) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			ids := []any{}
			for k := range 5 + i/50%10 {
				ids = append(ids, fmt.Sprint(4467107636950632+k))
			}
			_, _ = n.Call("POST", "/v1/counters/posts/get", map[string]any{"ids": ids}, nil) // the node may be stopped
			_, _ = n.Call("POST", "/v1/counters/posts/incr", map[string]any{"ops": []any{map[string]any{"id": ids[0], "add": map[string]any{"view": 1}}}}, nil)
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
}

// grouped formats a number with separators of thousands, as the pages do.
func grouped[N int | int64 | uint64](n N) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// TestConsole checks on three nodes that each page shows the API's numbers, that the cluster carries out orders
// from a page, and that pages show dead nodes.
func TestConsole(t *testing.T) {
	nodes := startCluster(t, nil)
	n1 := nodes[0]
	seed(n1)
	b := newBrowser(t)
	b.open(n1.URL+"/", "home") // redirected
	b.awaitText("[data-test=verdict]", "All is well")
	for step, check := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"home", func(t *testing.T) { checkHome(t, b, nodes) }},
		{"keyspaces", func(t *testing.T) { checkKeyspaces(t, b, n1) }},
		{"row", func(t *testing.T) { checkRow(t, b, n1) }},
		{"hot", func(t *testing.T) { checkHot(t, b, n1) }},
		{"user", func(t *testing.T) { checkUser(t, b, n1) }},
		{"sources", func(t *testing.T) { checkSources(t, b, n1) }},
		{"operate", func(t *testing.T) { checkOperate(t, b, n1) }},
		{"runbook", func(t *testing.T) { checkRunbook(t, b) }},
		{"keyboard", func(t *testing.T) { checkKeyboard(t, b) }},
		{"a dead node", func(t *testing.T) { checkDeadNode(t, b, nodes) }},
		{"its own node", func(t *testing.T) { checkOwnNode(t, b, nodes) }},
	} {
		b.t = t
		if !t.Run(check.name, func(t *testing.T) {
			b.t = t
			check.run(t)
			if step < 9 {
				for _, problem := range b.forgive() {
					t.Error(problem)
				}
			}
		}) {
			break
		}
	}
	b.t = t
	b.forgive() // the problems of calls to killed nodes
}

func checkHome(t *testing.T, b *browser, nodes []*proctest.Node) {
	if empty := evaluate[int](b, "document.querySelectorAll('.chart .empty').length"); empty == 0 {
		t.Error("no graph says that it is empty")
	}
	load(t, nodes[0])
	for i := range nodes {
		b.awaitText(fmt.Sprintf("tr:has([data-node=n%d]) .state", i+1), "well")
	}
	b.await("document.querySelectorAll('.chart canvas').length === 4")
	b.await("/written [0-9,.]*[1-9]/.test(document.querySelector('.chart .legend').textContent)")
	if *screens != "" {
		time.Sleep(20 * time.Second) // time for a graph of some points, at 50 to 90 ops a second
	}
	b.shoot("home")
	checkWarnings(t, b, nodes[0])

	var of admin.ClusterNodes
	nodes[0].MustCall("GET", "/v1/admin/nodes", nil, &of)
	for _, n := range of.Nodes {
		b.await(fmt.Sprintf("[...document.querySelectorAll('tr:has([data-node=%s]) td')].slice(3, 6).map(c => c.textContent).join() === '%s,%d,%d'", n.ID, n.Version, n.Leads, n.Replicas))
		if n.OpsWritten == 0 && n.ID == "n1" || n.MemoryLimitBytes == 0 || n.DiskFreeBytes == 0 {
			t.Errorf("%+v", n)
		}
	}
	checkRates(t, b)
}

// checkRates checks that the graphs have gaps after a restart of a node, a silent node and a pause
// of the page.
func checkRates(t *testing.T, b *browser) {
	got := evaluate[string](b, `import('./rates.js').then(({rateOf, quantileOf, latenciesOf}) => {
		const n = (key, life, ops, answers = true) => ({key, life, ops, answers});
		const rate = (before, after, ms = 2000) => rateOf({at: 0, nodes: before}, {at: ms, nodes: after}, 'ops');
		const bucket = (le, n) => 'countd_http_request_duration_seconds_bucket{code="2xx",endpoint="counters_incr",le="' + le + '"} ' + n + '\n';
		const metrics = (start, a, b) => latenciesOf('process_start_time_seconds ' + start + '\n' + bucket('0.001', a) + bucket('0.002', b) + bucket('+Inf', b));
		return JSON.stringify([
			rate([n('a', 1, 10), n('b', 1, 5)], [n('a', 1, 30), n('b', 1, 5)]),    // 20 in 2 s
			rate([n('a', 1, 1000)], [n('a', 2, 3)]),                             // a restart
			rate([n('a', 1, 1000), n('b', 1, 0)], [n('a', 2, 3), n('b', 1, 8)]), // of one of two
			rate([n('a', 1, 10)], [n('a', '', 0, false)]),                      // it does not answer
			rate([n('a', 1, 10)], [n('a', 1, 30)], 60000),                      // the page slept
			rate([n('a', 1, 2n ** 63n)], [n('a', 1, 2n ** 63n + 4n)]),
			quantileOf(metrics(1, 0, 0), metrics(1, 0, 100), 'write', 0.5),
			quantileOf(metrics(1, 50, 90), metrics(2, 60, 95), 'write', 0.5),   // a restart
			quantileOf(metrics(1, 5, 9), metrics(1, 5, 9), 'write', 0.5),       // no request
		]);
	})`)
	if want := "[10,null,4,null,null,2,0.0015,null,null]"; got != want {
		t.Errorf("rates are %s, want %s", got, want)
	}
}

// checkWarnings compares the page's warnings with those of countctl. It reads both again until they agree,
// because a leader may change between the two reads.
func checkWarnings(t *testing.T, b *browser, n *proctest.Node) {
	t.Helper()
	type warning struct{ Code, Text, Run string }
	for began := time.Now(); ; {
		var ctl struct{ Warnings []warning }
		must.Do(t, json.Unmarshal([]byte(n.MustCtl("status", "-o", "json")), &ctl))
		var page []warning
		must.Do(t, json.Unmarshal([]byte(evaluate[string](b, `Promise.all([import('./api.js'), import('./warnings.js'), import('./runbook.js')]).then(async ([{get}, {warningsOf}, {sections, adviceOf}]) => {
		const all = await sections(), runOf = w => adviceOf(all, w)[0].textContent.split('\n')[0];
		const [nodes, groups, digests, version] = await Promise.all(['nodes', 'groups', 'digests', 'version'].map(what => get('v1/admin/' + what)));
		return JSON.stringify(warningsOf(nodes.nodes, groups.groups, digests.groups, version).map(w => ({code: w.code, text: w.text, run: runOf(w)})));
	})`)), &page))
		if slices.Equal(page, ctl.Warnings) {
			return
		}
		if time.Since(began) > must.BecomeMax {
			t.Fatalf("the page warns of %+v\ncountctl of %+v", page, ctl.Warnings)
		}
	}
}

func checkKeyspaces(t *testing.T, b *browser, n *proctest.Node) {
	b.goTo("keyspaces")
	var groups struct{ Groups []admin.ClusterGroup }
	n.MustCall("GET", "/v1/admin/groups", nil, &groups)
	rows := map[string]uint64{}
	for _, g := range groups.Groups {
		rows[g.Keyspace] += g.Rows
	}
	for _, keyspace := range []string{"posts", "users", "unread", "feed", "board"} {
		b.await(fmt.Sprintf("document.querySelector('tr:has([data-keyspace=%s]) td:nth-child(5)')?.textContent === %q", keyspace, grouped(rows[keyspace])))
	}
	if rows["posts"] != 20_001-200-1 && rows["posts"] < 19_000 {
		t.Errorf("%d rows of posts", rows["posts"])
	}
	b.shoot("keyspaces")
	b.goTo("keyspaces/posts")
	b.awaitText("main h1", "posts")
	b.shoot("keyspace")
	b.goTo("keyspaces")
	b.click("main button", "Create a keyspace")
	b.fill("name", "clips")
	b.fill("columns", "play, like")
	b.fill("shards", "2")
	b.shoot("create")
	b.click("dialog button", "Create it")
	b.await("!!document.querySelector('[data-keyspace=clips]')")
	var made struct {
		Keyspaces []struct {
			Name    string
			Columns []string
			Shards  int
		}
	}
	n.MustCall("GET", "/v1/keyspaces", nil, &made)
	for _, k := range made.Keyspaces {
		if k.Name == "clips" && (k.Shards != 2 || strings.Join(k.Columns, ",") != "play,like") {
			t.Errorf("clips is %+v", k)
		}
	}
}

func checkRow(t *testing.T, b *browser, n *proctest.Node) {
	b.goTo("row/posts/" + post)
	b.awaitText("[data-column=like]", grouped(int64(big)+25))
	b.awaitText("[data-column=view]", "120,000")
	n.MustCall("POST", "/v1/counters/posts/incr", map[string]any{"ops": []any{map[string]any{"id": post, "add": map[string]any{"view": 3}}}}, nil)
	b.awaitText("[data-column=view]", "120,003")
	b.click("main button", "Increment …")
	b.fill("column", "view")
	b.fill("add", "-2")
	b.click("dialog button", "Add it")
	b.awaitText("[data-column=view]", "120,001")
	var row proctest.Row
	n.MustCall("GET", "/v1/counters/posts/"+post, nil, &row)
	if row.Counts["view"] != 120_001 || row.Counts["like"] != big+25 {
		t.Errorf("the API has %+v", row)
	}
	b.goTo("row/posts/" + post + "/like")
	b.await("document.querySelectorAll('[data-member]').length === 20")
	b.shoot("row")
	b.click("main button", "More")
	b.await("document.querySelectorAll('[data-member]').length === 25")
	if first := b.text("[data-member]"); !strings.HasPrefix(first, "44671076369506320") {
		t.Errorf("the first member is %q", first)
	}
	b.goTo("row/posts/7")
	b.awaitText("[data-column=like]", "0")
	b.fill("id", "007")
	b.click("main button", "Look up")
	b.awaitText("#id-rule", "Not an id")
}

func checkUser(t *testing.T, b *browser, n *proctest.Node) {
	b.goTo("user/" + user)
	var poll struct {
		Unread, Notices map[string]int64
		Dots            map[string]bool
		Feed            int64
	}
	n.MustCall("GET", "/v1/poll/"+user+"?channels=news&dots=shop", nil, &poll)
	if poll.Unread["like"] != 4 || poll.Notices["news"] != 1 || !poll.Dots["shop"] || poll.Feed != 30 {
		t.Errorf("the API has %+v", poll)
	}
	for column, count := range poll.Unread {
		b.awaitText(fmt.Sprintf("[data-unread=%s]", column), grouped(count))
	}
	b.awaitText("[data-notices=news]", grouped(poll.Notices["news"]))
	b.awaitText("[data-feed]", grouped(poll.Feed))
	var timeline struct{ Posts []struct{ ID string } }
	n.MustCall("GET", "/v1/timeline/"+user, nil, &timeline)
	var ids []string
	for _, p := range timeline.Posts {
		ids = append(ids, p.ID)
	}
	b.await(fmt.Sprintf("[...document.querySelectorAll('[data-post]')].map(e => e.textContent).join() === %q", strings.Join(ids, ",")))
	b.shoot("user")
	b.click("main button", "More")
	b.await("document.querySelectorAll('[data-post]').length === 30")
}

func checkSources(t *testing.T, b *browser, n *proctest.Node) {
	addr := proctest.StartRedis(t)
	redis, err := net.Dial("tcp", addr)
	must.Do(t, err)
	defer redis.Close()
	var text bytes.Buffer
	for i := range 100 {
		fmt.Fprintf(&text, "XADD likes * message %q\r\n", fmt.Sprintf(`{"keyspace":"posts","id":"%d","add":{"like":1}}`, i))
	}
	text.WriteString("XADD likes * message nonsense\r\n")
	_, err = redis.Write(text.Bytes())
	must.Do(t, err)
	n.MustCall("PUT", "/v1/sources/likes", map[string]any{"type": "redis-stream", "addr": addr, "key": "likes", "field": "message"}, nil)
	t.Cleanup(func() { _, _ = n.Call("DELETE", "/v1/sources/likes", nil, nil) })
	b.goTo("sources")
	b.awaitText("tr:has([data-source=likes])", "running")
	var source struct {
		State             string
		Applied, Rejected int64
		Lag               int64
		DeadLetters       string `json:"dead_letters"`
	}
	for range 100 {
		if n.MustCall("GET", "/v1/sources/likes", nil, &source); source.Rejected == 1 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.await(fmt.Sprintf("[...document.querySelectorAll('tr:has([data-source=likes]) td')].slice(5, 7).map(c => c.textContent).join() === '%s,%s'", grouped(source.Applied), grouped(source.Rejected)))
	b.shoot("sources")
	b.goTo("sources/likes")
	b.awaitText("main", source.DeadLetters)
	b.shoot("source")
	b.click("main button", "Pause …")
	b.click("dialog button", "Pause")
	b.awaitText("main .state", "paused")
	if n.MustCall("GET", "/v1/sources/likes", nil, &source); source.State != "paused" {
		t.Errorf("the source is %s", source.State)
	}
	b.click("main button", "Seek …")
	b.fill("position", "0-0")
	b.click("dialog button", "Seek")
	b.await("!document.querySelector('dialog')")
	b.click("main button", "Resume …")
	b.click("dialog button", "Resume")
	b.awaitText("main .state", "running")
}

func checkOperate(t *testing.T, b *browser, n *proctest.Node) {
	stateOf := func(name string) string {
		var of admin.ClusterNodes
		n.MustCall("GET", "/v1/admin/nodes", nil, &of)
		for _, node := range of.Nodes {
			if node.ID == name {
				return node.State
			}
		}
		return ""
	}
	b.goTo("operate")
	b.awaitText("[data-drain=n2]", "alive")
	b.shoot("operate")
	b.click("main button", "Drain n2")
	b.awaitText("dialog", "hands over")
	b.shoot("drain")
	b.click("dialog button", "Cancel")
	b.await("!document.querySelector('dialog')")
	if state := stateOf("n2"); state != "active" {
		t.Errorf("n2 is %s after Cancel", state)
	}
	b.click("main button", "Drain n2")
	b.click("dialog button", "Drain it")
	b.await("document.querySelector('[data-drain=n2]').textContent !== 'alive'")
	if state := stateOf("n2"); state != "draining" {
		t.Errorf("n2 is %s after the drain", state)
	}
	b.await("document.querySelector('tr:has([data-drain=n2]) td:nth-child(3)').textContent === '0'")
	b.goTo("home")
	b.awaitText("[data-code=node_draining] .advice", "countctl node undrain")
	checkWarnings(t, b, n)
	b.goTo("operate")
	b.click("main button", "Undrain n2")
	b.click("dialog button", "Undrain it")
	b.awaitText("[data-drain=n2]", "alive")

	b.click("main button", "Hold …")
	b.click("dialog button", "Hold it")
	var version struct {
		Version uint32 `json:"version"`
	}
	n.MustCall("GET", "/v1/admin/version", nil, &version)
	b.awaitText("main", fmt.Sprintf("Cluster version %d, held", version.Version))
	checkWarnings(t, b, n)
	b.click("main button", "Release …")
	b.click("dialog button", "Release it")
	b.await("!document.querySelector('main').textContent.includes('held')")

	var groups struct{ Groups []admin.ClusterGroup }
	n.MustCall("GET", "/v1/admin/groups", nil, &groups)
	g := groups.Groups[1]
	name := fmt.Sprintf("%s/%d", g.Keyspace, g.Shard)
	to := "n1"
	if g.Leader == to {
		to = "n3"
	}
	b.click("main button", "Transfer "+name)
	b.fill("to", to)
	b.click("dialog button", "Transfer it")
	b.awaitText("#said", fmt.Sprintf("%s leads %s", to, name))

	b.click("main button", "Create a user …")
	b.fill("name", "web")
	b.fill("role", "writer")
	b.fill("keyspaces", "posts, users")
	b.click("dialog button", "Create it")
	b.click("main button", "New token for web")
	b.click("dialog button", "Make it")
	b.await("/^ctd_k/.test(document.querySelector('dialog code')?.textContent ?? '')")
	b.click("dialog button", "Close")
	b.shoot("users")
	var users struct{ Users []admin.User }
	n.MustCall("GET", "/v1/users", nil, &users)
	if len(users.Users) != 1 || users.Users[0].Grants[0].Role != "writer" || strings.Join(users.Users[0].Grants[0].Keyspaces, ",") != "posts,users" || len(users.Users[0].Tokens) != 1 {
		t.Fatalf("the API has %+v", users)
	}
	b.click("main button", fmt.Sprintf("Revoke token %s of web", users.Users[0].Tokens[0].ID))
	b.click("dialog button", "Revoke it")
	b.await("!document.querySelector('dialog')")
	b.click("main button", "Delete web")
	b.click("dialog button", "Delete it")
	b.awaitText("main", "There is no user.")
}

func checkRunbook(t *testing.T, b *browser) {
	b.goTo("runbook/disk_full")
	b.await("document.activeElement?.textContent === 'disk_full'")
	b.shoot("runbook")
	// Each code that the console may show has a section.
	missing := evaluate[string](b, `Promise.all([import('./runbook.js'), fetch('warnings.js').then(a => a.text())]).then(async ([{sections, adviceOf}, source]) => {
		const all = await sections();
		const codes = [...source.matchAll(/(?:code: |warn\()'([a-z_]+)'/g)].map(m => m[1]);
		return [codes.length > 20 ? '' : 'only ' + codes.length, ...codes.filter(code => adviceOf(all, {code})?.[0]?.localName !== 'pre')].join(' ').trim();
	})`)
	if missing != "" {
		t.Errorf("the runbook has no section for %s", missing)
	}
}

// checkKeyboard checks that each control can be reached and has a name, in each page.
func checkKeyboard(t *testing.T, b *browser) {
	for _, page := range []string{"home", "keyspaces", "row/posts/7/like", "hot/posts/like", "user/7", "sources", "operate"} {
		b.goTo(page)
		b.await("!!document.querySelector('main h1') && !document.querySelector('main').textContent.includes('Asking the node')")
		found := evaluate[string](b, `(() => {
			const problems = [];
			for (const e of document.querySelectorAll('a, button, input, select, summary')) {
				const name = e.getAttribute('aria-label') ?? (e.labels?.[0] ?? e).textContent.trim();
				if (name === '') problems.push('no name: ' + e.outerHTML);
				if (e.tabIndex < 0) problems.push('not reached: ' + e.outerHTML);
			}
			if (document.querySelectorAll('h1').length !== 1) problems.push(document.querySelectorAll('h1').length + ' headings of the page');
			if (document.querySelectorAll('nav a[aria-current=page]').length !== 1) problems.push('the page has no place in the navigation');
			const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
			if (wide > 0) problems.push('wider than the window by ' + wide);
			return problems.join('; ');
		})()`)
		if found != "" {
			t.Errorf("%s: %s", page, found)
		}
		b.emulate("light", 400)
		if wide := evaluate[int](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide > 0 {
			t.Errorf("%s: wider than a phone by %d px", page, wide)
		}
		b.emulate("light", 1200)
	}
}

func checkDeadNode(t *testing.T, b *browser, nodes []*proctest.Node) {
	b.goTo("home")
	b.awaitText("tr:has([data-node=n3]) .state", "well")
	nodes[2].Kill()
	b.await("document.querySelector('[data-node=n3]').closest('tr').querySelector('.state').dataset.state !== 'alive'")
	b.awaitText("[data-test=verdict]", "Not well")
	b.await("!!document.querySelector('[data-code=node_dead] .advice p') && !!document.querySelector('[data-code=group_degraded]')")
	checkWarnings(t, b, nodes[0])
	b.shoot("dead")
	nodes[2].StartReady()
	b.awaitText("[data-test=verdict]", "All is well")
}

func checkOwnNode(t *testing.T, b *browser, nodes []*proctest.Node) {
	nodes[0].Signal(syscall.SIGSTOP)
	b.awaitText("#banner", "n1 does not answer")
	nodes[0].Signal(syscall.SIGCONT)
	b.await("document.querySelector('#banner').textContent === ''")
	b.awaitText("[data-test=verdict]", "All is well")
	nodes[0].Kill()
	b.awaitText("#banner", "n1 does not answer")
	b.awaitText("#banner", "open the console of n")
	b.awaitText("[data-test=verdict]", "Not known")
	if *screens != "" {
		b.click("#banner button", "Stay here")
		b.shoot("own")
	}
	b.mu.Lock()
	b.origin = ""
	b.mu.Unlock()
	if *screens != "" {
		b.click("#banner a", "open the console of n2")
	}
	b.await(fmt.Sprintf("['%s', '%s'].includes(location.host) && document.querySelector('[data-test=verdict]') !== null", nodes[1].Addr, nodes[2].Addr))
}

// writeToken writes a root token to a file, and returns both.
func writeToken(t *testing.T) (file, token string) {
	t.Helper()
	token = "ctd_root_" + strings.Repeat("7", 64)
	file = filepath.Join(t.TempDir(), "root")
	must.Do(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	return file, token
}
