package proctest

import (
	crand "crypto/rand"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/countd/countd/internal/must"
)

const (
	historyColumn   = "view"
	opsOfIDMax      = 200 // number of ops after which clients stop using an id, because the cost of the check grows faster than the history
	unknownsOfIDMax = 4   // bound on ops of unknown outcome, because the check tries each of them at every later time
	checkTimeout    = must.BecomeMax
	boundedBy       = time.Second // default of max_staleness
	outsider        = 99          // the test's own client number in pictures, for its calls of Read
)

// History records the requests and answers of several clients. The clients read and write a few
// counts, one per shard, through all nodes. check searches for an order of all operations that
// explains every answer, with each operation at one moment between its begin and its end.
type History struct {
	*crew
	cluster *Cluster
	began   time.Time
	shards  uint64 // number of shards of posts
	first   uint64 // ids of the history are above this id

	mu struct {
		sync.Mutex
		next    uint64   // number of ids used so far
		ids     []uint64 // the ids in use now, by shard
		counts  map[uint64]*count
		answers map[string]int // number of answers, by kind of operation
	}
}

// count is the history of one count.
type count struct {
	ops      []porcupine.Operation
	unknowns int
}

func (c *Cluster) startHistory(crew *crew, clients int, pace time.Duration) *History {
	h := &History{crew: crew, cluster: c, began: time.Now()}
	h.shards = uint64(c.Shards("posts"))
	h.first, h.mu.ids = rand.Uint64N(1<<60)/h.shards*h.shards, make([]uint64, h.shards)
	h.mu.counts, h.mu.answers = map[uint64]*count{}, map[string]int{}
	for shard := range h.mu.ids {
		h.replaceLocked(shard)
	}
	for client := range clients {
		h.work(func() error { return h.run(client, pace) })
	}
	return h
}

// replaceLocked makes clients use a new id in the shard, and begins its history.
func (h *History) replaceLocked(shard int) {
	h.mu.next++
	id := h.first + h.mu.next*h.shards + uint64(shard)
	h.mu.ids[shard] = id
	h.mu.counts[id] = &count{}
}

// id returns the id that clients use now in a shard.
func (h *History) id(shard int) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.ids[shard]
}

// run sends operations, with pauses of half a pace on average, until the history is stopped. It
// returns an error if an answer is wrong.
func (h *History) run(client int, pace time.Duration) error {
	for h.calm.Err() == nil {
		nodes := h.cluster.Nodes()
		node, id := nodes[rand.IntN(len(nodes))], h.id(rand.IntN(int(h.shards)))
		var err error
		switch k := rand.IntN(20); {
		case k < 6:
			err = h.read(client, node, id, "linearizable")
		case k < 9:
			err = h.read(client, node, id, "bounded")
		case k < 11:
			err = h.write(client, node, id, asked{set, rand.Int64N(1 << 30)})
		default:
			err = h.write(client, node, id, asked{add, 1 + rand.Int64N(1<<20)})
		}
		if err != nil {
			return err
		}
		select {
		case <-h.calm.Done():
		case <-time.After(rand.N(pace)):
		}
	}
	return nil
}

func (h *History) now() int64 { return int64(time.Since(h.began)) }

// Read reads the current count of a shard of posts at one node, and records the answer. It returns
// an error if the answer is invalid.
func (h *History) Read(node *Member, shard int, consistency string) error {
	return h.read(outsider, node, h.id(shard), consistency)
}

// read reads an id at one node. A bounded read may return a state that is up to boundedBy old, so
// read records a begin that is earlier by boundedBy. It does not record a read without an answer.
func (h *History) read(client int, node *Member, id uint64, consistency string) error {
	r := &request{method: http.MethodGet, path: fmt.Sprintf("/v1/counters/posts/%d?consistency=%s", id, consistency)}
	call := h.now()
	var a answer
	try := node.try(h.ctx, r, tryTimeout, &a)
	switch try.fate {
	case wrong:
		return fmt.Errorf("a good read at %s was answered %s", node.Name, try.why)
	case done:
		if consistency == "bounded" {
			call -= int64(boundedBy)
		}
		h.record(id, consistency, operation(client, asked{verb: get}, call, told{true, a.Counts[historyColumn]}, h.now()))
	}
	return nil
}

