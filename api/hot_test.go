package api

import (
	"testing"
)

// While a shard still reads all its rows to build a ranking, the answer is an error that asks the
// caller to repeat the call.
func TestTopThatIsScanning(t *testing.T) {
	l := startFakeServer(t, nil)
	l.node.scanning = true
	got := l.do("GET", "/v1/top/posts/like", "")
	const want = `{"error":{"code":"not_ready","message":"the first call reads all rows, 812 so far: try again"}}`
	if got.status != 503 || got.body != want || got.header.Get("Retry-After") == "" {
		t.Errorf("answered %d %s, Retry-After %q", got.status, got.body, got.header.Get("Retry-After"))
	}
}
