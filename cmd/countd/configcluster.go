package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/countd/countd/cluster"
)

// replaceAfterMax bounds --replace-after: a node that is away for longer does not return.
const replaceAfterMax = 30 * 24 * time.Hour

// validateCluster checks the settings about the cluster of this node.
func (c *config) validateCluster() error {
	for _, addr := range c.Join {
		if problem := addrProblem(addr, true); problem != "" {
			return c.bad("join", fmt.Sprintf("%q: %s", addr, problem))
		}
		for _, own := range []struct{ name, addr string }{{"gossip-addr", c.GossipAddr}, {"cluster-addr", c.ClusterAddr}} {
			if ip := net.ParseIP(hostOf(addr)); ip != nil && !ip.IsLoopback() && loopback(own.addr) {
				return c.bad(own.name, fmt.Sprintf("%q is of this machine alone; the nodes at %q of --join could not reach it", own.addr, addr))
			}
		}
	}
	// A configuration file may set the default, 0, because printEffective writes it. A flag or a
	// variable must not.
	source := c.sources["bootstrap-expect"]
	chosen := c.Expect != 0 || strings.HasPrefix(source, "flag") || strings.HasPrefix(source, "env")
	if chosen && (c.Expect < 1 || c.Expect > cluster.ExpectMax) {
		return c.bad("bootstrap-expect", fmt.Sprintf("%d is not in 1…%d", c.Expect, cluster.ExpectMax))
	}
	if !cluster.ValidClusterName(c.ClusterName) {
		return c.bad("cluster-name", fmt.Sprintf("%q: want 1 to 32 of A-Z a-z 0-9 . _ -", c.ClusterName))
	}
	switch c.Transition {
	case cluster.GossipStrict, cluster.GossipAccept, cluster.GossipSend:
	default:
		return c.bad("gossip-transition", fmt.Sprintf("%q is neither accept nor send", string(c.Transition)))
	}
	if c.Transition != cluster.GossipStrict && c.GossipKeys == "" {
		return c.bad("gossip-transition", "needs --gossip-key-file")
	}
	if !cluster.ValidZone(c.Zone) {
		return c.bad("zone", fmt.Sprintf("%q: want 1 to 64 of A-Z a-z 0-9 . _ -", c.Zone))
	}
	return nil
}

func addrProblem(addr string, dialled bool) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "want HOST:PORT"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "want a port from 1 to 65535"
	}
	if len(addr) > cluster.AddrBytesMax {
		return fmt.Sprintf("want at most %d bytes", cluster.AddrBytesMax)
	}
	if ip := net.ParseIP(host); dialled && (host == "" || ip != nil && ip.IsUnspecified()) {
		return "want one host that other nodes can dial, not every interface"
	}
	return ""
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

func loopback(addr string) bool {
	ip := net.ParseIP(hostOf(addr))
	return hostOf(addr) == "localhost" || ip != nil && ip.IsLoopback()
}

// several reports whether a new node with these settings forms or joins a cluster of several
// nodes.
func (c *config) several() bool { return len(c.Join) > 0 || c.Expect > 1 }
