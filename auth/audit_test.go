package auth

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	clientadmin "github.com/countd/countd/client/admin"
)

func open(t *testing.T) *AuditLog {
	t.Helper()
	l, err := OpenAuditLog(filepath.Join(t.TempDir(), "audit.log"), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestFloodOfRefusals checks the rate limit of refusals. Every admin action during the flood has a
// line, and the numbers in the lines about refusals add up to all refusals.
func TestFloodOfRefusals(t *testing.T) {
	l := open(t)
	at := time.Unix(1_000_000, 0)
	const refusals = 20_000
	for i := range refusals {
		at = at.Add(100 * time.Microsecond) // the whole loop spans two seconds
		l.Refused(clientadmin.AuditEvent{Time: at, What: "get", Outcome: "bad_token"})
		if i%1000 == 0 {
			l.Refused(clientadmin.AuditEvent{Time: at, Who: "web", What: "get", Outcome: "permission_denied"})
			l.Action(clientadmin.AuditEvent{Time: at, Who: "ann", What: "drop", Outcome: "ok"})
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	events, err := l.Tail(AuditTailMax)
	if err != nil {
		t.Fatal(err)
	}
	lines, total := map[string]int{}, map[string]uint64{}
	for _, e := range events {
		lines[e.Outcome]++
		total[e.Outcome] += e.Suppressed
		if e.What != "refusals" {
			total[e.Outcome]++
		}
	}
	if lines["ok"] != 20 || lines["permission_denied"] != 20 || lines["bad_token"] > refusalsBurst+4 {
		t.Errorf("lines %v", lines)
	}
	if total["bad_token"] != refusals {
		t.Errorf("%d refusals are accounted for, of %d", total["bad_token"], refusals)
	}
}

// TestTailAfterRotation checks that Tail returns the last lines after a rotation, and reads only
// files of the log.
func TestTailAfterRotation(t *testing.T) {
	l := open(t)
	write := func(what string) { l.Action(clientadmin.AuditEvent{Time: time.Unix(1, 0), What: what, Outcome: "ok"}) }
	write("first")
	write("second")
	if err := l.mu.file.Rotate(); err != nil {
		t.Fatal(err)
	}
	other := strings.TrimSuffix(l.path, ".log") + "-of-another.log"
	if err := os.WriteFile(other, []byte(`{"what":"other","outcome":"ok"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tail := func(n int) (all []string) {
		t.Helper()
		events, err := l.Tail(n)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			all = append(all, e.What)
		}
		return all
	}
	if got := tail(10); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("after a rotation: %q", got)
	}
	write("third")
	if got := tail(2); !slices.Equal(got, []string{"second", "third"}) {
		t.Errorf("the last two: %q", got)
	}
	if got := tail(1); !slices.Equal(got, []string{"third"}) {
		t.Errorf("the last one: %q", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestTail(t *testing.T) {
	l := open(t)
	if events, err := l.Tail(10); err != nil || len(events) > 0 {
		t.Errorf("%v, %v", events, err)
	}
	for range 5 {
		l.Action(clientadmin.AuditEvent{Time: time.Unix(1, 0), Who: strings.Repeat("x", 1000), What: "drop", Outcome: "ok"})
	}
	_, _ = l.mu.file.Write([]byte(`{"time":"cut o` + "\n"))
	l.Action(clientadmin.AuditEvent{Time: time.Unix(2, 0), What: "last", Outcome: "ok"})
	events, err := l.Tail(2)
	if err != nil || len(events) != 2 || events[1].What != "last" || len(events[0].Who) != detailBytesMax {
		t.Errorf("%+v, %v", events, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	var none *AuditLog
	none.Action(clientadmin.AuditEvent{})
	none.Refused(clientadmin.AuditEvent{})
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}
