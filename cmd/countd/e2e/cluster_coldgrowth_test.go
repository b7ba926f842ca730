package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	sharesYoung      = 5_000 // number of rows too young for the order that moves rows to disk
	sharesWriters    = 6
	sharesPace       = 5 * time.Millisecond
	sharesWritten    = 300       // a writer writes to one old row in so many; so few changed rows cause no fold of their own
	sharesEpoch      = 515483463 // layout weibo: an id is the seconds since then, shifted by sharesShift bits
	sharesShift      = 22
	sharesWrongShown = 10
)

// TestColdGrowth multiplies the one shard of posts by 3, in the long form twice, while most rows are on disk, rows in
// memory and on disk are written and deleted, and nodes are killed with kill -9. Rows move to disk by order only, and
// the parts share those on disk until each node, once a minute, writes them again. The test checks:
//
//  1. most rows are on disk before the growth and after it;
//  2. each count is the sum of the answered writes since the last delete, as each node reads it, and the replicas agree:
//     after the growth, after a kill of all nodes, after replicas of the parent and a child have moved to another node,
//     and after each part has written the rows on disk for itself;
//  3. each part does this, and no scrub finds damage.
func TestColdGrowth(t *testing.T) {
	long(t)
	beside(t)
	c := proctest.NewCluster(t, bin, proctest.Options{Shards: oneShard, Args: []string{"--cold-after=0", "--scrub-every=1s"}})
	g := &coldGrowth{t: t, c: c, old: short(coldRows, 6*coldRows)}
	g.fill()
	g.migrate()
	g.onDisk(1)
	for from := 1; from < short(3, 9); from *= 3 {
		g.whileWriting(func() { g.growUnderKills(from) })
		if g.shared() == 0 {
			t.Error("the parts share no rows on disk")
		}
		g.check("grown")
		g.onDisk(3 * from)
		for _, n := range c.Nodes() {
			n.Kill()
		}
		for _, n := range c.Nodes() {
			n.Start()
		}
		g.check("killed")
		if from == 1 {
			c.Add()
		}
		g.whileWriting(func() { g.moveReplicas(0, from) })
		g.check("moved")
		g.migrate()
		eventually(t, "each part has written the rows on disk for itself", func() bool { return g.shared() == 0 })
		g.check("written for each part")
	}
	for _, n := range c.Nodes() {
		n.Kill()
		n.StartReady()
	}
	g.check("killed again")
	g.scrubbed()
}

// coldGrowth is a run of TestColdGrowth. Only writer i % sharesWriters writes to row i, so want is exact.
type coldGrowth struct {
	t        *testing.T
	c        *proctest.Cluster
	old      int // number of rows of old posts; those of young posts follow
	ids      []string
	want     []int64 // by row
	requests atomic.Int64
	answered atomic.Int64
}

func (g *coldGrowth) node() *proctest.Node { return g.c.Nodes()[rand.IntN(len(g.c.Nodes()))].Node }

// fill writes all rows. Ids of all parts are side by side.
func (g *coldGrowth) fill() {
	g.t.Helper()
	young := uint64(time.Now().Add(-time.Hour/6).Unix()-sharesEpoch) << sharesShift
	for i := range g.old + sharesYoung {
		id := 3342819171543700 + uint64(i)<<20
		if i >= g.old {
			id = young + uint64(i)
		}
		g.ids, g.want = append(g.ids, strconv.FormatUint(id, 10)), append(g.want, 1+int64(i%1000))
	}
	const page = 5_000
	for from := 0; from < len(g.ids); from += page {
		ops := make([]op, page)
		for i := range ops {
			ops[i] = op{g.ids[from+i], map[string]int64{"comment": g.want[from+i]}}
		}
		writeRows(g.t, g.c.Nodes()[0], ops)
	}
	g.c.AwaitAgreement(g.c.Nodes()...)
}

// migrate orders that rows of old posts move to disk.
func (g *coldGrowth) migrate() {
	g.t.Helper()
	done := ctlJSON[coldOrdered](g.t, g.c.Nodes()[0].Node, "cold", "migrate", "posts", "--older-than", "1h")
	if !done.Done {
		g.t.Fatalf("%+v", done)
	}
	g.t.Logf("rows written to disk: %+v", done.Nodes)
}

// shared returns the bytes on disk that parts share, of all replicas together.
func (g *coldGrowth) shared() (bytes float64) {
	g.t.Helper()
	for _, n := range g.c.Nodes() {
		bytes += metricOf(g.t, n.Text("/metrics"), "countd_cold_shared_bytes")
	}
	return bytes
}

// onDisk checks that posts has so many shards, and that most rows of all replicas together are on disk. A new replica
// that has applied the log from its beginning has none there.
func (g *coldGrowth) onDisk(shards int) {
	g.t.Helper()
	seen, all, cold := map[int]bool{}, uint64(0), uint64(0)
	for _, n := range g.c.Nodes() {
		for _, r := range n.Cluster().Groups {
			if r.Keyspace == "posts" {
				seen[r.Shard], all, cold = true, all+r.Rows, cold+r.ColdRows
				g.t.Logf("%s has %d of %d rows of shard %d on disk", n.Name, r.ColdRows, r.Rows, r.Shard)
			}
		}
	}
	if len(seen) != shards || cold < all/2 {
		g.t.Errorf("posts has %d shards with %d of %d rows on disk, want %d and most", len(seen), cold, all, shards)
	}
}

