package api

import (
	"fmt"
	"strings"
	"testing"
)

// The owner of a web page may make its host name resolve to the node's address. The server refuses
// every request of such a page.
func TestHostIsChecked(t *testing.T) {
	l := startFakeServer(t, func(cfg *Config) { cfg.AllowedHosts = []string{"Counts.Example.com", "n1.lan:7400"} })
	for host, status := range map[string]int{
		"127.0.0.1:7400": 200, "10.1.2.3": 200, "[::1]:7400": 200, "localhost:7400": 200, "LOCALHOST": 200,
		"counts.example.com": 200, "counts.example.com.:80": 200, "n1.lan": 200,
		"evil.example.com": 403, "localhost.evil.com": 403, "127.0.0.1.evil.com:7400": 403, "n2.lan": 403,
	} {
		for _, path := range []string{"/healthz", "/v1/keyspaces"} {
			got := l.raw(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host))
			if got.status != status || (status == 403) != strings.Contains(got.body, `"code":"permission_denied"`) {
				t.Errorf("%s of Host %s is answered %d %s", path, host, got.status, got.body)
			}
		}
	}
}
