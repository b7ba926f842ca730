package cluster

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

var largeGossip = flag.Int("large-gossip", 0, "number of members in TestLargeGossip; 0 skips it")

// gossipNet carries the packets and connections of the members of one process, and counts their bytes. Like UDP, it drops the packets
// of a member that reads too slowly.
type gossipNet struct {
	memberlist.MockNetwork
	byAddr                 map[string]*wiredMember
	packets, bytes, stream atomic.Int64
}

type wiredMember struct {
	*memberlist.MockTransport
	net  *gossipNet
	in   chan *memberlist.Packet
	at   net.Addr
	dead atomic.Bool
}

func (w *gossipNet) member(name string) *wiredMember {
	m := &wiredMember{MockTransport: w.NewTransport(name), net: w, in: make(chan *memberlist.Packet, 512)}
	ip, port, _ := m.FinalAdvertiseAddr("", 0) // never fails
	m.at = net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(ip.String()), uint16(port)))
	w.byAddr[m.at.String()] = m
	return m
}

func (m *wiredMember) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	now := time.Now()
	if m.dead.Load() {
		return now, nil
	}
	m.net.packets.Add(1)
	m.net.bytes.Add(int64(len(b)) + 28) // headers of IP and UDP
	if peer := m.net.byAddr[to.Addr]; !peer.dead.Load() {
		select {
		case peer.in <- &memberlist.Packet{Buf: append([]byte(nil), b...), From: m.at, Timestamp: now}:
		default:
		}
	}
	return now, nil
}

func (m *wiredMember) WriteTo(b []byte, addr string) (time.Time, error) {
	return m.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (m *wiredMember) PacketCh() <-chan *memberlist.Packet { return m.in }

func (m *wiredMember) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if m.dead.Load() || m.net.byAddr[to.Addr].dead.Load() {
		return nil, errors.New("no route")
	}
	conn, err := m.MockTransport.DialAddressTimeout(memberlist.Address{Addr: to.Addr}, timeout)
	return countedConn{conn, &m.net.stream}, err
}

type countedConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

func (c countedConn) Write(b []byte) (int, error) {
	c.bytes.Add(int64(len(b)))
	return c.Conn.Write(b)
}

// TestLargeGossip measures the traffic of idle gossip, and the time until all members know of a
// dead member.
func TestLargeGossip(t *testing.T) {
	if *largeGossip == 0 {
		t.Skip("set -large-gossip=100")
	}
	const quiet = 30 * time.Second
	w := &gossipNet{byAddr: map[string]*wiredMember{}}
	var members []*wiredMember
	for i := range *largeGossip {
		members = append(members, w.member(largeNode(i, 3).Key))
	}
	var all []*Gossip
	began := time.Now()
	for i, m := range members {
		node := largeNode(i, 3)
		cfg := GossipConfig{timing: gossipTimingDefault, Logger: slog.New(slog.DiscardHandler), Self: Member{
			Key: node.Key, Name: node.Name, Zone: node.Zone, HTTPAddr: node.HTTPAddr, ClusterAddr: node.ClusterAddr,
			ClusterID: strings.Repeat("5a", clusterIDBytes), Version: node.Version, VersionMax: 1, State: MemberServing,
		}}
		g := &Gossip{cfg: cfg, view: newGossipView(cfg.Self, newContacts("", nil), cfg.Logger)}
		c := g.listConfig(netip.MustParseAddrPort(m.at.String()))
		c.Transport, c.Label, c.LogOutput, c.Logger = m, "", io.Discard, nil
		var err error
		if g.list, err = memberlist.Create(c); err != nil {
			t.Fatal(err)
		}
		defer g.list.Shutdown()
		if i > 0 {
			for g.view.alone() { // repeat the join, as the search of a node does
				_, _ = g.list.Join([]string{members[i/2].at.String()})
			}
		}
		all = append(all, g)
	}
	count := func(alive int) (n int) {
		for _, g := range all {
			n += toInt(len(g.view.peers(true)) >= alive)
		}
		return n
	}
	for count(len(all)-1) < len(all) {
		time.Sleep(2 * time.Second) // long, because counting itself takes long
	}
	t.Logf("%d members know each other %s after the first began; %d kB in packets, %d kB in streams, metadata of %d bytes",
		len(all), time.Since(began).Round(time.Second), w.bytes.Load()/1000, w.stream.Load()/1000, len(all[0].view.NodeMeta(0)))
	time.Sleep(10 * time.Second) // until memberlist no longer sends the last news
	packets, bytes, stream := w.packets.Load(), w.bytes.Load(), w.stream.Load()
	time.Sleep(quiet)
	each := func(now, before int64) string {
		return fmt.Sprintf("%.1f", float64(now-before)/quiet.Seconds()/float64(len(all)))
	}
	t.Logf("a quiet member sends a second: %s packets, %s bytes in packets, %s bytes in streams",
		each(w.packets.Load(), packets), each(w.bytes.Load(), bytes), each(w.stream.Load(), stream))
	members[1].dead.Store(true)
	all = slices.Delete(all, 1, 2)
	killed := time.Now()
	for _, percent := range []int{1, 100} {
		for {
			n := 0
			for _, g := range all {
				n += toInt(len(g.view.peers(false)) > 0)
			}
			if n > 0 && 100*n >= percent*len(all) {
				t.Logf("%d members know that one died after %s", n, time.Since(killed).Round(100*time.Millisecond))
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}
