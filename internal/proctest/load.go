package proctest

import (
	crand "crypto/rand"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/countd/countd/internal/must"
)

const (
	opsOfWriteMax = 8
	loadIDs       = 300 // number of ids, in all shards together
	loadHotIDs    = 4   // number of ids that receive half of the ops
	// finishTimeout bounds the time from the begin of a write to its answer once the load is being
	// stopped.
	finishTimeout = must.BecomeMax
	// RequestDeadline is how long a client of a load waits. A request whose tries together take
	// longer has failed, unless the machine itself stalled meanwhile. The API has the same default.
	RequestDeadline = 5 * time.Second
)

// Load consists of writers that increment through all nodes of a cluster, the clients of a History,
// and a watch of all replicas' digests. A writer repeats each write, under its key or number,
// through one node after the other until one acknowledges it. So the test knows the expected
// counts.
type Load struct {
	*crew
	History *History
	cluster *Cluster
	digests *digests
	ids     []string
	pace    time.Duration
	stalls  stalls

	mu struct {
		sync.Mutex
		counted  map[cell]int64 // expected counts: the sums of the answered writes
		requests []Request      // answered, in the order of their answers
	}
}

type cell struct{ keyspace, id, column string }

// Request is the outcome of one answered request, as its client sees it.
type Request struct {
	Begun  time.Time
	Took   time.Duration // time from the first try to the answer
	Failed []FailedTry
}

// FailedTry is a failed try of a request.
type FailedTry struct {
	Node, Why string
	Took      time.Duration
}

func (t FailedTry) String() string {
	return fmt.Sprintf("%s: %s after %v", t.Node, t.Why, round(t.Took))
}

// StartLoad starts a number of writers, the same number of clients of a history, and the watch.
// Each writer begins at most one request per pace.
func (c *Cluster) StartLoad(clients int, pace time.Duration) *Load {
	c.t.Helper()
	l := &Load{crew: newCrew(c.t), cluster: c, digests: c.watchDigests(), pace: pace}
	l.History = c.startHistory(l.crew, clients, pace)
	l.mu.counted = map[cell]int64{}
	for range loadIDs {
		l.ids = append(l.ids, strconv.FormatUint(rand.Uint64(), 10))
	}
	dir := c.t.TempDir()
	l.work(func() error { return l.stalls.watch(l.calm, dir) })
	for number := range clients {
		w := &loadWriter{load: l, number: number, producer: crand.Text(), own: strconv.FormatUint(rand.Uint64(), 10)}
		l.work(w.run)
	}
	return l
}

// End stops the load and checks at the given nodes that
//
//  1. all replicas of a group become equal, and never differed at one index;
//  2. each count is the sum of the acknowledged writes, as every node reads it;
//  3. one order explains all answers of the history.
//
// It returns how long it took until the replicas were equal.
func (l *Load) End(nodes ...*Member) (alike time.Duration) {
	l.t.Helper()
	l.Stop()
	alike = l.cluster.AwaitAgreement(nodes...)
	l.checkCounts(nodes)
	l.History.check()
	l.digests.check()
	return alike
}

func (l *Load) checkCounts(nodes []*Member) {
	l.t.Helper()
	const wrongShownMax = 10
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.requests) == 0 {
		l.t.Fatal("no write was ever answered")
	}
	ids := map[string]map[string]bool{}
	for c := range l.mu.counted {
		if ids[c.keyspace] == nil {
			ids[c.keyspace] = map[string]bool{}
		}
		ids[c.keyspace][c.id] = true
	}
	wrong := 0
	for _, n := range nodes {
		for keyspace, of := range ids {
			for _, r := range n.Rows(keyspace, slices.Sorted(maps.Keys(of))) {
				for column, got := range r.Counts {
					if want := l.mu.counted[cell{keyspace, r.ID, column}]; got != want {
						if wrong++; wrong <= wrongShownMax {
							l.t.Errorf("%s reads %s %s, %s: %d, want %d", n.Name, keyspace, r.ID, column, got, want)
						}
					}
				}
			}
		}
	}
	if wrong > 0 {
		l.t.Errorf("%d counts are wrong", wrong)
	}
}

