package load

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/nodetest"
)

// nth makes a server answer every n-th increment with a fault.
func nth(server *nodetest.Server, n int64, fault nodetest.Fault) {
	var seen atomic.Int64
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.Method != http.MethodPost || seen.Add(1)%n != 0 {
			return nil
		}
		return &fault
	}
}

// After each kind of fault, the counts on the server are within the bounds that the report gives.
func TestOutcomesBoundTheCounts(t *testing.T) {
	cases := []struct {
		name    string
		fault   nodetest.Fault
		refused int64 // expected Report.Refused of 10 requests
		unknown int64 // expected Report.UnknownOps of 20 increments
	}{
		{"refused", nodetest.Fault{Status: 429, Code: "overloaded"}, 5, 0},
		{"not ready", nodetest.Fault{Status: 503, Code: "no_leader"}, 5, 0},
		{"not countd's own", nodetest.Fault{Status: 503}, 0, 10},
		{"cut off", nodetest.Fault{Hang: true}, 0, 10},
		{"cut off when it was done", nodetest.Fault{Hang: true, After: true}, 0, 10},
		{"unknown and done", nodetest.Fault{Status: 504, Code: "outcome_unknown", After: true}, 0, 10},
		{"unknown and not done", nodetest.Fault{Status: 504, Code: "outcome_unknown"}, 0, 10},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			nth(server, 2, c.fault)
			cfg := configFor(t, server)
			cfg.Requests, cfg.Batch, cfg.Concurrency = 10, 2, 1
			r, err := Run(t.Context(), cfg)
			if err != nil || r.Failed != 5 || r.Refused != c.refused || r.UnknownOps != c.unknown || r.Increments != 10 {
				t.Fatalf("the report is %+v, %v", r, err)
			}
			if got := total(server, 100); got < r.Increments || got > r.Increments+r.UnknownOps {
				t.Fatalf("%d increments are on the server, the report says %d and %d unknown", got, r.Increments, r.UnknownOps)
			}
		})
	}
}

// With Once, a request of unknown outcome is repeated until the outcome is known. It counts once,
// whether the server applied all of the first try, a part or nothing.
func TestOnceLearnsEveryOutcome(t *testing.T) {
	for name, fault := range map[string]nodetest.Fault{
		"done":          {Hang: true, After: true},
		"not done":      {Status: 504, Code: "outcome_unknown"},
		"done in part":  {Status: 504, Code: "outcome_unknown", After: true, Shards: []int{0, 1}},
		"refused later": {Status: 503, Code: "overloaded", After: true, Shards: []int{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			server := nodetest.New(t)
			nth(server, 3, fault)
			cfg := configFor(t, server)
			cfg.Requests, cfg.Batch, cfg.Once = 60, 10, true
			r, err := Run(t.Context(), cfg)
			if err != nil || r.Requests != 60 || r.Failed != 0 || r.UnknownOps != 0 || r.Resent == 0 {
				t.Fatalf("the report is %+v, %v", r, err)
			}
			if got := total(server, 100); got != 600 {
				t.Fatalf("%d increments are on the server, 600 were acknowledged", got)
			}
		})
	}
}

func TestOnceLeavesRefusalsAlone(t *testing.T) {
	server := nodetest.New(t)
	nth(server, 2, nodetest.Fault{Status: 429, Code: "overloaded"})
	cfg := configFor(t, server)
	cfg.Requests, cfg.Once = 20, true
	r, err := Run(t.Context(), cfg)
	if err != nil || r.Requests != 10 || r.Refused != 10 || r.Errors["overloaded"] != 10 || r.Resent != 0 || total(server, 100) != 10 {
		t.Fatalf("the report is %+v, %v", r, err)
	}
}

func TestDeadlineIsSent(t *testing.T) {
	server := nodetest.New(t)
	var others atomic.Int64
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.Header.Get("Countd-Timeout") != "250ms" {
			others.Add(1)
		}
		return nil
	}
	cfg := configFor(t, server)
	cfg.Op, cfg.ReadShare, cfg.Requests, cfg.Deadline = Mixed, 0.5, 50, 250*time.Millisecond
	if _, err := Run(t.Context(), cfg); err != nil || others.Load() > 0 {
		t.Fatalf("%d requests without the deadline, %v", others.Load(), err)
	}
}

func TestMemoryIsWatched(t *testing.T) {
	server := nodetest.New(t)
	var looks atomic.Int64
	server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.URL.Path != "/metrics" {
			return nil
		}
		if looks.Add(1) == 1 {
			return &nodetest.Fault{Status: 200, Body: "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 1.5e+07\n"}
		}
		return &nodetest.Fault{Status: 200, Body: "process_resident_memory_bytes 4000\nprocess_resident_memory_bytes_more 1\n"}
	})
	cfg := configFor(t, server)
	cfg.Requests, cfg.Duration, cfg.Memory = 0, memoryEvery+time.Second, true
	r, err := Run(t.Context(), cfg)
	if err != nil || looks.Load() < 2 || *r.Memory != (Memory{15_000_000, 15_000_000}) {
		t.Fatalf("%d looks, %+v, %v", looks.Load(), r, err)
	}
	server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.URL.Path != "/metrics" {
			return nil
		}
		return &nodetest.Fault{Status: 404, Code: "not_found"}
	})
	cfg = configFor(t, server)
	cfg.Memory = true
	if r, err := Run(t.Context(), cfg); r != nil || err == nil {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestResidentBytes(t *testing.T) {
	for _, text := range []string{"", "process_resident_memory_bytes", "process_resident_memory_bytes x\n", "process_resident_memory_bytes -1\n", "process_resident_memory_bytes +Inf\n", "process_resident_memory_bytes NaN\n"} {
		if n, err := residentBytes([]byte(text)); err == nil {
			t.Errorf("%q is read as %d", text, n)
		}
	}
	if n, err := residentBytes([]byte("a 1\nprocess_resident_memory_bytes 7")); n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
