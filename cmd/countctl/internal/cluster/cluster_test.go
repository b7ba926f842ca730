package cluster

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/clitest"
	"github.com/countd/countd/internal/countdtest"
)

func TestStatus(t *testing.T) {
	server := countdtest.New(t)
	server.Put(1, 1, 1, 1, 1)
	server.Put(2, 1, 1, 1, 1)
	i := against(t, server)
	s := clitest.Decode[statusOutput](t, i.OK("status", "-o", "json"))
	if !s.Ready || s.ClusterID != "test" || len(s.Nodes) != 1 || len(s.Groups) != 9 || len(s.Warnings) != 0 {
		t.Fatalf("status is %+v", s)
	}
	if want := (sizeOutput{Rows: 2, Bytes: 40, BytesPerRow: 20, ColdRows: 2, ColdBytes: 10, SealedRows: 2, SealedBytes: 14, Digest: "0000000000000002"}); s.Total != want {
		t.Fatalf("total is %+v, want %+v", s.Total, want)
	}
	if k := slices.IndexFunc(s.Keyspaces, func(k sizeOutput) bool { return k.Keyspace == "posts" }); k < 0 || s.Keyspaces[k].Rows != 2 {
		t.Fatalf("keyspaces are %+v", s.Keyspaces)
	}
	table := i.OK("status", "--groups")
	for _, want := range []string{"n1", "posts/1", "LEADER", "20.0", "COLD", "DISK", "10", "0000000000000002", "total"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

func TestStatusOfANodeThatIsNotReady(t *testing.T) {
	server := countdtest.New(t)
	server.SetNotReady("group 3 has no leader")
	got := against(t, server).Run("status", "-o", "json")
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "group 3 has no leader") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
	if s := clitest.Decode[statusOutput](t, got.Out); s.Ready || s.Why == "" || len(s.Groups) == 0 {
		t.Fatalf("status is %+v", s)
	}
}

func TestStatusWaitsForReadiness(t *testing.T) {
	server := countdtest.New(t)
	server.SetNotReady("starting")
	var asked atomic.Int32
	server.Fail = func(r *http.Request, _ []byte) *countdtest.Fault {
		if r.URL.Path == "/readyz" && asked.Add(1) == 3 {
			server.SetNotReady("")
		}
		return nil
	}
	against(t, server).OK("status", "--wait", "30s")
	if asked.Load() != 3 {
		t.Fatalf("asked %d times, want 3", asked.Load())
	}
}

func TestDigestsSumModulo64Bits(t *testing.T) {
	sum, err := sumGroups([]groupOutput{{Digest: "ffffffffffffffff"}, {Digest: "0000000000000003"}},
		func(groupOutput) bool { return true })
	if err != nil || sum.Digest != "0000000000000002" {
		t.Fatalf("sum is %+v, %v", sum, err)
	}
	if _, err := sumGroups([]groupOutput{{Digest: "xyz"}}, func(groupOutput) bool { return true }); err == nil {
		t.Fatal("a digest that is not hex passed")
	}
}
