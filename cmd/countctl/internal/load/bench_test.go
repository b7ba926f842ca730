package load

import (
	"net/url"
	"testing"
)

func TestLoopback(t *testing.T) {
	cases := []struct {
		addr string
		want bool
	}{
		{"http://127.0.0.1:7400", true}, {"http://127.8.9.1", true}, {"http://localhost:7400", true}, {"http://[::1]:7400", true},
		{"http://10.0.0.1:7400", false}, {"http://0.0.0.0:7400", false}, {"http://127.0.0.1.example.com", false}, {"http://countd", false},
	}
	for _, c := range cases {
		t.Run(c.addr, func(t *testing.T) {
			addr, err := url.Parse(c.addr)
			if err != nil || isLoopback(addr) != c.want {
				t.Fatalf("%v, want %v", err, c.want)
			}
		})
	}
}
