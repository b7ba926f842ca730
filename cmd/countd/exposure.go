package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"
)

const resolveTimeout = 5 * time.Second

// openPort is a port without access control: anybody who can connect can use it.
type openPort struct {
	setting, addr string
	lacks         []string // the missing settings that would protect the port
}

// openPorts returns the open ports beyond loopback. authenticates reports whether clients must
// show a token.
func (c *config) openPorts(authenticates bool) []openPort {
	var client, peer, gossip []string
	if !c.TLS.set() {
		client = append(client, "--tls-cert")
	}
	if !authenticates {
		client = append(client, "--auth enforce")
	}
	switch {
	case !c.ClusterTLS.set():
		peer = append(peer, "--cluster-tls-cert")
	case c.PermissiveTLS:
		peer = append(peer, "an end of --cluster-tls-permissive")
	}
	switch {
	case c.GossipKeys == "":
		gossip = append(gossip, "--gossip-key-file")
	case c.Transition != "":
		gossip = append(gossip, "an end of --gossip-transition")
	}
	var open []openPort
	for _, p := range []openPort{
		{"http-addr", c.HTTPAddr, client}, {"redis-addr", c.RedisAddr, client},
		{"cluster-addr", c.ClusterAddr, peer}, {"gossip-addr", c.GossipAddr, gossip},
	} {
		if p.addr != "" && len(p.lacks) > 0 && beyondLoopback(p.addr) {
			open = append(open, p)
		}
	}
	return open
}

// checkExposure refuses settings with open ports, unless --insecure is set. It reports whether there
// are open ports.
func (c *config) checkExposure(authenticates bool, logger *slog.Logger) (exposed bool, err error) {
	open := c.openPorts(authenticates)
	if len(open) == 0 {
		return false, nil
	}
	if !c.Insecure {
		p := open[0]
		return false, c.bad(p.setting, fmt.Sprintf("%q is not a loopback address, and whoever reaches it could read and change everything: it needs %s, or --insecure to allow that",
			p.addr, strings.Join(p.lacks, " and ")))
	}
	for _, p := range open {
		logger.Warn("anybody who reaches the port may use it, because of --insecure", "setting", p.setting, "addr", p.addr, "lacks", strings.Join(p.lacks, " and "))
	}
	return true, nil
}

// beyondLoopback reports whether other machines may reach an address. It returns true for a host
// that does not resolve now, because the host may resolve to any address once the port opens.
func beyondLoopback(addr string) bool {
	host := hostOf(addr)
	if host == "" {
		return true // the port opens on every interface
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return !ip.Unmap().IsLoopback()
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return true
	}
	for _, ip := range all {
		if !ip.Unmap().IsLoopback() {
			return true
		}
	}
	return false
}