// whileWriting runs f while all writers write.
func (g *coldGrowth) whileWriting(f func()) {
	g.t.Helper()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for writer := range sharesWriters {
		writers.Go(func() { // ends once f has returned
			for {
				select {
				case <-stop:
					return
				case <-time.After(sharesPace):
				}
				if err := g.write(writer); err != nil {
					g.t.Error(err)
					return
				}
				g.answered.Add(1)
			}
		})
	}
	defer writers.Wait()
	defer close(stop)
	f()
}

// write adds to some rows of a writer, or deletes one. It repeats the request until it is answered.
func (g *coldGrowth) write(writer int) error {
	row := func() int {
		if rand.IntN(3) == 0 {
			return rand.IntN(g.old/sharesWritten)*sharesWritten + writer
		}
		i := g.old + rand.IntN(sharesYoung-sharesWriters)
		return i + (writer+sharesWriters-i%sharesWriters)%sharesWriters
	}
	key := fmt.Sprint("growth ", g.requests.Add(1))
	if rand.IntN(10) == 0 {
		i := row()
		g.want[i] = 0
		return once(g.t.Context(), g.node, http.MethodDelete, "/v1/counters/posts/"+g.ids[i], key, nil, nil)
	}
	var ops []op
	for range 1 + rand.IntN(opsOfRequestMax) {
		i, n := row(), 1+rand.Int64N(5000)
		g.want[i] += n
		ops = append(ops, op{g.ids[i], map[string]int64{"comment": n}})
	}
	return once(g.t.Context(), g.node, http.MethodPost, "/v1/counters/posts/incr", key, map[string]any{"ops": ops, "want": "none"}, nil)
}

// growUnderKills multiplies the shards of posts by 3, and kills nodes meanwhile and once afterwards.
func (g *coldGrowth) growUnderKills(from int) {
	g.t.Helper()
	grown := make(chan struct{})
	began := time.Now()
	go func() { // ends once the keyspace has grown; the loop below waits for it
		defer close(grown)
		grow(g.t, g.c, "posts", from)
	}()
	killed := 0
	for growing := true; growing; {
		select {
		case <-grown:
			growing = false
		case <-time.After(time.Duration(rand.Int64N(int64(time.Second)))):
			if killed < short(3, 10) { // then the growth goes on without kills
				g.kill()
				killed++
			}
		}
	}
	g.t.Logf("posts has %d shards after %v and %d kills", 3*from, time.Since(began).Round(time.Millisecond), killed)
	g.kill()
}

// kill kills a node and starts it again.
func (g *coldGrowth) kill() {
	g.t.Helper()
	n := g.node()
	n.Kill()
	before := g.answered.Load()
	eventually(g.t, "rows are written without the node that was killed", func() bool { return g.answered.Load() > before+50 })
	n.StartReady()
}

// moveReplicas moves a replica of each of some shards to the node that has none, and kills a node meanwhile.
func (g *coldGrowth) moveReplicas(shards ...int) {
	g.t.Helper()
	for _, shard := range shards {
		ordered := false
		eventually(g.t, "a replica has moved", func() bool {
			at := g.c.Nodes()[rand.IntN(len(g.c.Nodes()))]
			all := at.Placed()
			i := slices.IndexFunc(all, func(p proctest.Placed) bool { return p.Keyspace == "posts" && p.Shard == shard })
			if i < 0 || !all[i].Settled() {
				return false
			}
			if ordered {
				return true
			}
			var have, lack []*proctest.Member
			for _, n := range g.c.Nodes() {
				if slices.Contains(all[i].Target, n.Name) {
					have = append(have, n)
				} else {
					lack = append(lack, n)
				}
			}
			from := have[rand.IntN(len(have))]
			if ordered = at.OrderMove(all[i].ID, from, lack[0]) == ""; ordered {
				g.t.Logf("group %d of shard %d moves from %s to %s", all[i].ID, shard, from.Name, lack[0].Name)
				g.kill()
			}
			return false
		})
	}
}

// check compares all rows at each node with what was written.
func (g *coldGrowth) check(when string) {
	g.t.Helper()
	g.c.AwaitReady(g.c.Nodes()...)
	g.c.AwaitAgreement(g.c.Nodes()...)
	wrong := 0
	for _, n := range g.c.Nodes() {
		const page = 1000
		for from := 0; from < len(g.ids); from += page {
			var answer struct{ Results []proctest.Row }
			n.MustCall(http.MethodPost, "/v1/counters/posts/get?consistency=stale", map[string]any{"ids": g.ids[from:min(from+page, len(g.ids))]}, &answer)
			for i, r := range answer.Results {
				if got, want := r.Counts["comment"], g.want[from+i]; r.ID != g.ids[from+i] || got != want {
					if wrong++; wrong <= sharesWrongShown {
						g.t.Errorf("%s: %s reads %d of row %s, want %d", when, n.Name, got, r.ID, want)
					}
				}
			}
		}
	}
	if wrong > 0 {
		g.t.Fatalf("%s: %d counts are wrong", when, wrong)
	}
	g.c.Nodes()[0].MustCtl("verify")
	g.t.Logf("%s: all counts are exact after %d requests", when, g.answered.Load())
}

// scrubbed waits until each node has scrubbed its rows on disk, and fails the test if any are damaged.
func (g *coldGrowth) scrubbed() {
	g.t.Helper()
	eventually(g.t, "all rows on disk are scrubbed", func() bool {
		nodes := ctlJSON[coldStatus](g.t, g.c.Nodes()[0].Node, "cold", "status").Nodes
		done := len(nodes) == len(g.c.Nodes())
		for _, n := range nodes {
			done = done && n.Scrub.Passes > 0 && n.Scrub.Blocks > 0
			if n.Scrub.Damaged > 0 {
				g.t.Fatalf("%+v", n)
			}
		}
		return done
	})
}
