package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestRunbookMetricsAreServed checks that a node serves each metric that the runbook names. Some
// metrics appear only with their first event, so the test reads, writes and creates a user.
func TestRunbookMetricsAreServed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	n := proctest.NewNode(t, bin, t.TempDir(), "--auth=permissive", "--audit-log="+filepath.Join(t.TempDir(), "audit.log"))
	n.StartReady()
	n.MustCall(http.MethodPut, "/v1/users/web", map[string]any{
		"grants": []any{map[string]any{"role": "writer", "keyspaces": []string{"*"}}}, "limits": map[string]int{"ops_per_second": 1000},
	}, nil)
	var made struct{ Token string }
	n.MustCall(http.MethodPost, "/v1/users/web/tokens", map[string]any{}, &made)
	n.Token = made.Token
	n.MustCall(http.MethodPost, incrPath, map[string]any{"ops": []op{{"1", map[string]int64{"like": 1}}}}, nil)
	n.MustCall(http.MethodGet, "/v1/counters/posts/1", nil, nil)
	var served string
	eventually(t, "the node knows the user", func() bool {
		served = n.Text("/metrics")
		return strings.Contains(served, `user="web"`)
	})
	names := regexp.MustCompile("`((?:countd|process)_[a-z_]+)").FindAllStringSubmatch(string(text), -1)
	for _, m := range names {
		if !strings.Contains(served, "\n# TYPE "+strings.TrimSuffix(m[1], "_count")+" ") {
			t.Errorf("%s is not served", m[1])
		}
	}
	if len(names) < 10 {
		t.Errorf("%d metrics are named", len(names))
	}
}
