package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// closingLoad writes to a cluster while authentication is being turned on. It repeats each write
// under the same key through other nodes until the write is acknowledged.
type closingLoad struct {
	c      *proctest.Cluster
	header atomic.Pointer[http.Header]
	acked  atomic.Int64
	stop   chan struct{}
	ended  sync.WaitGroup
}

func (l *closingLoad) run(t *testing.T, worker int) {
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-time.After(faultPace):
		}
		key := fmt.Sprintf("closing-%d-%d", worker, n)
		for try := 0; ; try++ {
			header := l.header.Load().Clone()
			header.Set("Idempotency-Key", key)
			nodes := l.c.Nodes()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			status, err := nodes[(worker+n+try)%len(nodes)].Send(ctx, "POST", "/v1/counters/posts/incr", header,
				map[string]any{"ops": []any{map[string]any{"id": worker, "add": map[string]int{"like": 1}}}}, nil)
			cancel()
			if err == nil && status == http.StatusOK {
				l.acked.Add(1)
				break
			}
			if status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusBadRequest {
				t.Errorf("write %s is answered %d", key, status)
				return
			}
			time.Sleep(5 * time.Millisecond) // do not spin: a node that is down refuses connections at once
		}
	}
}

// await waits for n more acknowledged writes.
func (l *closingLoad) await(t *testing.T, n int64) {
	t.Helper()
	from := l.acked.Load()
	eventually(t, fmt.Sprintf("%d writes are acknowledged", n), func() bool { return l.acked.Load() >= from+n || t.Failed() })
	if t.Failed() {
		t.FailNow()
	}
}

// TestClusterIsClosed turns authentication on in a cluster of three nodes under load, from --auth
// off through permissive to enforce:
//
//  1. no write is refused meanwhile, and each acknowledged write counts once;
//  2. with permissive, nodes count the calls that enforce would refuse. The count stops rising once
//     all callers have tokens;
//  3. with enforce, nodes serve no caller without a token, and refuse a revoked token at once;
//  4. no token is in a file or log of a node.
func TestClusterIsClosed(t *testing.T) {
	long(t)
	t.Parallel()
	c := newCluster(t, proctest.Options{})
	root := "the-root-token-of-this-test-" + strings.Repeat("7", 16)
	file := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(file, []byte(root), 0o600); err != nil {
		t.Fatal(err)
	}
	load := &closingLoad{c: c, stop: make(chan struct{})}
	load.header.Store(&http.Header{"Authorization": nil}) // send no token, not even Node.Token
	for _, n := range c.Nodes() {
		n.Token = root // a node with --auth off ignores the token
	}
	for worker := range 4 {
		load.ended.Go(func() { load.run(t, worker) })
	}
	var stopOnce sync.Once
	stop := func() { stopOnce.Do(func() { close(load.stop); load.ended.Wait() }) }
	t.Cleanup(stop)
	logs := []string{}
	restart := func(mode string) {
		for _, n := range c.Nodes() {
			load.await(t, 10)
			n.Stop()
			logs = append(logs, n.Log())
			n.Env = append(n.Env, "COUNTD_AUTH="+mode, "COUNTD_ROOT_TOKEN_FILE="+file, "COUNTD_AUDIT_LOG="+filepath.Join(n.Dir, "audit.log"))
			n.StartReady()
		}
	}
	restart("permissive")
	n1, n2 := c.Nodes()[0], c.Nodes()[1]
	n1.MustCall("PUT", "/v1/users/web", map[string]any{"grants": []any{map[string]any{"role": "writer", "keyspaces": []string{"posts"}}}}, nil)
	var token struct{ ID, Token string }
	n1.MustCall("POST", "/v1/users/web/tokens", nil, &token)
	load.header.Store(&http.Header{"Authorization": {"Bearer " + token.Token}})
	load.await(t, 30) // by then no write without a token is in flight
	before := permitted(t, c)
	load.await(t, 30)
	if after := permitted(t, c); after != before {
		t.Errorf("although all callers have tokens, enforce would refuse calls:\n%s\n%s", before, after)
	}
	restart("enforce")
	load.await(t, 30)
	stop()
	sum := int64(0)
	for worker := range 4 {
		var row struct{ Counts struct{ Like int64 } }
		n1.MustCall("GET", fmt.Sprintf("/v1/counters/posts/%d?consistency=linearizable", worker), nil, &row)
		sum += row.Counts.Like
	}
	if acked := load.acked.Load(); sum != acked {
		t.Errorf("%d writes were acknowledged, %d are counted", acked, sum)
	}
	status := func(n *proctest.Member, bears string) int {
		status, err := n.Send(t.Context(), "GET", "/v1/counters/posts/1", http.Header{"Authorization": {bears}}, nil, nil)
		if err != nil {
			t.Error(err)
		}
		return status
	}
	var revoked struct {
		Behind []string `json:"nodes_behind"`
	}
	for _, n := range c.Nodes() {
		if with, without := status(n, "Bearer "+token.Token), status(n, ""); with != 200 || without != 401 {
			t.Errorf("%s answers %d with a token, %d without", n.Name, with, without)
		}
	}
	n2.MustCall("DELETE", "/v1/users/web/tokens/"+token.ID, nil, &revoked)
	for _, n := range c.Nodes() {
		if got := status(n, "Bearer "+token.Token); got != 401 && !strings.Contains(strings.Join(revoked.Behind, " "), n.Name) {
			t.Errorf("%s answers %d to a revoked token", n.Name, got)
		}
	}
	for _, n := range c.Nodes() {
		n.Stop()
		logs = append(logs, n.Log())
		wantNoSecret(t, n.Dir, root, token.Token[len("ctd_k1_"):])
	}
	for _, secret := range []string{root, token.Token[len("ctd_k1_"):]} {
		if strings.Contains(strings.Join(logs, "\n"), secret) {
			t.Errorf("a log has token %s", secret)
		}
	}
}

// permitted returns, for all nodes, how many calls enforce would have refused.
func permitted(t *testing.T, c *proctest.Cluster) string {
	t.Helper()
	var all strings.Builder
	for _, n := range c.Nodes() {
		for line := range strings.Lines(n.Text("/metrics")) {
			if strings.HasPrefix(line, "countd_auth_permitted_total") {
				all.WriteString(n.Name + " " + line)
			}
		}
	}
	return all.String()
}

// wantNoSecret checks that no file under dir contains one of the secrets.
func wantNoSecret(t *testing.T, dir string, secrets ...string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		for _, secret := range secrets {
			if strings.Contains(string(content), secret) {
				t.Errorf("%s has token %s", path, secret)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
