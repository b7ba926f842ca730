package main

import (
	"strings"
	"testing"

	"github.com/countd/countd/internal/countdtest"
)

// Of several addresses the next is asked where one fails, by any command.
func TestSeveralAddrs(t *testing.T) {
	server := countdtest.New(t)
	i := against(t, server)
	i.ok("incr", "7", "like=2")
	i.addr = "127.0.0.1:1, " + server.URL + ","
	i.ok("incr", "7", "like=3")
	if got := i.ok("get", "7", "--addr", "127.0.0.1:1", "--addr", server.URL); !strings.Contains(got, "5") {
		t.Errorf("%s", got)
	}
	starting := countdtest.New(t)
	starting.SetNotReady("starting")
	for _, addrs := range []string{"127.0.0.1:1," + server.URL, server.URL + ",127.0.0.1:1", starting.URL + "," + server.URL} {
		i.addr = addrs
		i.ok("status")
	}
	i.addr = "127.0.0.1:1," + starting.URL
	if got := i.run("status"); got.code != exitFail || !strings.Contains(got.err, "starting") {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
	i.addr = "127.0.0.1:1,ftp://x"
	if got := i.run("get", "7"); got.code != exitUsage || !strings.Contains(got.err, "ftp://x") {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
}
