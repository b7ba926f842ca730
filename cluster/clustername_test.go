package cluster

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/shard/rpc"
)

func TestNamesAgree(t *testing.T) {
	for _, tc := range []struct {
		a, b             string
		members, anybody bool
	}{
		{"", "", true, true}, {"prod", "prod", true, true}, {"prod", "test", false, false}, {"prod", "", true, false},
	} {
		for _, pair := range [][2]string{{tc.a, tc.b}, {tc.b, tc.a}} {
			if got := rpc.ClustersAgree(pair[0], pair[1], true); got != tc.members {
				t.Errorf("two members with %q agree: %v", pair, got)
			}
			if got := rpc.ClustersAgree(pair[0], pair[1], false); got != tc.anybody {
				t.Errorf("two nodes with %q agree: %v", pair, got)
			}
		}
	}
}

// withCluster returns cfg with a cluster id and a cluster name.
func withCluster(cfg GossipConfig, id, name string) GossipConfig {
	cfg.Self.ClusterID, cfg.Self.ClusterName = id, name
	return cfg
}

// freePort returns an address at which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestStrangersPullNobodyIn: members of a cluster search for a former member. At its address, a node without a
// cluster now listens. Then
//
//  1. that node sees none of the members, and logs once the name of the cluster that they belong
//     to;
//  2. the members do not see that node;
//  3. once that node's own search reaches one member, the node sees all members.
func TestStrangersPullNobodyIn(t *testing.T) {
	address := freePort(t)
	a := startGossip(t, withCluster(gossiper("a", address), clusterX, ""))
	b := startGossip(t, withCluster(gossiper("b", a.Addr(), address), clusterX, ""))
	var log proctest.Buffer
	cfg := gossiper("w", freePort(t))
	cfg.Addr, cfg.Logger = address, log.Logger()
	w := startGossip(t, cfg)
	eventually(t, func() string {
		if !log.Has("refused a node in gossip") || !log.Has(clusterX) || !log.Has("no address of --join") {
			return "w refuses the cluster"
		}
		return all(sees(a, "a", "b"), sees(b, "a", "b"), sees(w, "w"))
	})
	eventually(t, func() string {
		if w.Problem() == "" {
			return "w says that it found nobody"
		}
		return ""
	})
	if n := strings.Count(log.String(), "refused a node in gossip"); n != 1 {
		t.Errorf("%d refusals of one cluster are logged", n)
	}
	w.Seeds([]string{a.Addr()})
	eventually(t, func() string { return all(sees(w, "a", "b", "w"), sees(a, "a", "b")) })
	if err := w.Announce(must.BecomeMax, func(m *Member) { m.ClusterID = clusterX }); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string { return all(sees(a, "a", "b", "w"), sees(b, "a", "b", "w")) })
}

// TestOtherNamesAreRefused: nodes with different cluster names do not see each other, whether or not they have a cluster, and log
// why.
func TestOtherNamesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		idA, nameA, idB, nameB string
		together               bool
	}{
		"two clusters":               {idA: clusterX, nameA: "red", idB: clusterY, nameB: "blue"},
		"two clusters of one name":   {idA: clusterX, nameA: "red", idB: clusterY, nameB: "red"},
		"a copy of a cluster":        {idA: clusterX, nameA: "red", idB: clusterX, nameB: "blue"},
		"a new node":                 {idA: clusterX, nameA: "red", nameB: "blue"},
		"a new node without a name":  {idA: clusterX, nameA: "red"},
		"a new node with a name":     {idA: clusterX, nameB: "blue"},
		"new nodes":                  {nameA: "red", nameB: "blue"},
		"new nodes, one with a name": {nameA: "red"},
		"a member without a name":    {idA: clusterX, nameA: "red", idB: clusterX, together: true},
		"members":                    {idA: clusterX, nameA: "red", idB: clusterX, nameB: "red", together: true},
		"new nodes of one name":      {nameA: "red", nameB: "red", together: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logA, logB proctest.Buffer
			cfgA := withCluster(gossiper("a"), tc.idA, tc.nameA)
			cfgA.Logger = logA.Logger()
			a := startGossip(t, cfgA)
			cfgB := withCluster(gossiper("b", a.Addr()), tc.idB, tc.nameB)
			cfgB.Logger = logB.Logger()
			b := startGossip(t, cfgB)
			if tc.together {
				eventually(t, func() string { return all(sees(a, "a", "b"), sees(b, "a", "b")) })
				return
			}
			eventually(t, func() string {
				for node, log := range map[string]*proctest.Buffer{"a": &logA, "b": &logB} {
					for _, want := range []string{"refused a node in gossip", rpc.DescribeCluster(tc.idA, tc.nameA), rpc.DescribeCluster(tc.idB, tc.nameB)} {
						if !log.Has(want) {
							return fmt.Sprintf("%s does not log %q", node, want)
						}
					}
				}
				return all(sees(a, "a"), sees(b, "b"))
			})
		})
	}
}

