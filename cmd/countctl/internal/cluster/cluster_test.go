package cluster

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

func TestStatus(t *testing.T) {
	server := nodetest.New(t)
	server.Put(1, 1, 1, 1, 1)
	server.Put(2, 1, 1, 1, 1)
	i := against(t, server.URL)
	s := proctest.Decode[statusOutput](t, i.OK("status", "-o", "json"))
	if !s.Ready || s.ClusterID != server.Node().Status().ClusterID || len(s.Nodes) != 1 || len(s.Groups) != 12 || len(s.Warnings) != 0 {
		t.Fatalf("status is %+v", s)
	}
	if s.Total.Rows != 2 || s.Total.Bytes == 0 || s.Total.BytesPerRow != float64(s.Total.Bytes)/2 || len(s.Total.Digest) != 16 {
		t.Fatalf("total is %+v", s.Total)
	}
	if k := slices.IndexFunc(s.Keyspaces, func(k sizeOutput) bool { return k.Keyspace == "posts" }); k < 0 || s.Keyspaces[k].Rows != 2 {
		t.Fatalf("keyspaces are %+v", s.Keyspaces)
	}
	table := i.OK("status", "--groups")
	for _, want := range []string{"n1", "posts/1", "LEADER", "COLD", "DISK", s.Total.Digest, "total"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

// notReady makes a server answer that it is not ready, with the reason why.
func notReady(why string) func(*http.Request, []byte) *nodetest.Fault {
	return func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.URL.Path != "/readyz" {
			return nil
		}
		return &nodetest.Fault{Status: 503, Code: "no_leader", Message: why}
	}
}

func TestStatusOfANodeThatIsNotReady(t *testing.T) {
	server := nodetest.New(t)
	server.Fail = notReady("group 3 has no leader")
	got := against(t, server.URL).Run("status", "-o", "json")
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "group 3 has no leader") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
	if s := proctest.Decode[statusOutput](t, got.Out); s.Ready || s.Why == "" || len(s.Groups) == 0 {
		t.Fatalf("status is %+v", s)
	}
}

// If most nodes are dead, status shows what the survivor sees, whatever the order of the addresses.
func TestStatusOfTheSurvivor(t *testing.T) {
	server, dead := nodetest.New(t), nodetest.New(t)
	server.Fail = notReady("group 3 has no leader")
	dead.Close()
	for _, addrs := range []string{server.URL + "," + dead.URL, dead.URL + "," + server.URL} {
		got := against(t, addrs).Run("status", "-o", "json")
		if got.Code != cli.ExitFail || !strings.Contains(got.Err, "group 3 has no leader") || !strings.Contains(got.Out, `"groups":[{`) {
			t.Errorf("%s: exit %d, %q, %q", addrs, got.Code, got.Err, got.Out)
		}
	}
}

// status --live is a health check for containers, and a failed check restarts the process. So a
// node that waits for other nodes must pass it.
func TestStatusLive(t *testing.T) {
	server := nodetest.New(t)
	server.Fail = notReady("waiting for 2 more nodes")
	if out := against(t, server.URL).OK("status", "--live"); out != "" {
		t.Errorf("it printed %q", out)
	}
	server.Close()
	if got := against(t, server.URL).Run("status", "--live"); got.Code != cli.ExitFail || got.Err == "" {
		t.Fatalf("without a server: exit %d, %q", got.Code, got.Err)
	}
}

func TestStatusWaitsForReadiness(t *testing.T) {
	server := nodetest.New(t)
	var asked atomic.Int32
	server.Fail = func(r *http.Request, body []byte) *nodetest.Fault {
		if r.URL.Path == "/readyz" && asked.Add(1) == 3 {
			return nil
		}
		return notReady("starting")(r, body)
	}
	against(t, server.URL).OK("status", "--wait", "3m")
	if asked.Load() != 3 {
		t.Fatalf("asked %d times, want 3", asked.Load())
	}
}

func TestDigestsSumModulo64Bits(t *testing.T) {
	out := statusOutput{Groups: []groupOutput{{Digest: "ffffffffffffffff"}, {Digest: "0000000000000003"}}}
	if err := out.sum(); err != nil || out.Total.Digest != "0000000000000002" || out.Keyspaces[0].Digest != out.Total.Digest {
		t.Fatalf("the sums are %+v and %+v, %v", out.Total, out.Keyspaces, err)
	}
	out.Groups[0].Digest = "xyz"
	if err := out.sum(); err == nil {
		t.Fatal("a digest that is not hex passed")
	}
}
