package client_test

import (
	"testing"

	"github.com/countd/countd/client"
)

func TestParseAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"localhost": "http://localhost:7400", "localhost:80": "http://localhost:80", "10.0.0.1": "http://10.0.0.1:7400", "[::1]": "http://[::1]:7400",
		"[::1]:7400": "http://[::1]:7400", "localhost/": "http://localhost:7400", "localhost:": "http://localhost:7400",
		"http://localhost": "http://localhost", "https://count.example.org": "https://count.example.org", "http://localhost:7400/": "http://localhost:7400",
	} {
		if got, err := client.ParseAddr(addr); err != nil || got.String() != want {
			t.Errorf("%s is %v, %v; want %s", addr, got, err, want)
		}
	}
	for _, addr := range []string{"", "ftp://x", "http://", "a/b", "http://u:p@h", "a b", ":7400/x"} {
		if got, err := client.ParseAddr(addr); err == nil {
			t.Errorf("%q is %v", addr, got)
		}
	}
}
