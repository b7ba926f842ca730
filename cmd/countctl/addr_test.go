package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
)

// If the node at one address does not answer or is not ready, a command uses the next address.
func TestSeveralAddrs(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)
	i.OK("incr", "7", "like=2")
	i.Addr = "127.0.0.1:1, " + server.URL + ","
	i.OK("incr", "7", "like=3")
	if got := i.OK("get", "7", "--addr", "127.0.0.1:1", "--addr", server.URL); !strings.Contains(got, "5") {
		t.Errorf("%s", got)
	}
	starting := nodetest.New(t)
	starting.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.URL.Path != "/readyz" {
			return nil
		}
		return &nodetest.Fault{Status: 503, Code: "no_leader", Message: "starting"}
	}
	for _, addrs := range []string{"127.0.0.1:1," + server.URL, server.URL + ",127.0.0.1:1", starting.URL + "," + server.URL} {
		i.Addr = addrs
		i.OK("status")
	}
	i.Addr = "127.0.0.1:1," + starting.URL
	if got := i.Run("status"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "starting") {
		t.Errorf("exit %d: %s", got.Code, got.Err)
	}
	i.Addr = "127.0.0.1:1,ftp://x"
	if got := i.Run("get", "7"); got.Code != cli.ExitUsage || !strings.Contains(got.Err, "ftp://x") {
		t.Errorf("exit %d: %s", got.Code, got.Err)
	}
}

// Right after its start, a node knows no leader for a moment. A command retries after the error
// no_leader, but not after other refusals.
func TestNoLeaderIsWaitedFor(t *testing.T) {
	server := nodetest.New(t)
	refusals, code := 2, "no_leader"
	server.Fail = func(*http.Request, []byte) *nodetest.Fault {
		if refusals--; refusals < 0 {
			return nil
		}
		return &nodetest.Fault{Status: 503, Code: code, Message: "try again"}
	}
	i := against(t, server)
	i.OK("get", "7")
	refusals, code = 2, "draining"
	if got := i.Run("get", "7"); got.Code != cli.ExitFail || refusals != 1 {
		t.Errorf("exit %d after %d refusals: %s", got.Code, 2-refusals, got.Err)
	}
}
