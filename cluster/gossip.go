package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// gossipLabel makes memberlist refuse packets of other programs that use memberlist.
	gossipLabel = "countd"
	// leaveTimeout bounds how long Close waits until other nodes have the leave message, because a
	// stop of the node has 10 s in all. If the message does not arrive, other nodes detect the stop
	// by their pings.
	leaveTimeout   = time.Second
	resolveTimeout = 2 * time.Second
)

type gossipTiming struct {
	probeEvery   time.Duration // interval between two pings, each to one member
	probeTimeout time.Duration
	gossipEvery  time.Duration // interval at which a node sends news to a few members
	syncEvery    time.Duration // interval at which a node exchanges its full state with one member
	dialTimeout  time.Duration // bounds a connection and the exchange over it
	// reclaimAfter is the time for which a member must have been dead before gossip accepts
	// another address for its key.
	reclaimAfter time.Duration
	// searchMin and searchMax bound the wait between two searches for members
	// that gossip does not reach.
	searchMin, searchMax time.Duration
}

// With gossipTimingDefault, gossip in a cluster of up to ten nodes declares a member dead 6 to 10 s
// after its process ended without notice. With 100 nodes, gossip takes 14 s. The time includes
// suspicionMult pings, during which the member can prove that it is alive. Replacing a node takes
// minutes, and Raft detects a dead leader by itself, so few false alarms matter more than speed.
var gossipTimingDefault = gossipTiming{
	probeEvery: time.Second, probeTimeout: 500 * time.Millisecond, gossipEvery: 200 * time.Millisecond,
	syncEvery: 10 * time.Second, dialTimeout: 3 * time.Second, reclaimAfter: time.Second,
	searchMin: 500 * time.Millisecond, searchMax: 15 * time.Second,
}

const suspicionMult = 6

// GossipConfig configures StartGossip.
type GossipConfig struct {
	// Self is this node. StartGossip ignores its GossipAddr, Alive and Since.
	Self Member
	// Addr is the address HOST:PORT to listen at, by TCP and UDP, and the address that other nodes
	// use. The host must be one interface. Port 0 means any free port.
	Addr string
	// Join holds the gossip addresses, HOST:PORT, at which to search for other nodes. Each
	// search resolves a host name again, to all its addresses.
	Join []string
	// Joining and Promised are the fields of Identity. A node without a cluster may join the
	// cluster Joining, and the cluster of any node in Promised.
	Joining, Promised string
	// Keys encrypt gossip. Without keys, gossip is neither encrypted nor authenticated.
	Keys *GossipKeys // nil for none
	// Transition lets a running cluster turn on encryption; see GossipTransition.
	Transition GossipTransition
	Logger     *slog.Logger

	timing gossipTiming // gossipTimingDefault if zero
}

// Gossip exchanges with other nodes the addresses of all nodes, and whether each node is alive. It
// never decides which nodes are members of the cluster.
type Gossip struct {
	cfg  GossipConfig
	view *gossipView
	list *memberlist.Memberlist
	addr string

	announcing sync.Mutex // allows one Announce at a time
	search     search
}

// GossipTransition is a setting for turning on the encryption of gossip in a running cluster. All
// nodes restart with GossipAccept first, then all with GossipSend, and then all with GossipStrict.
type GossipTransition string

const (
	GossipStrict GossipTransition = ""       // sends encrypted packets, and refuses plain packets
	GossipAccept GossipTransition = "accept" // accepts encrypted and plain packets, and sends plain packets
	GossipSend   GossipTransition = "send"   // accepts encrypted and plain packets, and sends encrypted packets
)

// StartGossip starts to listen and to search for other nodes. Close stops it.
func StartGossip(cfg GossipConfig) (*Gossip, error) {
	if err := cfg.Self.check(); err != nil {
		return nil, fmt.Errorf("cannot start gossip: %w", err)
	}
	if cfg.timing == (gossipTiming{}) {
		cfg.timing = gossipTimingDefault
	}
	at, err := listenAddr(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("cannot start gossip at %q: %w", cfg.Addr, err)
	}
	g := &Gossip{cfg: cfg, view: newGossipView(cfg.Self, newContacts(cfg.Joining, splitSet(cfg.Promised)), cfg.Logger)}
	if g.list, err = memberlist.Create(g.listConfig(at)); err != nil {
		return nil, fmt.Errorf("cannot start gossip at %s: %w", at, err)
	}
	g.addr = g.list.LocalNode().Address()
	g.startSearch()
	return g, nil
}

