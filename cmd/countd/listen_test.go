package main

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
)

// TestPortInUse checks the error for a port that another process uses: it names the setting that
// selects another port.
func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	used, free := l.Addr().String(), "127.0.0.1:0"
	for setting, c := range map[string]*config{
		"--http-addr":    {HTTPAddr: used, ClusterAddr: free, RedisAddr: free},
		"--cluster-addr": {HTTPAddr: free, ClusterAddr: used, RedisAddr: free},
		"--redis-addr":   {HTTPAddr: free, ClusterAddr: free, RedisAddr: used},
	} {
		if _, err := listen(c); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), setting) {
			t.Errorf("%s: %v", setting, err)
		}
	}
	if !taken(used) || taken(free) {
		t.Errorf("%s is taken: %v, %s: %v", used, taken(used), free, taken(free))
	}
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if at := p.LocalAddr().String(); !taken(at) {
		t.Errorf("%s is free, over UDP", at)
	}
}
