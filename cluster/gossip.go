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
	// leaveTimeout bounds how long Close waits for others to hear of it: a stop
	// has 10 s in all, and those who did not hear find out by themselves.
	leaveTimeout = time.Second
	// announceTimeout bounds how long Announce waits for others to hear of it.
	announceTimeout = time.Second
	resolveTimeout  = 2 * time.Second
)

// gossipTiming is how fast members are found, lost and found again.
type gossipTiming struct {
	probeEvery   time.Duration // a member is pinged
	probeTimeout time.Duration
	gossipEvery  time.Duration // news go to a few members
	syncEvery    time.Duration // all that is known is exchanged with one member
	dialTimeout  time.Duration // of a connection, and of what is done over it
	// reclaimAfter is for how long a member must have been dead before its key
	// may come back from another address.
	reclaimAfter time.Duration
	// searchMin and searchMax bound the wait between two searches for members
	// that gossip does not reach.
	searchMin, searchMax time.Duration
}

// gossipTimingDefault finds a member that ends without a word dead after 6 to
// 10 s: by suspicionMult pings it was given that long to object. Replacing a node
// takes minutes, and Raft finds a dead leader by itself, so calm is worth more.
var gossipTimingDefault = gossipTiming{
	probeEvery: time.Second, probeTimeout: 500 * time.Millisecond, gossipEvery: 200 * time.Millisecond,
	syncEvery: 10 * time.Second, dialTimeout: 3 * time.Second, reclaimAfter: time.Second,
	searchMin: 500 * time.Millisecond, searchMax: 15 * time.Second,
}

const suspicionMult = 6

// GossipConfig configures StartGossip.
type GossipConfig struct {
	// Self is what the node says of itself. GossipAddr, Alive and Since are not
	// looked at.
	Self Member
	// Addr is HOST:PORT to listen at, TCP and UDP, and what others are told. The
	// host names one interface. Port 0 takes any.
	Addr string
	// Join are gossip addresses, HOST:PORT, to look for other nodes at. A host's
	// name is resolved each time, to all its addresses.
	Join []string
	// Joining and Promised are as Identity has them, for a node without a cluster: it
	// joins that cluster, or the one that these nodes have formed.
	Joining, Promised string
	// Keys encrypt gossip (ReadGossipKeys); none: it is neither encrypted nor
	// are other nodes' packets proved to be theirs.
	Keys   [][]byte
	Logger *slog.Logger

	timing gossipTiming // gossipTimingDefault if zero
}

// Gossip tells and hears which nodes live and where. It never decides who is a
// member of the cluster.
type Gossip struct {
	cfg  GossipConfig
	view *gossipView
	list *memberlist.Memberlist
	addr string

	announcing sync.Mutex // one Announce at a time
	search     search
}

// StartGossip starts to listen and to look for other nodes. Close stops it.
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
	conf, err := g.listConfig(at)
	if err != nil {
		return nil, err
	}
	if g.list, err = memberlist.Create(conf); err != nil {
		return nil, fmt.Errorf("cannot start gossip at %s: %w", at, err)
	}
	g.addr = g.list.LocalNode().Address()
	g.startSearch()
	return g, nil
}

// listConfig returns memberlist's settings.
func (g *Gossip) listConfig(at netip.AddrPort) (*memberlist.Config, error) {
	ring, err := keyring(g.cfg.Keys)
	if err != nil {
		return nil, err
	}
	t := g.cfg.timing
	c := memberlist.DefaultLANConfig()
	c.Name = g.cfg.Self.Key
	c.Label = gossipLabel
	c.BindAddr, c.BindPort = at.Addr().String(), int(at.Port())
	c.AdvertisePort = c.BindPort // the host told is the one bound
	c.Keyring = ring
	c.TCPTimeout = t.dialTimeout
	c.ProbeInterval, c.ProbeTimeout = t.probeEvery, t.probeTimeout
	c.GossipInterval, c.PushPullInterval = t.gossipEvery, t.syncEvery
	c.SuspicionMult = suspicionMult
	c.DeadNodeReclaimTime = t.reclaimAfter
	c.Delegate, c.Events, c.Alive, c.Merge, c.Conflict = g.view, g.view, g.view, g.view, g.view
	c.Logger = newGossipLog(g.cfg.Logger)
	return c, nil
}

// listenAddr resolves HOST:PORT to the one address to bind, which is also what
// others are told: memberlist would take a name for every interface.
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

// resolve returns the addresses that HOST:PORT means, one at least, those of
// IPv4 first.
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

// Addr returns the gossip address that others are told, IP:PORT.
func (g *Gossip) Addr() string { return g.addr }

// Members returns all members known, by key, ascending: this node, the living
// and the dead. Dead ones are forgotten only past 1,024, the longest dead first.
// Nobody changes the slice.
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

// Trust lets a node without a cluster join those of the nodes of a set, as
// Identity.Promised has it.
func (g *Gossip) Trust(set string) { g.view.trust(splitSet(set)) }

// ReadsNames reports whether a connection to a node's cluster address may carry the name
// of the cluster. Programs of cluster version 4 refuse it.
func (g *Gossip) ReadsNames(clusterAddr string) bool {
	reads := true
	for _, m := range g.Members() {
		if m.ClusterAddr != clusterAddr {
			continue
		}
		if reads = m.VersionMax >= versionOfClusterNames; m.Alive {
			break // others there are gone
		}
	}
	return reads
}

// Changed returns a channel that is closed when Members changes. Whoever waits
// for it takes it before Members, so as to miss nothing.
func (g *Gossip) Changed() <-chan struct{} {
	_, changed := g.view.state()
	return changed
}

// Announce changes what this node says of itself, and returns when others are
// being told, within a second or so. The key cannot be changed.
func (g *Gossip) Announce(change func(*Member)) error {
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
	// Its one error is that of a time-out, after which the news still travel.
	_ = g.list.UpdateNode(announceTimeout)
	return nil
}

// Close tells others that this node leaves, and stops. No goroutine that was
// started here writes or logs after it, but for connections that memberlist
// still holds for up to the dial timeout.
func (g *Gossip) Close() error {
	g.stopSearch()
	leaving := g.list.Leave(leaveTimeout)
	if leaving != nil { // they find out by their pings
		g.cfg.Logger.Debug("left gossip unheard", "err", leaving)
	}
	if err := g.list.Shutdown(); err != nil {
		return fmt.Errorf("cannot stop gossip: %w", err)
	}
	return nil
}
