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
	i.addr = "127.0.0.1:1," + server.URL
	i.ok("incr", "7", "like=3")
	if got := i.ok("get", "7", "--addr", "127.0.0.1:1", "--addr", server.URL); !strings.Contains(got, "5") {
		t.Errorf("%s", got)
	}
	i.addr = "127.0.0.1:1,ftp://x"
	if got := i.run("get", "7"); got.code != exitUsage || !strings.Contains(got.err, "ftp://x") {
		t.Errorf("exit %d: %s", got.code, got.err)
	}
}
