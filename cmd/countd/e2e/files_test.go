package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// limited returns the programs to test. Its countd runs under a limit of open files.
func limited(t *testing.T, files int) proctest.Binaries {
	t.Helper()
	script := filepath.Join(t.TempDir(), "countd")
	text := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", files, bin.Countd)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	limited := bin
	limited.Countd = script
	return limited
}

// Clients open as many connections as they like, to both ports. The node refuses connections beyond
// the limit of open files, and keeps running. A client that was connected before can still write,
// although its writes make the node open new files.
func TestFileDescriptorsRunOut(t *testing.T) {
	long(t)
	t.Parallel()
	for _, files := range []int{512, 1024} {
		t.Run(fmt.Sprint(files), func(t *testing.T) {
			t.Parallel()
			n := proctest.NewNode(t, limited(t, files), t.TempDir())
			n.StartReady()
			if !strings.Contains(n.Log(), "the limit of open files is low") {
				t.Error("no warning at the start")
			}
			var write []string
			for id := range 2000 {
				write = append(write, fmt.Sprintf(`{"id":"%d","add":{"like":1}}`, id))
			}
			body := `{"ops":[` + strings.Join(write, ",") + `]}`
			post := func() { n.MustCall("POST", "/v1/counters/posts/incr", json.RawMessage(body), nil) }
			post()
			var refused, open int
			for i := range files + 100 {
				addr := n.Addr
				if i%2 == 0 {
					addr = n.Redis
				}
				conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if i < files/2 { // most of these connections are within the limit
					open++
					continue
				}
				if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
					t.Fatal(err)
				}
				line, _ := bufio.NewReader(conn).ReadString('\n')
				if line == "" || strings.Contains(line, "503") || strings.Contains(line, "max number of clients") {
					refused++
				}
			}
			for range 110 {
				post()
			}
			if refused != files+100-open {
				t.Errorf("%d connections were refused", refused)
			}
			n.Stop()
			n.StartReady()
		})
	}
}

// A node refuses to start if the limit is too low, and the error names the remedy.
func TestTooFewFileDescriptors(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, limited(t, 150), t.TempDir())
	n.Start()
	if code := n.Exited(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, part := range []string{"the limit of open files is 150", "needs 512", "ulimit -n", "LimitNOFILE"} {
		if !strings.Contains(n.Log(), part) {
			t.Errorf("no %q in the log", part)
		}
	}
}