// write runs one write. It gives most writes a key and repeats them until a node answers. A write
// without a key is sent only once.
func (h *History) write(client int, node *Member, id uint64, in asked) error {
	r := writeRequest(id, in)
	keyed := rand.IntN(4) > 0
	if keyed {
		r.header = http.Header{"Idempotency-Key": {crand.Text()}}
	}
	call := h.now()
	for {
		var a answer
		sent := h.now()
		try := node.try(h.ctx, r, tryTimeout, &a)
		switch {
		case try.fate == wrong:
			return fmt.Errorf("a good write to %s was answered %s", node.Name, try.why)
		case try.fate == done:
			h.answered(client, id, in, call, sent, &a)
			return nil
		case !keyed && try.fate == refused:
			return nil
		case !keyed || h.ctx.Err() != nil || h.calm.Err() != nil && h.now()-call > int64(finishTimeout):
			h.record(id, "without an answer", operation(client, in, call, told{}, math.MaxInt64))
			return nil
		}
		time.Sleep(tryPause)
		node = after(h.cluster.Nodes(), node)
	}
}

func writeRequest(id uint64, in asked) *request {
	if in.verb == set {
		return &request{
			method: http.MethodPut, path: fmt.Sprintf("/v1/counters/posts/%d", id),
			body: map[string]any{"set": map[string]int64{historyColumn: in.n}},
		}
	}
	o := op{strconv.FormatUint(id, 10), map[string]int64{historyColumn: in.n}}
	return &request{method: http.MethodPost, path: "/v1/counters/posts/incr", body: map[string]any{"ops": []op{o}}}
}

// answered records a write and its answer. If the answer has duplicate set, an earlier try applied
// the write. The count in the answer is then that of a read by the last try.
func (h *History) answered(client int, id uint64, in asked, call, sent int64, a *answer) {
	counts := a.Counts
	if len(a.Results) > 0 {
		counts = a.Results[0].Counts
	}
	now := h.now()
	out := told{true, counts[historyColumn]}
	if a.Duplicate {
		h.record(id, "repeated", operation(client, asked{verb: get}, sent, out, now))
		out = told{}
	}
	h.record(id, "written", operation(client, in, call, out, now))
}

func operation(client int, in asked, call int64, out told, end int64) porcupine.Operation {
	return porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end}
}

func (h *History) record(id uint64, kind string, o porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.answers[kind]++
	c := h.mu.counts[id]
	c.ops = append(c.ops, o)
	if o.Return == math.MaxInt64 {
		c.unknowns++
	}
	if len(c.ops) >= opsOfIDMax || c.unknowns >= unknownsOfIDMax {
		if shard := int(id % h.shards); h.mu.ids[shard] == id {
			h.replaceLocked(shard)
		}
	}
}

// check fails the test if no order explains the answers about a count, if the search for an order
// takes too long, or if the history has too few answers. In the first case it writes a picture of
// that count's history.
func (h *History) check() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	all := 0
	for id, c := range h.mu.counts {
		all += len(c.ops)
		switch result, info := porcupine.CheckOperationsVerbose(countModel, c.ops, checkTimeout); result {
		case porcupine.Illegal:
			h.t.Errorf("id %d, shard %d: no order explains the %d answers; see %s", id, id%h.shards, len(c.ops), h.picture(id, info))
		case porcupine.Unknown:
			h.t.Errorf("id %d: whether an order explains the %d answers was not found out in %v", id, len(c.ops), checkTimeout)
		}
	}
	if h.mu.answers["linearizable"] == 0 || h.mu.answers["written"] == 0 {
		h.t.Errorf("the history shows little: %v", h.mu.answers)
	}
	h.t.Logf("history: %d operations on %d ids: %v", all, len(h.mu.counts), h.mu.answers)
}

// picture draws a history that failed the check. It writes the picture to a file and returns the
// path.
func (h *History) picture(id uint64, info porcupine.LinearizationInfo) string {
	path := filepath.Join(h.t.ArtifactDir(), fmt.Sprintf("history-%d.html", id))
	if err := porcupine.VisualizePath(countModel, info, path); err != nil {
		return err.Error()
	}
	return path
}
