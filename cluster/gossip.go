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
	// gossipLabel keeps other programs that use memberlist apart.
	gossipLabel = "countd"
	// leaveTimeout bounds how long Close waits for the farewell to reach others. A stop has 10 s in all. The failure detectors of
	// other nodes notice a stop without a farewell.
	leaveTimeout   = time.Second
	resolveTimeout = 2 * time.Second
)

// gossipTiming sets how fast gossip detects members that arrive, die and return.
type gossipTiming struct {
	probeEvery   time.Duration // interval of the pings to a member
	probeTimeout time.Duration
	gossipEvery  time.Duration // interval at which news goes to a few members
	syncEvery    time.Duration // interval of full exchanges with one member
	dialTimeout  time.Duration // for a connection and the exchange over it
	// reclaimAfter is how long a member must have been dead before its key may return with
	// another address.
	reclaimAfter time.Duration
	// searchMin and searchMax bound the wait between two searches for members
	// that gossip does not reach.
	searchMin, searchMax time.Duration
}

// With gossipTimingDefault, gossip declares a member that ended without notice dead after 6 to
// 10 s. It first gives the member the time of suspicionMult pings to object. To replace a node
// takes minutes, and Raft detects a dead leader by itself, so few false alarms matter more than
// speed.
var gossipTimingDefault = gossipTiming{
	probeEvery: time.Second, probeTimeout: 500 * time.Millisecond, gossipEvery: 200 * time.Millisecond,
	syncEvery: 10 * time.Second, dialTimeout: 3 * time.Second, reclaimAfter: time.Second,
	searchMin: 500 * time.Millisecond, searchMax: 15 * time.Second,
}

const suspicionMult = 6

// GossipConfig configures StartGossip.
type GossipConfig struct {
	// Self is this node. GossipAddr, Alive and Since are ignored.
	Self Member
	// Addr is HOST:PORT to listen at, TCP and UDP, and the address that others use. The host
	// names one interface. Port 0 picks any.
	Addr string
	// Join holds the gossip addresses, HOST:PORT, at which to search for other nodes. Each
	// search resolves a host name again, to all its addresses.
	Join []string
	// Joining and Promised are the fields of Identity. They let a node without a cluster join
	// the cluster Joining, or one that a node of the set Promised belongs to.
	Joining, Promised string
	// Keys encrypt gossip. Without keys, gossip is neither encrypted nor authenticated.
	Keys *GossipKeys // nil for none
	// Transition lets a running cluster turn on encryption; see GossipTransition.
	Transition GossipTransition
	Logger     *slog.Logger

	timing gossipTiming // gossipTimingDefault if zero
}

// Gossip exchanges with other nodes which nodes are alive and at which addresses. It never
// decides which nodes are members of the cluster.
type Gossip struct {
	cfg  GossipConfig
	view *gossipView
	list *memberlist.Memberlist
	addr string

	announcing sync.Mutex // one Announce at a time
	search     search
}

// GossipTransition is a step in which nodes of a running cluster turn on the encryption of gossip.
// All nodes take GossipAccept first, then all take GossipSend, and then all return to GossipStrict.
type GossipTransition string

const (
	GossipStrict GossipTransition = ""       // encrypts, and refuses plain packets
	GossipAccept GossipTransition = "accept" // accepts both, and sends plain packets
	GossipSend   GossipTransition = "send"   // accepts both, and encrypts
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
	c.AdvertisePort = c.BindPort // advertise the host that is bound
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

// listenAddr resolves HOST:PORT to the one address to bind, which is also the one that
// others use. memberlist would treat a host name as every interface.
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

// resolve returns the addresses of HOST:PORT, at least one, IPv4 first.
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

// Addr returns the gossip address that others use, IP:PORT.
func (g *Gossip) Addr() string { return g.addr }

// Members returns all known members by key, ascending: this node, the living and the dead.
// Beyond 1,024 members it forgets dead ones, the longest dead first. The slice is immutable.
func (g *Gossip) Members() []Member {
	members, _ := g.view.state()
	return members
}

// Member returns the member of a key, and whether it is known.
func (g *Gossip) Member(key string) (Member, bool) {
	members := g.Members()
	at, known := slices.BinarySearchFunc(members, key, func(m Member, key string) int { return strings.Compare(m.Key, key) })
	if !known {
		return Member{}, false
	}
	return members[at], true
}

// Trust lets a node without a cluster join the cluster of any node of a set. The set has the form
// of Identity.Promised.
func (g *Gossip) Trust(set string) { g.view.trust(splitSet(set)) }

// Changed returns a channel that is closed when Members changes. A caller that waits gets
// the channel before it reads Members, so that it misses no change.
func (g *Gossip) Changed() <-chan struct{} {
	_, changed := g.view.state()
	return changed
}

// Announce changes what this node announces about itself. It waits until memberlist has sent the
// news often enough, but at most for wait. The news also spreads without that. The key cannot be
// changed.
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
	// The only error is a timeout. A timeout of 0 would be none.
	_ = g.list.UpdateNode(max(wait, 1))
	return nil
}

// Close announces that this node leaves, and stops. Afterwards no goroutine of this package
// writes or logs, except for connections that memberlist holds for up to the dial timeout.
func (g *Gossip) Close() error {
	g.stopSearch()
	leaving := g.list.Leave(leaveTimeout)
	if leaving != nil { // the others detect the loss by their pings
		g.cfg.Logger.Debug("left gossip unheard", "err", leaving)
	}
	if err := g.list.Shutdown(); err != nil {
		return fmt.Errorf("cannot stop gossip: %w", err)
	}
	return nil
}