// listConfig returns memberlist's settings.
func (g *Gossip) listConfig(at netip.AddrPort) *memberlist.Config {
	t := g.cfg.timing
	c := memberlist.DefaultLANConfig()
	c.Name = g.cfg.Self.Key
	c.Label = gossipLabel
	c.BindAddr, c.BindPort = at.Addr().String(), int(at.Port())
	c.AdvertisePort = c.BindPort // advertise the address that is bound
	if g.cfg.Keys != nil {
		c.Keyring = g.cfg.Keys.ring
	}
	c.GossipVerifyIncoming = g.cfg.Transition == GossipStrict
	c.GossipVerifyOutgoing = g.cfg.Transition != GossipAccept
	c.TCPTimeout = t.dialTimeout
	c.ProbeInterval, c.ProbeTimeout = t.probeEvery, t.probeTimeout
	c.GossipInterval, c.PushPullInterval = t.gossipEvery, t.syncEvery
	c.SuspicionMult = suspicionMult
	c.DeadNodeReclaimTime = t.reclaimAfter
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict, c.Ping = g.view, g.view, g.view, g.view, g.view, g.view
	c.Logger = newGossipLog(g.cfg.Logger)
	return c
}

// listenAddr resolves HOST:PORT to one address, because memberlist would bind every interface for
// a host name.
func listenAddr(addr string) (netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	all, err := resolve(ctx, addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if all[0].Addr().IsUnspecified() {
		return netip.AddrPort{}, errors.New("want one host that other nodes can reach, not every interface")
	}
	return all[0], nil
}

// resolve returns the addresses of HOST:PORT, IPv4 first, at least one.
func resolve(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", portText, err)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), uint16(port))}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var four, six []netip.AddrPort
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.Is4() {
			four = append(four, netip.AddrPortFrom(ip, uint16(port)))
		} else {
			six = append(six, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	if len(four)+len(six) == 0 {
		return nil, fmt.Errorf("%q has no address", host)
	}
	return append(four, six...), nil
}

// Addr returns the gossip address that other nodes use, IP:PORT.
func (g *Gossip) Addr() string { return g.addr }

// Members returns all known members by key, ascending: this node, the living and the dead. If
// there are more than 1,024 members, gossip forgets dead ones, the longest dead first.
// The slice is immutable.
func (g *Gossip) Members() []Member {
	members, _ := g.view.state()
	return members
}

// Member returns the member with a key, and whether it is known.
func (g *Gossip) Member(key string) (Member, bool) {
	members := g.Members()
	at, known := slices.BinarySearchFunc(members, key, func(m Member, key string) int { return strings.Compare(m.Key, key) })
	if !known {
		return Member{}, false
	}
	return members[at], true
}

// Trust lets a node without a cluster join the cluster of any node in set. set has the form of
// Identity.Promised.
func (g *Gossip) Trust(set string) { g.view.trust(splitSet(set)) }

// Changed returns a channel that is closed when Members changes. To miss no change, get the
// channel before reading Members.
func (g *Gossip) Changed() <-chan struct{} {
	_, changed := g.view.state()
	return changed
}

// Announce calls change on the entry that this node announces about itself. It waits until
// memberlist has sent the entry a few times, but at most for wait. Other nodes pass it on after
// that. change cannot change the key or the name.
func (g *Gossip) Announce(wait time.Duration, change func(*Member)) error {
	g.announcing.Lock()
	defer g.announcing.Unlock()
	err := g.view.edit(func(m *Member) {
		key, name := m.Key, m.Name
		change(m)
		m.Key, m.Name = key, name
	})
	if err != nil {
		return fmt.Errorf("cannot announce: %w", err)
	}
	// Ignore the error, which can only be a timeout. Pass at least 1, because for memberlist 0
	// means no timeout.
	_ = g.list.UpdateNode(max(wait, 1))
	return nil
}

// Close announces that this node leaves, and stops gossip. After Close, open connections of
// memberlist may still write or log, for up to dialTimeout.
func (g *Gossip) Close() error {
	g.stopSearch()
	leaving := g.list.Leave(leaveTimeout)
	if leaving != nil { // other nodes detect the stop by their pings
		g.cfg.Logger.Debug("left gossip unheard", "err", leaving)
	}
	if err := g.list.Shutdown(); err != nil {
		return fmt.Errorf("cannot stop gossip: %w", err)
	}
	return nil
}
