package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

func textID(t *testing.T, text string) client.ID {
	t.Helper()
	id, err := client.ParseID(text)
	must.Do(t, err)
	return id
}

// TestKillTextIDs kills each node again and again while writers, at all nodes, count new and known
// texts. Each writer repeats a write under its key until the write is acknowledged. Then
//
//  1. no text has two numbers: each has all its counts;
//  2. no two texts have one number: none has counts of another, and a scan has each text once;
//  3. the same is so of members, which are users;
//  4. all replicas agree.
func TestKillTextIDs(t *testing.T) {
	beside(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := proctest.NewCluster(t, bin, proctest.Options{Shards: oneShard, Args: []string{"--ids=users=text", "--feed-idle=1s"}})
	c.Nodes()[0].MustCtl("keyspace", "create", "articles", "--columns", "like,view", "--ids", "text")
	const writers = 6
	rounds := short(3, 15)
	want := map[string]int64{}
	members := map[string]map[string]bool{}
	var mu sync.Mutex
	stop := make(chan struct{})
	var writing sync.WaitGroup
	for w := range writers {
		rnd := rand.New(rand.NewPCG(seed, uint64(w)))
		db := clientOf(t, c.Nodes()...)
		writing.Go(func() { // ends when stop is closed
			for {
				select {
				case <-stop:
					return
				default:
				}
				var ops []client.Op
				for range 1 + rnd.IntN(5) {
					text := fmt.Sprintf("%08x-0000-4000-8000-%012d", rnd.IntN(3000), rnd.IntN(2)) // all writers meet the same new texts
					if rnd.IntN(4) == 0 {
						text = fmt.Sprintf("slug/%d:ü", rnd.IntN(2000))
					}
					id, err := client.ParseID(text)
					if err != nil {
						t.Error(err)
						return
					}
					ops = append(ops, client.Op{ID: id, Cells: client.Counts{client.Delta("view", 1+rnd.Int64N(9))}})
				}
				if _, err := db.IncrMany(t.Context(), "articles", ops, client.WriteOptions{}); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				user := fmt.Sprintf("user %d", rnd.IntN(500))
				member, err := client.ParseID(user)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := db.Members("articles", "like").Add(t.Context(), ops[0].ID, member); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				mu.Lock()
				for _, op := range ops {
					want[op.ID.String()] += op.Cells[0].Value
				}
				article := ops[0].ID.String()
				if members[article] == nil {
					members[article] = map[string]bool{}
				}
				members[article][user] = true
				mu.Unlock()
			}
		})
	}
	rnd := rand.New(rand.NewPCG(seed, writers))
	for round := range rounds {
		time.Sleep(time.Duration(rnd.Int64N(int64(500 * time.Millisecond))))
		victim := c.Nodes()[round%len(c.Nodes())]
		victim.Kill()
		time.Sleep(time.Duration(rnd.Int64N(int64(300 * time.Millisecond))))
		victim.Start()
		c.AwaitReady(c.Nodes()...)
	}
	close(stop)
	writing.Wait()
	c.AwaitAgreement(c.Nodes()...)
	if t.Failed() {
		return
	}
	db := clientOf(t, c.Nodes()...)
	seen := map[string]bool{}
	for cursor := ""; ; {
		page, err := db.Scan(t.Context(), "articles", cursor, 500, nil, linearizableRead)
		must.Do(t, err)
		for _, row := range page.Rows {
			text := row.ID.String()
			view, _ := row.Counts.Get("view")
			if like, _ := row.Counts.Get("like"); view != want[text] || like != int64(len(members[text])) || seen[text] {
				t.Errorf("%q has %d views, want %d, and %d likes, want %d; seen before: %v", text, view, want[text], like, len(members[text]), seen[text])
			}
			seen[text] = true
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if len(seen) != len(want) || len(want) < 20 {
		t.Errorf("%d texts were written, and a scan has %d", len(want), len(seen))
	}
	for article, users := range members {
		var got []string
		for cursor := ""; ; {
			page, err := db.Members("articles", "like").List(t.Context(), textID(t, article), cursor, 500, linearizableRead)
			must.Do(t, err)
			for _, member := range page.Members {
				got = append(got, member.Member.String())
				if !users[member.Member.String()] {
					t.Errorf("%q has the member %q", article, member.Member)
				}
			}
			if cursor = page.Cursor; cursor == "" {
				break
			}
		}
		if slices.Sort(got); len(slices.Compact(got)) != len(users) {
			t.Errorf("%q has the members %q, want %d", article, got, len(users))
		}
	}
	t.Logf("%d texts", len(want))
}

// TestBackupOfTextIDs backs up keyspaces whose ids are texts, and restores them:
//
//  1. a new cluster has the same texts, counts and digests;
//  2. restoring again, also of one keyspace, over what is there keeps the names;
//  3. a restore refuses a cluster whose texts have other numbers, and clusters or keyspaces whose ids
//     are numbers, and changes no count there.
func TestBackupOfTextIDs(t *testing.T) {
	long(t)
	beside(t)
	start := func(args ...string) *proctest.Member {
		n := &proctest.Member{Node: proctest.NewNode(t, bin, t.TempDir(), args...)}
		n.StartReady()
		return n
	}
	create := []string{"keyspace", "create", "articles", "--columns", "view", "--ids", "text"}
	from := start("--ids=users=text,posts=text")
	from.MustCtl(create...)
	from.MustCtl("incr", "ä b", "view=3", "--keyspace", "articles")
	from.MustCtl("incr", "0f8fad5b-d9cb-469f-a165-70867728950e", "view=4", "--keyspace", "articles")
	from.MustCtl("incr", "p1", "like=5", "--keyspace", "posts")
	from.MustCtl("incr", "ann", "followers=6", "--keyspace", "users")
	dir := filepath.Join(t.TempDir(), "backup")
	from.MustCtl("backup", dir)

	views := func(n *proctest.Member, keyspace, text, column string) int64 {
		t.Helper()
		return n.Rows(keyspace, []string{text})[0].Counts[column]
	}
	to := start("--ids=users=text,posts=text")
	check := func(when string) {
		t.Helper()
		if a, b, p, u := views(to, "articles", "ä b", "view"), views(to, "articles", "0f8fad5b-d9cb-469f-a165-70867728950e", "view"), views(to, "posts", "p1", "like"), views(to, "users", "ann", "followers"); a != 3 || b != 4 || p != 5 || u != 6 {
			t.Errorf("%s: %d, %d, %d, %d", when, a, b, p, u)
		}
	}
	to.MustCtl("restore", dir)
	check("restored")
	for _, keyspace := range []string{"articles", "articles@ids", "users@ids", "posts@ids"} {
		want, got := from.Cluster().Digests(keyspace), to.Cluster().Digests(keyspace)
		if fmt.Sprint(want) != fmt.Sprint(got) || len(want) == 0 {
			t.Errorf("digests of %s: %v, want %v", keyspace, got, want)
		}
	}
	to.MustCtl("incr", "new", "view=9", "--keyspace", "articles")
	to.MustCtl("incr", "ä b", "view=9", "--keyspace", "articles")
	to.MustCtl("restore", dir, "--force", "--yes", "--keyspace", "articles")
	check("one keyspace restored again")
	to.MustCtl("incr", "newer", "view=1", "--keyspace", "articles")
	if n := views(to, "articles", "newer", "view"); n != 1 {
		t.Errorf("a later text has %d views", n)
	}

	other := start("--ids=users=text,posts=text")
	other.MustCtl(create...)
	other.MustCtl("incr", "first", "view=1", "--keyspace", "articles")
	refusesCtl(t, other, 1, "texts have other numbers", "restore", dir, "--force", "--yes")
	if n := views(other, "articles", "first", "view"); n != 1 {
		t.Errorf("after a refused restore: %d views", n)
	}
	refusesCtl(t, start(), 1, "formed with --ids users=text", "restore", dir)
	numbers := start("--ids=users=text,posts=text")
	numbers.MustCtl("keyspace", "create", "articles", "--columns", "view")
	refusesCtl(t, numbers, 1, "drop it in the cluster", "restore", dir)
}
