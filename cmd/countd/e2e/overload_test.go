package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

var overloadFor = flag.Duration("overload-for", 0, "how long TestOverload loads; 0 for a few seconds and few connections")

const (
	// overloadDeadline is the deadline of each request.
	overloadDeadline = 500 * time.Millisecond
	// overloadMemoryMax is far above the memory of the rows, the connections, the bounded queues
	// and the mapped files of the log. It is far below the memory that an unbounded queue would
	// take within a minute.
	overloadMemoryMax = 2 << 30
)

// benched has the fields of a countctl bench report that the test reads.
type benched struct {
	Requests          int64
	RequestsPerSecond float64 `json:"requests_per_second"`
	Increments        int64
	Errors            map[string]int64
	Failed, Refused   int64
	Resent, Unsent    int64
	LatencyUS         benchedLatency `json:"latency_us"`
	AnswerUS          benchedLatency `json:"answer_us"` // only with --rate
	Memory            struct {
		Before uint64 `json:"before_bytes"`
		Max    uint64 `json:"max_bytes"`
	} `json:"server_memory"`
	Check struct {
		Counted, Least, Most int64
		Holds                bool
	}
}

// benchedLatency holds latencies in microseconds.
type benchedLatency struct {
	P50, P99 float64
	P999     float64 `json:"p99_9"`
}

// bench runs countctl bench with numbered increments and --check. The check must succeed, but
// requests may fail.
func bench(t *testing.T, n *proctest.Node, args ...string) benched {
	t.Helper()
	var c *proctest.Ctl
	onOwnCPU(t, 1, func() {
		c = n.Ctl(append([]string{"bench", "--keyspace", "posts", "--op", "incr", "--dist", "uniform", "--ids", "100000", "--once", "--check", "--memory", "--yes", "-o", "json"}, args...)...)
	})
	var r benched
	if err := json.Unmarshal([]byte(c.Stdout), &r); err != nil {
		t.Fatalf("countctl %q: exit code %d, %v\n%s%s", args, c.Code, err, c.Stdout, c.Stderr)
	}
	if k := r.Check; !k.Holds {
		t.Errorf("countctl %q: the counts grew by %d, %d increments were acknowledged and %d may have been done", args, k.Counted, k.Least, k.Most-k.Least)
	}
	return r
}

// onOwnCPU runs f. With -overload-for, processes that f starts run only on the given CPU, so that
// the client takes no CPU time from the node.
func onOwnCPU(t *testing.T, cpu int, f func()) {
	t.Helper()
	if *overloadFor == 0 {
		f()
		return
	}
	if !onCPU(t, cpu, f) {
		t.Log("client and server share a CPU")
	}
}

// TestOverload offers a node twice the load of its best throughput.
//
//  1. Every acknowledged increment counts once. An increment that was not acknowledged may count
//     only if its outcome is still unknown after half a minute of repeats.
//  2. The excess is refused as overloaded, and nothing else goes wrong.
//  3. Memory stays bounded.
//
// The test prints the throughput and does not judge it, because the machine may be busy. Latencies
// count from the time of sending. While all connections wait for answers, the client cannot send
// requests that are due. The report counts them as not sent.
func TestOverload(t *testing.T) {
	long(t)
	duration, peakFor, connections, batches := 2*time.Second, time.Second/2, 128, []int{100}
	if *overloadFor > 0 {
		duration, peakFor, connections, batches = *overloadFor, max(*overloadFor/6, time.Second), 1024, []int{1, 100, 1000}
	}
	table := []string{
		"| increments a request | peak, requests/s | due/s | done/s | of peak | refused/s | not sent/s | p50 | p99 | p99.9 | RSS before | RSS at most |",
		"|---|---|---|---|---|---|---|---|---|---|---|---|",
	}
	for _, batch := range batches {
		n := proctest.NewNode(t, bin, t.TempDir())
		onOwnCPU(t, 0, n.StartReady)
		b := strconv.Itoa(batch)
		peak := 0.0
		for _, concurrency := range []int{connections / 16, connections / 4, connections} {
			r := bench(t, n, "--batch", b, "--concurrency", strconv.Itoa(concurrency), "--duration", peakFor.String())
			t.Logf("closed loop, %d increments a request, %d connections: %.0f requests/s, p99 %.0f µs, failed %v",
				batch, concurrency, r.RequestsPerSecond, r.LatencyUS.P99, r.Errors)
			peak = max(peak, r.RequestsPerSecond)
		}
		r := bench(t, n, "--batch", b, "--concurrency", strconv.Itoa(connections), "--duration", duration.String(),
			"--rate", fmt.Sprintf("%.0f", 2*peak), "--deadline", overloadDeadline.String())
		t.Logf("twice the peak: failed %v, sent again %d, not sent %d; p99 from when they were due %.0f ms", r.Errors, r.Resent, r.Unsent, r.LatencyUS.P99/1000)
		if r.Failed != r.Errors["overloaded"]+r.Errors["outcome_unknown"] || r.Refused < r.Errors["overloaded"] || r.Requests == 0 {
			t.Errorf("%d requests done, failed %v: what is not done is to be refused as overloaded", r.Requests, r.Errors)
		}
		if r.Memory.Max > overloadMemoryMax {
			t.Errorf("%d bytes of memory are bounded by nothing", r.Memory.Max)
		}
		ms := func(us float64) string { return fmt.Sprintf("%.0f ms", us/1000) }
		mb := func(n uint64) string { return fmt.Sprintf("%d MB", n/1e6) }
		table = append(table, fmt.Sprintf("| %d | %.0f | %.0f | %.0f | %.0f %% | %.0f | %.0f | %s | %s | %s | %s | %s |",
			batch, peak, 2*peak, r.RequestsPerSecond, 100*r.RequestsPerSecond/peak, float64(r.Refused)/duration.Seconds(), float64(r.Unsent)/duration.Seconds(),
			ms(r.AnswerUS.P50), ms(r.AnswerUS.P99), ms(r.AnswerUS.P999), mb(r.Memory.Before), mb(r.Memory.Max)))
		n.Stop()
	}
	t.Logf("%d connections, %v, %v deadline\n%s", connections, duration, overloadDeadline, strings.Join(table, "\n"))
}
