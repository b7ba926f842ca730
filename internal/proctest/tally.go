package proctest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

const (
	tallyColumn   = "repost"
	tallyWrongMax = 10 // bound on how many faults a test reports
)

// Tally is one count that a test increments and reads through nodes of its choice. Each increment
// adds one and is sent once. So the count must never be below the number of acknowledged
// increments, or above that number plus the increments of unknown outcome. Tally checks every
// answer against these bounds. Its methods may be called concurrently.
type Tally struct {
	t  testing.TB
	id string

	mu struct {
		sync.Mutex
		sent         int64
		refused      int64
		acknowledged int64
		by           map[*Member]int64 // number of acknowledged increments, by the called node
		wrong        []string
	}
}

// NewTally returns a tally for a new id in a shard of posts.
func (c *Cluster) NewTally(shard int) *Tally {
	shards := uint64(c.Shards("posts"))
	id := rand.Uint64N(1<<60)/shards*shards + uint64(shard)
	y := &Tally{t: c.t, id: strconv.FormatUint(id, 10)}
	y.mu.by = map[*Member]int64{}
	return y
}

// Add sends an increment through a node and reports whether it was acknowledged.
func (y *Tally) Add(n *Member, timeout time.Duration) bool {
	y.mu.Lock()
	before := y.mu.acknowledged
	y.mu.sent++
	y.mu.Unlock()
	r := &request{method: http.MethodPost, path: "/v1/counters/posts/incr", body: map[string]any{
		"ops": []op{{y.id, map[string]int64{tallyColumn: 1}}},
	}}
	var a answer
	try := n.try(y.t.Context(), r, timeout, &a)
	count := int64(0)
	if len(a.Results) > 0 {
		count = a.Results[0].Counts[tallyColumn]
	}
	y.added(n, before, try, count)
	return try.fate == done
}

// added checks the answer to an increment. acked is the number of increments that were acknowledged
// before this one was sent. The resulting count must be higher.
func (y *Tally) added(n *Member, acked int64, try outcome, count int64) {
	y.mu.Lock()
	defer y.mu.Unlock()
	switch try.fate {
	case refused:
		y.mu.refused++
	case wrong:
		y.noteLocked("%s answered a good increment with %s", n.Name, try.why)
	case done:
		y.mu.acknowledged++
		y.mu.by[n]++
		if count <= acked {
			y.noteLocked("%s acknowledged an increment with %d, when %d were acknowledged before it was sent", n.Name, count, acked)
		}
	}
}

// AddAll sends increments through the nodes in turn until count increments are acknowledged.
func (y *Tally) AddAll(count int, nodes ...*Member) {
	y.t.Helper()
	end := time.Now().Add(must.BecomeMax)
	for i := 0; count > 0; i++ {
		if y.Add(nodes[i%len(nodes)], tryTimeout) {
			count--
			continue
		}
		if time.Now().After(end) {
			y.t.Fatalf("%d increments are not acknowledged after %v", count, must.BecomeMax)
		}
		time.Sleep(tryPause)
	}
}

// Read sends a linearizable read through a node and reports whether an answer arrived.
func (y *Tally) Read(n *Member, timeout time.Duration) bool {
	y.mu.Lock()
	before := y.mu.acknowledged
	y.mu.Unlock()
	r := &request{method: http.MethodGet, path: "/v1/counters/posts/" + y.id + "?consistency=linearizable"}
	var a answer
	try := n.try(y.t.Context(), r, timeout, &a)
	y.read(n, before, try, a.Counts[tallyColumn])
	return try.fate == done
}

// read checks the answer to a linearizable read. before is the number of increments that were
// acknowledged before the read was sent.
func (y *Tally) read(n *Member, before int64, try outcome, count int64) {
	y.mu.Lock()
	defer y.mu.Unlock()
	switch most := y.mu.sent - y.mu.refused; {
	case try.fate == wrong:
		y.noteLocked("%s answered a good read with %s", n.Name, try.why)
	case try.fate != done:
	case count < before:
		y.noteLocked("a linearizable read at %s returned %d, when %d increments were acknowledged", n.Name, count, before)
	case count > most:
		y.noteLocked("a linearizable read at %s returned %d, of %d increments", n.Name, count, most)
	}
}

func (y *Tally) noteLocked(format string, args ...any) {
	y.mu.wrong = append(y.mu.wrong, fmt.Sprintf(format, args...))
}

// AcknowledgedBy returns how many increments the given nodes acknowledged.
func (y *Tally) AcknowledgedBy(nodes ...*Member) (sum int64) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, n := range nodes {
		sum += y.mu.by[n]
	}
	return sum
}

// Check reads the count at each of the nodes, and fails the test if any answer so far is out of
// bounds. There must be no other requests in the meantime.
func (y *Tally) Check(nodes ...*Member) {
	y.t.Helper()
	for _, n := range nodes {
		for end := time.Now().Add(must.BecomeMax); !y.Read(n, tryTimeout); time.Sleep(tryPause) {
			if time.Now().After(end) {
				y.t.Errorf("%s does not answer a linearizable read after %v", n.Name, must.BecomeMax)
				break
			}
		}
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	wrong := slices.Clone(y.mu.wrong)
	if len(wrong) > tallyWrongMax {
		wrong = append(wrong[:tallyWrongMax], fmt.Sprintf("and %d more", len(wrong)-tallyWrongMax))
	}
	for _, w := range wrong {
		y.t.Error(w)
	}
	y.mu.wrong = nil
}
