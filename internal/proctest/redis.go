package proctest

import (
	"net"
	"os/exec"
	"testing"
)

// StartRedis runs a redis-server without persistence until the test ends, and returns its
// address. The test is skipped if redis-server is not installed.
func StartRedis(t testing.TB) (addr string) {
	t.Helper()
	return startRedis(t, "--appendonly", "no").Addr
}

// StartDurableRedis is like StartRedis, but the server syncs its log before each answer.
func StartDurableRedis(t testing.TB) *Server {
	t.Helper()
	return startRedis(t, "--appendonly", "yes", "--appendfsync", "always")
}

func startRedis(t testing.TB, args ...string) *Server {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server (Debian: redis-server) is not installed; .ci/run installs it")
	}
	addr := FreePorts(t, 1)[0]
	host, port, _ := net.SplitHostPort(addr)
	return Serve(t, addr, path, append([]string{"--port", port, "--bind", host, "--dir", t.TempDir(), "--save", ""}, args...)...)
}
