package proctest

import (
	"net"
	"os/exec"
	"testing"
	"time"
)

// StartRedis runs a redis-server without persistence until the test ends, and returns its
// address. The test is skipped if redis-server is not installed.
func StartRedis(t testing.TB) (addr string) {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server (Debian: redis-server) is not installed; .ci/run installs it")
	}
	addr = FreePorts(t, 1)[0]
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(path, "--port", port, "--bind", host, "--dir", t.TempDir(), "--save", "", "--appendonly", "no")
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start redis-server: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // reports that it was killed
	})
	for end := time.Now().Add(readyTimeout); ; time.Sleep(pollEvery) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return addr
		}
		if time.Now().After(end) {
			t.Fatalf("redis-server does not answer: %v", err)
		}
	}
}
