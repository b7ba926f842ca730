package data

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/proctest"
)

// growServer answers requests about the growth of keyspace posts. Each read of the keyspaces shows the
// next of the steps, and then the last one again.
type growServer struct {
	mu     sync.Mutex
	orders []string
	steps  []string // JSON of the keyspace posts after an order
	looked func()
	answer string // to the next order; "" for a growth to 3 shards
}

func (s *growServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.URL.Path == "/v1/admin/keyspaces/posts/grow":
		s.orders = append(s.orders, string(body))
		answer := s.answer
		if answer == "" {
			answer = `{"keyspace":"posts","shards":1,"to":3,"state":"growing","growing":{"to":3,"split":0,"shards":[{"shard":0,"state":"waiting"}]}}`
		}
		fmt.Fprint(w, answer)
	case len(s.orders) == 0:
		fmt.Fprint(w, `{"keyspaces":[{"name":"posts","kind":"counters","columns":["like"],"shards":1}]}`)
	default:
		fmt.Fprintf(w, `{"keyspaces":[%s]}`, s.steps[0])
		if len(s.steps) > 1 {
			s.steps = s.steps[1:]
		}
		if s.looked != nil {
			s.looked()
		}
	}
}

func growing(t *testing.T, s *growServer) *proctest.Invocation {
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return invoke(t, server.URL, Commands)
}

const (
	growsText = `{"name":"posts","kind":"counters","columns":["like"],"shards":1,"growing":{"to":3,"split":0,"since":"2026-03-01T12:00:00Z","shards":[{"shard":0,"state":"committed"}]}}`
	grownText = `{"name":"posts","kind":"counters","columns":["like"],"shards":3}`
	stillText = `{"name":"posts","kind":"counters","columns":["like"],"shards":1}`
)

// grow waits until the keyspace has grown, unless --no-wait is given. Its order names the present number of
// shards.
func TestKeyspaceGrow(t *testing.T) {
	t.Parallel()
	s := &growServer{steps: []string{stillText, growsText, stillText, grownText}} // of two nodes, one is behind
	i := growing(t, s)
	got := i.Run("keyspace", "grow", "posts", "--by", "3", "-o", "json")
	g := proctest.Decode[admin.Growth](t, got.Out)
	if got.Code != cli.ExitOK || g.Shards != 3 || g.State != admin.NotGrowing || !slices.Equal(s.orders, []string{`{"by":3,"from":1}`}) {
		t.Errorf("exit %d, %+v, orders %q: %s", got.Code, g, s.orders, got.Err)
	}
	if want := "posts grows from 1 shard to 3 since 2026-03-01T12:00:00Z: 0 waiting, 1 committed, 0 split, 0 begun"; !strings.Contains(got.Err, want) {
		t.Errorf("the progress is %s", got.Err)
	}
	if got := growing(t, &growServer{}).Run("keyspace", "grow", "posts", "--no-wait"); got.Code != cli.ExitOK || !strings.Contains(got.Out, "0 of 1") {
		t.Errorf("without a wait: exit %d, %s%s", got.Code, got.Out, got.Err)
	}
	if got := growing(t, &growServer{steps: []string{growsText, stillText}}).Run("keyspace", "grow", "posts"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "was withdrawn") {
		t.Errorf("withdrawn meanwhile: exit %d, %s", got.Code, got.Err)
	}
	if got := growing(t, &growServer{steps: []string{growsText}}).Run("keyspace", "grow", "posts", "--wait", "300ms"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "the cluster continues") {
		t.Errorf("too slow: exit %d, %s", got.Code, got.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	i = growing(t, &growServer{steps: []string{growsText}, looked: cancel})
	i.Ctx = ctx
	if got := i.Run("keyspace", "grow", "posts"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "keyspace grow posts --withdraw ends it") {
		t.Errorf("interrupted: exit %d, %s", got.Code, got.Err)
	}
	for _, bad := range [][]string{{"--by", "1"}, {"--by", "10"}, {"--withdraw", "--by", "2"}, {"--withdraw", "--dry-run"}} {
		if got := growing(t, &growServer{}).Run(append([]string{"keyspace", "grow", "posts"}, bad...)...); got.Code != cli.ExitUsage {
			t.Errorf("%q: exit %d, %s", bad, got.Code, got.Err)
		}
	}
}

// A dry run prints the rows, the warnings and the refusals, and exits 1 if there is a refusal.
func TestKeyspaceGrowDryRun(t *testing.T) {
	t.Parallel()
	s := &growServer{answer: `{"keyspace":"posts","shards":1,"to":2,"state":"not_growing","rows":[1800,200],"estimated":true,` +
		`"factors":[{"by":2,"to":2,"rows":[1800,200],"largest":1.8},{"by":3,"to":3,"rows":[700,650,650],"largest":1.05}],` +
		`"refused":["the cluster's version is 1; growth needs 2"],"warnings":["by 2, the largest shard is large"]}`}
	got := growing(t, s).Run("keyspace", "grow", "posts", "--by", "2", "--dry-run")
	for _, want := range []string{"ESTIMATED", "1.80", "650 to 700", "1,800", "WARNING", "by 2, the largest", "REFUSED, BECAUSE", "growth needs 2"} {
		if !strings.Contains(got.Out, want) {
			t.Errorf("%q is not in\n%s", want, got.Out)
		}
	}
	if got.Code != cli.ExitFail || !slices.Equal(s.orders, []string{`{"by":2,"dry_run":true}`}) {
		t.Errorf("exit %d, orders %q", got.Code, s.orders)
	}
	s = &growServer{answer: `{"keyspace":"posts","shards":1,"to":1,"state":"not_growing"}`}
	if got := growing(t, s).Run("keyspace", "grow", "posts", "--withdraw"); got.Code != cli.ExitOK || !slices.Equal(s.orders, []string{`{"withdraw":true}`}) {
		t.Errorf("exit %d, orders %q: %s", got.Code, s.orders, got.Err)
	}
}