// TestNodesJoinWhatTheyPromisedThemselvesTo: a node without --join has promised to form a cluster with others. It
// joins the cluster that the others then form.
func TestNodesJoinWhatTheyPromisedThemselvesTo(t *testing.T) {
	for name, tc := range map[string]struct {
		joining, promised string // before its start
		trust             string // after its start
		sees              bool
	}{
		"strangers":           {},
		"promised":            {promised: "a.00000000,s.00000000", sees: true},
		"joining":             {joining: clusterX, sees: true},
		"joining another":     {joining: clusterY},
		"promised to others":  {promised: "b.00000000,s.00000000"},
		"promised meanwhile":  {trust: "a.00000000,s.00000000", sees: true},
		"to others meanwhile": {trust: "b.00000000,s.00000000"},
	} {
		t.Run(name, func(t *testing.T) {
			self, a, c := Member{Key: "s.00000000", Name: "s"}, Member{Key: "a.00000000", Name: "a"}, Member{Key: "c.00000000", Name: "c", ClusterID: clusterX}
			v := newGossipView(self, newContacts(tc.joining, splitSet(tc.promised)), slog.New(slog.DiscardHandler))
			if err := v.NotifyAlive(node(a, true)); err != nil {
				t.Fatalf("a node without a cluster is refused: %v", err)
			}
			v.NotifyJoin(node(a, true))
			v.trust(splitSet(tc.trust))
			a.ClusterID = clusterX
			if err := v.NotifyAlive(node(a, true)); (err == nil) != tc.sees {
				t.Errorf("a, which has a cluster now: %v", err)
			}
			if err := v.NotifyAlive(node(c, true)); (err == nil) != tc.sees {
				t.Errorf("c, of the same cluster: %v", err)
			}
			if _, seen := v.mu.members[a.Key]; seen != tc.sees {
				t.Errorf("a is still a member: %v", seen)
			}
		})
	}
}

// TestAnswersThatComeWhileDialling: if several answers arrive while a node without a cluster dials,
// the node trusts only the members that all answers share. It does not know which answer the
// dialled address sent.
func TestAnswersThatComeWhileDialling(t *testing.T) {
	x, y, bare := Member{Key: "x.00000000", Name: "x", ClusterID: clusterX}, Member{Key: "y.00000000", Name: "y", ClusterID: clusterY}, numbered(1)
	const addr = "127.0.0.1:1" // the address of all these nodes
	for name, tc := range map[string]struct {
		answers [][]Member
		failed  bool
		addr    string
		added   bool
		want    []Member // members that v may join
	}{
		"one":                    {answers: [][]Member{{x, bare}}, addr: addr, added: true, want: []Member{x, bare}},
		"a stranger's too":       {answers: [][]Member{{y}, {x}}, addr: addr},
		"two of one cluster":     {answers: [][]Member{{x}, {bare, x}}, addr: addr, added: true, want: []Member{x}},
		"none came":              {addr: addr},
		"the dialled one failed": {answers: [][]Member{{x}}, failed: true, addr: addr},
		"of another address":     {answers: [][]Member{{bare}}, addr: "127.0.0.1:2"},
		"of a node to be":        {answers: [][]Member{{bare}}, addr: addr, want: []Member{bare}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newGossipView(numbered(0), newContacts("", nil), slog.New(slog.DiscardHandler))
			stray := []*memberlist.Node{node(y, true), node(x, true)}
			if err := v.NotifyMerge(stray); err != nil { // before v dialled
				t.Fatal(err)
			}
			if !v.dial() {
				t.Fatal("it has a cluster")
			}
			for _, answer := range tc.answers {
				var nodes []*memberlist.Node
				for _, m := range answer {
					nodes = append(nodes, node(m, true))
				}
				if err := v.NotifyMerge(nodes); err != nil {
					t.Fatal(err)
				}
			}
			if added := v.dialled(tc.addr, !tc.failed); added != tc.added {
				t.Errorf("a cluster was added: %v", added)
			}
			if err := v.NotifyMerge(stray); err != nil { // after v dialled
				t.Fatal(err)
			}
			for _, m := range []Member{x, y, bare} {
				want := false
				for _, w := range tc.want {
					want = want || w == m
				}
				if got := v.mu.contacts.has(&m); got != want {
					t.Errorf("%s may be joined: %v, want %v", m.Key, got, want)
				}
			}
		})
	}
}
