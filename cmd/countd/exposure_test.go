package main

import (
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestExposure: a port beyond loopback needs the settings that protect it, or --insecure.
func TestExposure(t *testing.T) {
	client := []string{"--tls-cert=a", "--tls-key=b"}
	peer := []string{"--cluster-tls-cert=a", "--cluster-tls-key=b", "--cluster-tls-ca=c"}
	for _, tc := range []struct {
		name          string
		args          []string
		authenticates bool
		refused       string // a part of the error; "" for none
	}{
		{"loopback", nil, false, ""},
		{"all of loopback", []string{"--http-addr=127.1.2.3:1", "--cluster-addr=[::1]:2", "--gossip-addr=localhost:3", "--redis-addr=[::ffff:127.0.0.1]:4"}, false, ""},
		{"HTTP on every interface", []string{"--http-addr=0.0.0.0:1"}, true, `http-addr (flag --http-addr): "0.0.0.0:1" is not a loopback address`},
		{"HTTP without a host", []string{"--http-addr=:1"}, true, "it needs --tls-cert, or --insecure"},
		{"a host that does not resolve", []string{"--http-addr=countd.invalid:1"}, true, "is not a loopback address"},
		{"HTTP on IPv6", []string{"--http-addr=[::]:1"}, false, "it needs --tls-cert and --auth enforce, or --insecure"},
		{"Redis", []string{"--redis-addr=10.0.0.1:1"}, true, "redis-addr (flag --redis-addr)"},
		{"nobody is asked who it is", append([]string{"--http-addr=10.0.0.1:1"}, client...), false, "it needs --auth enforce, or --insecure"},
		{"clients are", append([]string{"--http-addr=10.0.0.1:1", "--redis-addr=10.0.0.1:2"}, client...), true, ""},
		{"nodes", append([]string{"--cluster-addr=10.0.0.1:1"}, client...), true, "it needs --cluster-tls-cert, or --insecure"},
		{"nodes with TLS", append([]string{"--cluster-addr=10.0.0.1:1"}, peer...), true, ""},
		{"nodes that are permissive", append([]string{"--cluster-addr=10.0.0.1:1", "--cluster-tls-permissive"}, peer...), true, "it needs an end of --cluster-tls-permissive"},
		{"gossip", append([]string{"--gossip-addr=10.0.0.1:1"}, peer...), true, "it needs --gossip-key-file, or --insecure"},
		{"gossip with keys", []string{"--gossip-addr=10.0.0.1:1", "--gossip-key-file=a"}, true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := load(t, tc.args, nil, "")
			if err != nil {
				t.Fatal(err)
			}
			log := new(proctest.Buffer)
			exposed, err := c.checkExposure(tc.authenticates, log.Logger())
			if tc.refused == "" && err != nil || tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
				t.Errorf("%v, want %q", err, tc.refused)
			}
			if exposed {
				t.Error("it is exposed without --insecure")
			}
			c.Insecure = true
			if exposed, err = c.checkExposure(tc.authenticates, log.Logger()); err != nil || exposed != (tc.refused != "") || log.Has("anybody who reaches the port") != exposed {
				t.Errorf("with --insecure: exposed %v, %v\n%s", exposed, err, log.String())
			}
		})
	}
}