// loadWriter is a writer of a Load. It sends one request after the other.
type loadWriter struct {
	load     *Load
	number   int
	producer string
	seq      uint64
	own      string // an id that no other writer uses
	ownSum   int64
}

// run writes until the load is stopped. It returns an error if an answer is wrong.
func (w *loadWriter) run() error {
	nodes := w.load.cluster.Nodes()
	node := nodes[w.number%len(nodes)]
	tick := time.NewTicker(w.load.pace)
	defer tick.Stop()
	for {
		select {
		case <-w.load.calm.Done():
			return nil
		case <-tick.C:
		}
		ops := w.draw()
		token, last, err := w.write(node, ops)
		if err != nil {
			return err
		}
		nodes = w.load.cluster.Nodes()
		node = after(nodes, last)
		if rand.IntN(8) == 0 {
			if err := w.readOwn(nodes[rand.IntN(len(nodes))], token); err != nil {
				return err
			}
		}
	}
}

type op struct {
	ID  string           `json:"id"`
	Add map[string]int64 `json:"add"`
}

// draw returns the ops of a request. The first op is on the writer's own id.
func (w *loadWriter) draw() []op {
	ops := make([]op, 1+rand.IntN(opsOfWriteMax))
	for i := range ops {
		pool := w.load.ids
		if rand.IntN(2) == 0 {
			pool = pool[:loadHotIDs]
		}
		ops[i] = op{pool[rand.IntN(len(pool))], map[string]int64{"like": 1 + rand.Int64N(3), "view": rand.Int64N(9000) - 1000}}
	}
	ops[0].ID = w.own
	return ops
}

// identity returns the headers of the writer's next request: its producer and number, or a key.
func (w *loadWriter) identity() http.Header {
	if rand.IntN(2) == 0 {
		return http.Header{"Idempotency-Key": {crand.Text()}}
	}
	w.seq++
	return http.Header{"Countd-Producer": {w.producer}, "Countd-Seq": {strconv.FormatUint(w.seq, 10)}}
}

// write repeats a request until it is answered, first at the given node and then at the others in
// turn. It returns the token of the answer and the node that answered.
func (w *loadWriter) write(node *Member, ops []op) (token string, last *Member, err error) {
	r := &request{method: http.MethodPost, path: "/v1/counters/posts/incr", header: w.identity(), body: map[string]any{"ops": ops}}
	seen := Request{Begun: time.Now()}
	for {
		var a answer
		try := node.try(w.load.ctx, r, tryTimeout, &a)
		switch try.fate {
		case done:
			seen.Took = time.Since(seen.Begun)
			w.load.count(ops, seen)
			w.ownSum += ops[0].Add["like"]
			return a.Token, node, nil
		case wrong:
			return "", nil, fmt.Errorf("a good write to %s was answered %s", node.Name, try.why)
		}
		seen.Failed = append(seen.Failed, FailedTry{node.Name, try.why, try.took})
		if w.load.ctx.Err() != nil || w.load.calm.Err() != nil && time.Since(seen.Begun) > finishTimeout {
			return "", nil, fmt.Errorf("a write found no answer in %v: %v", time.Since(seen.Begun).Round(time.Millisecond), seen.Failed)
		}
		time.Sleep(tryPause)
		node = after(w.load.cluster.Nodes(), node)
	}
}

// count records an answered request.
func (l *Load) count(ops []op, r Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.requests = append(l.mu.requests, r)
	for _, o := range ops {
		for column, n := range o.Add {
			l.mu.counted[cell{"posts", o.ID, column}] += n
		}
	}
}

// readOwn reads the writer's own id at a node, with the token of the last write. The count must be
// exact, because no other writer uses the id.
func (w *loadWriter) readOwn(node *Member, token string) error {
	r := &request{method: http.MethodGet, path: "/v1/counters/posts/" + w.own + "?consistency=stale", header: http.Header{"Countd-Token": {token}}, body: nil}
	var a answer
	try := node.try(w.load.ctx, r, tryTimeout, &a)
	if try.fate == wrong {
		return fmt.Errorf("a good read at %s was answered %s", node.Name, try.why)
	}
	if try.fate == done && a.Counts["like"] != w.ownSum {
		return fmt.Errorf("%s read %d with a token of the write that made it %d", node.Name, a.Counts["like"], w.ownSum)
	}
	return nil
}
