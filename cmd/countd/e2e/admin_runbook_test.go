package e2e

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestRunbookMetricsAreServed holds each metric that the runbook names to what a
// node serves. Some show up with their first event, so there is a read and a write.
func TestRunbookMetricsAreServed(t *testing.T) {
	text, err := os.ReadFile("../../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	n.MustCall(http.MethodPost, incrPath, map[string]any{"ops": []op{{"1", map[string]int64{"like": 1}}}}, nil)
	n.MustCall(http.MethodGet, "/v1/counters/posts/1", nil, nil)
	resp, err := http.Get(n.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	served, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`((?:countd|process)_[a-z_]+)").FindAllStringSubmatch(string(text), -1)
	for _, m := range names {
		if !strings.Contains(string(served), "\n# TYPE "+strings.TrimSuffix(m[1], "_count")+" ") {
			t.Errorf("%s is not served", m[1])
		}
	}
	if len(names) < 10 {
		t.Errorf("%d metrics are named", len(names))
	}
}
