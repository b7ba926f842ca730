package cluster

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// fastGossip detects a killed member after 1.2 to 2 s.
var fastGossip = gossipTiming{
	probeEvery: 200 * time.Millisecond, probeTimeout: 150 * time.Millisecond, gossipEvery: 20 * time.Millisecond,
	syncEvery: time.Second, dialTimeout: time.Second, reclaimAfter: 100 * time.Millisecond,
	searchMin: 20 * time.Millisecond, searchMax: 200 * time.Millisecond,
}

// eventually polls until holds returns "", for at most must.BecomeMax.
func eventually(t *testing.T, holds func() string) {
	t.Helper()
	deadline := time.Now().Add(must.BecomeMax)
	for {
		why := holds()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", why)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// gossiper returns the configuration of a member.
func gossiper(name string, join ...string) GossipConfig {
	return GossipConfig{
		Self: Member{
			Key: name + ".00000000", Name: name, HTTPAddr: name + ":7400", ClusterAddr: name + ":7401", Version: "test", VersionMax: 1,
		},
		Addr: "127.0.0.1:0", Join: join, Logger: slog.New(slog.DiscardHandler), timing: fastGossip,
	}
}

func startGossip(t *testing.T, cfg GossipConfig) *Gossip {
	t.Helper()
	g, err := StartGossip(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// sees returns "" if g sees exactly these members. "-name" stands for a dead member.
func sees(g *Gossip, want ...string) string {
	var got []string
	for _, m := range g.Members() {
		if m.Alive {
			got = append(got, m.Name)
		} else {
			got = append(got, "-"+m.Name)
		}
	}
	if fmt.Sprint(got) == fmt.Sprint(want) {
		return ""
	}
	return fmt.Sprintf("%s sees %v, want %v", g.cfg.Self.Name, got, want)
}

func all(whys ...string) string {
	for _, why := range whys {
		if why != "" {
			return why
		}
	}
	return ""
}

// crash ends a member without a leave message, as if its process was killed.
func crash(t *testing.T, g *Gossip) {
	t.Helper()
	g.stopSearch()
	if err := g.list.Shutdown(); err != nil {
		t.Fatal(err)
	}
}

// startMortal starts a member that the test itself ends.
func startMortal(t *testing.T, cfg GossipConfig) *Gossip {
	t.Helper()
	g, err := StartGossip(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestMembersLiveDieAndReturn: each of three members sees the others alive. The others see a killed
// member dead within seconds, and alive once it returns, even at a new address. If a member leaves,
// the others see it dead at once.
func TestMembersLiveDieAndReturn(t *testing.T) {
	a := startGossip(t, gossiper("a"))
	b := startGossip(t, gossiper("b", a.Addr()))
	cfg := gossiper("c", b.Addr(), "127.0.0.1:1")
	c := startMortal(t, cfg)
	eventually(t, func() string { return all(sees(a, "a", "b", "c"), sees(b, "a", "b", "c"), sees(c, "a", "b", "c")) })
	met := a.Members()[2]
	if met.ClusterAddr != "c:7401" || met.GossipAddr != c.Addr() || met.HTTPAddr != "c:7400" || met.VersionMax != 1 {
		t.Errorf("c is %+v", met)
	}
	for i, m := range a.Members() {
		if found, known := a.Member(m.Key); !known || found != a.Members()[i] {
			t.Errorf("%s is %+v, %v", m.Key, found, known)
		}
	}
	if found, known := a.Member("b"); known || found != (Member{}) {
		t.Errorf("nobody is %+v", found)
	}

	eventually(t, func() string {
		a.view.mu.Lock()
		defer a.view.mu.Unlock()
		if a.view.mu.answered[c.list.LocalNode().Name].Before(met.Since) {
			return "c has answered no probe"
		}
		return ""
	})
	crash(t, c)
	crashed := time.Now()
	eventually(t, func() string { return all(sees(a, "a", "b", "-c"), sees(b, "a", "b", "-c")) })
	if died := a.Members()[2]; !died.Since.After(met.Since) || died.Since.After(crashed) || died.ClusterAddr != met.ClusterAddr {
		t.Errorf("dead c is %+v, alive it was %+v", died, met)
	}

	cfg.Addr = c.Addr()
	c = startMortal(t, cfg)
	eventually(t, func() string { return all(sees(a, "a", "b", "c"), sees(b, "a", "b", "c"), sees(c, "a", "b", "c")) })

	crash(t, c)
	cfg.Addr = "127.0.0.1:0"
	c = startMortal(t, cfg)
	eventually(t, func() string {
		if at := a.Members()[2].GossipAddr; at != c.Addr() {
			return fmt.Sprintf("a has c at %s, it is at %s", at, c.Addr())
		}
		return all(sees(a, "a", "b", "c"), sees(b, "a", "b", "c"), sees(c, "a", "b", "c"))
	})

	if err := c.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, func() string { return all(sees(a, "a", "b", "-c"), sees(b, "a", "b", "-c")) })
}

func TestAnnouncedIsHeard(t *testing.T) {
	a := startGossip(t, gossiper("a"))
	b := startGossip(t, gossiper("b", a.Addr()))
	eventually(t, func() string { return all(sees(a, "a", "b"), sees(b, "a", "b")) })
	changed := b.Changed()
	cluster := strings.Repeat("0a", clusterIDBytes)
	if err := a.Announce(must.BecomeMax, func(m *Member) { m.ClusterID, m.State, m.Key = cluster, MemberServing, "x.00000000" }); err != nil {
		t.Fatal(err)
	}
	if me := a.Members()[0]; me.ClusterID != cluster || me.Key != "a.00000000" || !me.Alive {
		t.Errorf("a sees itself as %+v", me)
	}
	eventually(t, func() string {
		if m := b.Members()[0]; m.ClusterID != cluster || m.State != MemberServing {
			return fmt.Sprintf("b sees a as %+v", m)
		}
		return ""
	})
	select {
	case <-changed:
	default:
		t.Error("no change was told")
	}
	if err := a.Announce(must.BecomeMax, func(m *Member) { m.Zone = "a b" }); err == nil {
		t.Error("an impossible zone was announced")
	}
}

func TestAnotherClusterIsRefused(t *testing.T) {
	var logA, logB proctest.Buffer
	cfgA := gossiper("a")
	cfgA.Self.ClusterID, cfgA.Logger = strings.Repeat("0a", clusterIDBytes), logA.Logger()
	a := startGossip(t, cfgA)
	cfgB := gossiper("b", a.Addr())
	cfgB.Self.ClusterID, cfgB.Logger = strings.Repeat("0b", clusterIDBytes), logB.Logger()
	b := startGossip(t, cfgB)
	bare := startGossip(t, gossiper("c", a.Addr(), b.Addr()))
	eventually(t, func() string {
		const line = "refused a node in gossip"
		if !logA.Has(line) || !logB.Has(line) || !logA.Has(cfgB.Self.ClusterID) {
			return "both log a refusal"
		}
		return all(sees(a, "a"), sees(b, "b"), sees(bare, "a", "b", "c"))
	})
}

func TestKeysMustAgree(t *testing.T) {
	keyed := func(name string, keys []string, join ...string) GossipConfig {
		cfg := gossiper(name, join...)
		cfg.Keys = openKeys(t, keys...)
		return cfg
	}
	a := startGossip(t, keyed("a", []string{textOne, textTwo}))
	b := startGossip(t, keyed("b", []string{textTwo, textOne}, a.Addr()))
	other := startGossip(t, keyed("c", []string{textThree}, a.Addr()))
	plain := startGossip(t, gossiper("d", a.Addr()))
	eventually(t, func() string {
		if other.Problem() == "" || plain.Problem() == "" {
			return "those without the key say that they find nobody"
		}
		return all(sees(a, "a", "b"), sees(b, "a", "b"))
	})
	if why := all(sees(other, "c"), sees(plain, "d")); why != "" {
		t.Error(why)
	}
}

// TestSearchGoesOn: a node that found nobody finds nodes that arrive later. A node that lost a member finds that member
// again, even if the member does not search.
func TestSearchGoesOn(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	a := startGossip(t, gossiper("a", addr))
	eventually(t, func() string {
		if strings.Contains(a.Problem(), addr) && !strings.Contains(a.Problem(), "\n") {
			return ""
		}
		return fmt.Sprintf("a has the problem %q", a.Problem())
	})
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	cfg := gossiper("b")
	cfg.Addr = addr
	b := startMortal(t, cfg)
	eventually(t, func() string { return all(sees(a, "a", "b"), sees(b, "a", "b"), a.Problem()) })
	crash(t, b)
	eventually(t, func() string { return sees(a, "a", "-b") })
	b = startGossip(t, cfg)
	eventually(t, func() string { return all(sees(a, "a", "b"), sees(b, "a", "b")) })
}

func TestSeedsAreLookedAt(t *testing.T) {
	a := startGossip(t, gossiper("a"))
	b := startGossip(t, gossiper("b"))
	b.Seeds([]string{b.Addr(), a.Addr(), a.Addr()})
	eventually(t, func() string { return all(sees(a, "a", "b"), sees(b, "a", "b")) })
}

func TestListenAddr(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:7402": "127.0.0.1:7402", "localhost:7402": "127.0.0.1:7402", "[::1]:1": "[::1]:1", "[::ffff:10.0.0.1]:1": "10.0.0.1:1",
		"0.0.0.0:1": "", "[::]:1": "", "127.0.0.1": "", "127.0.0.1:x": "", "127.0.0.1:65536": "", "no such host:1": "",
	} {
		at, err := listenAddr(addr)
		if (err == nil) != (want != "") || err == nil && at.String() != want {
			t.Errorf("%q is %v, %v, want %q", addr, at, err, want)
		}
	}
}

func node(m Member, alive bool) *memberlist.Node {
	n := &memberlist.Node{Name: m.Key, Addr: net.IPv4(127, 0, 0, 1), Port: 1, Meta: appendMeta(nil, &m), State: memberlist.StateAlive}
	if !alive {
		n.State = memberlist.StateDead
	}
	return n
}

func numbered(i int) Member {
	return Member{Key: fmt.Sprintf("n%04d.00000000", i), Name: fmt.Sprintf("n%04d", i)}
}

// TestMembersAreBounded: if there would be too many members, gossip forgets the one that has been
// dead the longest. If all members are alive, gossip adds no further member.
func TestMembersAreBounded(t *testing.T) {
	v := newGossipView(numbered(0), newContacts("", nil), slog.New(slog.DiscardHandler))
	for i := range membersMax {
		if err := v.NotifyAlive(node(numbered(i), true)); err != nil {
			t.Fatal(err)
		}
		v.NotifyJoin(node(numbered(i), true))
	}
	if err := v.NotifyAlive(node(numbered(membersMax), true)); err == nil {
		t.Fatal("a member too many was let in")
	}
	v.NotifyLeave(node(numbered(7), false))
	v.NotifyLeave(node(numbered(3), false))
	if err := v.NotifyAlive(node(numbered(membersMax), true)); err != nil {
		t.Fatal(err)
	}
	v.NotifyJoin(node(numbered(membersMax), true))
	members, _ := v.state()
	if len(members) != membersMax || members[3].Alive || members[7].Key != numbered(8).Key {
		t.Errorf("%d members, the fourth %+v, the eighth %+v", len(members), members[3], members[7])
	}
}

// TestForeignMembersAreNotShown: a node without a cluster may admit members of another cluster. Once it has its own cluster, it
// hides them.
func TestForeignMembersAreNotShown(t *testing.T) {
	x, y := strings.Repeat("0a", clusterIDBytes), strings.Repeat("0b", clusterIDBytes)
	self, mine, foreign := numbered(0), numbered(1), numbered(2)
	mine.ClusterID, foreign.ClusterID = x, y
	v := newGossipView(self, newContacts(x, []string{foreign.Key}), slog.New(slog.DiscardHandler))
	for _, m := range []Member{self, mine, foreign} {
		if err := v.NotifyAlive(node(m, true)); err != nil {
			t.Fatal(err)
		}
		v.NotifyJoin(node(m, true))
	}
	if members, _ := v.state(); len(members) != 3 {
		t.Fatalf("without a cluster it sees %+v", members)
	}
	if err := v.edit(func(m *Member) { m.ClusterID = x }); err != nil {
		t.Fatal(err)
	}
	self.ClusterID = x
	v.NotifyUpdate(node(self, true))
	members, _ := v.state()
	if len(members) != 2 || members[1].Key != mine.Key {
		t.Errorf("of cluster %s it sees %+v", x, members)
	}
	if err := v.NotifyMerge([]*memberlist.Node{node(mine, true), node(foreign, false)}); err != nil {
		t.Errorf("a dead member of another cluster kept a join from being: %v", err)
	}
	if err := v.NotifyMerge([]*memberlist.Node{node(foreign, true)}); err == nil {
		t.Error("a member of another cluster was let in by a join")
	}
	if err := v.NotifyMerge([]*memberlist.Node{node(mine, true), node(foreign, true)}); err != nil || v.NotifyAlive(node(foreign, true)) == nil {
		t.Errorf("among members of this cluster one of another is let in, or keeps them out: %v", err)
	}
}

// Packets of another protocol cause one log line, not one for each packet.
func TestGossipLogRepeatsNothing(t *testing.T) {
	var out proctest.Buffer
	l := newGossipLog(out.Logger())
	for port := range 400 {
		l.Printf("[ERR] memberlist: msg type (%d) not supported from=127.0.0.1:%d", port%100, 30_000+port)
	}
	if !out.Has("not supported") || out.Has("127.0.0.1:30001") {
		t.Error("the first line is missing, or the second is there")
	}
}

// Malformed packets also cause one log line, although most of memberlist's lines quote bytes of the
// packet.
func TestGossipLogOfMalformedPackets(t *testing.T) {
	var out proctest.Buffer
	l := newGossipLog(out.Logger())
	for n := range 400 {
		from := fmt.Sprintf("from=127.0.0.1:%d", 30_000+n)
		noise := fmt.Sprintf("%c%x", 'a'+n%26, n*0x9e3779b1)
		switch n % 10 {
		case 0:
			l.Printf("[ERR] memberlist: discarding packet with unacceptable label %q: %s", noise, from)
		case 1:
			l.Printf("[WARN] memberlist: Got invalid checksum for UDP packet: %s, %s", noise, noise)
		case 2:
			l.Printf("[ERR] memberlist: Decrypt packet failed: %s %s", noise, from)
		case 3:
			l.Printf("[ERR] memberlist: msg type (%d) not supported %s", n, from)
		case 4:
			l.Printf("[ERR] memberlist: Failed to decode compound request: %s %s", noise, from)
		case 5:
			l.Printf("[WARN] memberlist: Compound request had %d truncated messages %s", n, from)
		case 6:
			l.Printf("[ERR] memberlist: Received invalid msgType (%d) %s", n, from)
		case 7:
			l.Printf("[ERR] memberlist: Failed to decompress payload: %s %s", noise, from)
		case 8:
			l.Printf("[ERR] memberlist: failed to receive and remove the stream label header: %s %s", noise, from)
		case 9:
			l.Printf("[ERR] memberlist: missing message type byte %s", from)
		}
	}
	if got := strings.Split(strings.TrimSpace(out.String()), "\n"); len(got) != 1 || !strings.Contains(got[0], "level=WARN") || !strings.Contains(got[0], "unacceptable label") {
		t.Errorf("%d lines: %q", len(got), got)
	}
}

func TestGossipLogLevels(t *testing.T) {
	var out proctest.Buffer
	l := newGossipLog(out.Logger())
	l.Printf("[ERR] memberlist: of one kind")
	l.Printf("[WARN] memberlist: of another")
	l.Printf("[INFO] memberlist: not shown")
	l.Printf("no level")
	l.Printf("[WARN] memberlist: ignoring alive message for 'a': whom NotifyAlive refused")
	l.Printf("[ERR] memberlist: Failed push/pull merge: that NotifyMerge refused")
	for text, want := range map[string]bool{
		`level=WARN msg="of one kind"`: true, `level=INFO msg="of another"`: true, "not shown": false, "refused": false, `level=INFO msg="no level"`: true,
	} {
		if out.Has(text) != want {
			t.Errorf("%q in the log: %v", text, !want)
		}
	}
}
