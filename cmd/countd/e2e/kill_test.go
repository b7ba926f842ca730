package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	writerCount     = 16
	opsOfRequestMax = 8
	hotIDs          = 4   // number of ids that receive half of the ops
	idCount         = 300 // number of ids, a third for each of three shapes
	wrongShownMax   = 10
)

// TestKillUnderWriters kills a node at random points under concurrent writers,
// round after round on one data directory. After each restart, for every id and
// column:
//
//  1. every acknowledged increment is in the count;
//  2. the count contains only acknowledged increments and increments of unknown outcome;
//  3. each check finds at least the counts of the previous check.
func TestKillUnderWriters(t *testing.T) {
	t.Parallel()
	eachLogStore(t, killUnderWriters)
}

func killUnderWriters(t *testing.T, logStore string) {
	rounds := *killRounds
	if testing.Short() {
		rounds = 2
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("%d rounds, seed %d", rounds, seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	n := proctest.NewNode(t, bin, t.TempDir(), logStore)
	l := newLedger()
	for round := range rounds {
		n.StartReady()
		l.check(t, n)
		w := startWriters(n, l)
		time.Sleep(time.Duration(rng.Int64N(int64(400 * time.Millisecond)))) // until a random point
		if round%5 == 4 {
			n.Stop() // writes snapshots, so that later starts read a snapshot and the log
		} else {
			n.Kill()
		}
		w.wait(t)
		if round%3 == 2 { // kill it once more while it recovers
			n.Start()
			n.WaitReady(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
			n.Kill()
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	n.StartReady()
	l.check(t, n)
	if l.acknowledged() == 0 {
		t.Fatal("no write was ever acknowledged")
	}
	t.Logf("%d requests acknowledged", l.acknowledged())
}

// cell is one count.
type cell struct{ id, column string }

// ledger holds the bounds of each count that follow from the writers' requests.
type ledger struct {
	ids []string

	mu struct {
		sync.Mutex
		least    map[cell]int64 // sums of acknowledged increments
		maybe    map[cell]int64 // increments of unknown outcome since the last check
		requests int            // number of acknowledged requests
	}
}

func newLedger() *ledger {
	l := &ledger{}
	l.mu.least, l.mu.maybe = map[cell]int64{}, map[cell]int64{}
	for i := range uint64(idCount) {
		// Small ids, real ids in time order, and ids that use all 64 bits.
		shapes := []uint64{i, 4467107636950632 + i<<22, 1<<64 - 1 - i*0x9e3779b97f4a7c15>>1}
		l.ids = append(l.ids, strconv.FormatUint(shapes[i%3], 10))
	}
	return l
}

func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.requests
}

// op is the JSON of one increment of the API.
type op struct {
	ID  string           `json:"id"`
	Add map[string]int64 `json:"add"`
}

func (l *ledger) randomOps() []op {
	ops := make([]op, 1+rand.IntN(opsOfRequestMax))
	for i := range ops {
		pool := l.ids
		if rand.IntN(2) == 0 {
			pool = l.ids[:hotIDs]
		}
		ops[i] = op{pool[rand.IntN(len(pool))], map[string]int64{
			"like": 1 + rand.Int64N(3),
			"view": 1 + rand.Int64N(5000), // grows beyond 16 bits within a round
		}}
	}
	return ops
}

// answered records the outcome of a request that the server answered. applied and unknown are the
// ids whose ops were applied or have an unknown outcome.
func (l *ledger) answered(ops []op, status int, applied, unknown []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch status {
	case http.StatusOK:
		l.mu.requests++
		l.noteLocked(l.mu.least, ops)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		// All ops of one id share a shard, so one outcome per id is enough.
		l.noteLocked(l.mu.least, only(ops, applied))
		l.noteLocked(l.mu.maybe, only(ops, unknown))
	default:
		return fmt.Errorf("a good write was answered with status %d", status)
	}
	return nil
}

// lost records a request without a complete answer: its outcome is unknown.
func (l *ledger) lost(ops []op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteLocked(l.mu.maybe, ops)
}

func (l *ledger) noteLocked(to map[cell]int64, ops []op) {
	for _, o := range ops {
		for column, n := range o.Add {
			to[cell{o.ID, column}] += n
		}
	}
}

func only(ops []op, ids []string) []op {
	in := map[string]bool{}
	for _, id := range ids {
		in[id] = true
	}
	var kept []op
	for _, o := range ops {
		if in[o.ID] {
			kept = append(kept, o)
		}
	}
	return kept
}

// check reads every id and compares the counts with the ledger. It then takes the counts as exact,
// because the process that could still have applied earlier requests is gone.
func (l *ledger) check(t *testing.T, n *proctest.Node) {
	t.Helper()
	rows := n.Rows("posts", l.ids)
	l.mu.Lock()
	defer l.mu.Unlock()
	wrong := 0
	for _, row := range rows {
		for column, got := range row.Counts {
			c := cell{row.ID, column}
			least, most := l.mu.least[c], l.mu.least[c]+l.mu.maybe[c]
			if got < least || got > most {
				if wrong++; wrong > wrongShownMax {
					continue
				}
				t.Errorf("id %s, %s: %d, want %d to %d", row.ID, column, got, least, most)
			}
			l.mu.least[c] = got
		}
	}
	clear(l.mu.maybe)
	if wrong > 0 {
		t.Errorf("%d counts are wrong", wrong)
	}
}

// writers send increments until the node is down.
type writers struct {
	ledger *ledger
	group  sync.WaitGroup
	mu     struct {
		sync.Mutex
		errs []error
	}
}

// startWriters starts writerCount goroutines that write until the node is down. The method wait
// waits for them.
func startWriters(n *proctest.Node, l *ledger) *writers {
	w := &writers{ledger: l}
	for range writerCount {
		w.group.Go(func() {
			if err := w.write(n); err != nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.mu.errs = append(w.mu.errs, err)
			}
		})
	}
	return w
}

func (w *writers) write(n *proctest.Node) error {
	for {
		ops := w.ledger.randomOps()
		var answer struct{ Applied, Unknown []string }
		status, err := n.Call(http.MethodPost, "/v1/counters/posts/incr", map[string]any{"ops": ops}, &answer)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil // the request never arrived
		}
		if err != nil {
			w.ledger.lost(ops)
			return nil
		}
		if err := w.ledger.answered(ops, status, answer.Applied, answer.Unknown); err != nil {
			return err
		}
	}
}

func (w *writers) wait(t *testing.T) {
	t.Helper()
	w.group.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.mu.errs {
		t.Error(err)
	}
}
