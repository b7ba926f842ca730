package cluster

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/*.txt after an intended change of the output")

// fitsScreen checks that an output fits into a terminal of 80 columns and 24 lines. The prompt needs
// one of the lines.
func fitsScreen(t *testing.T, text string) {
	t.Helper()
	if lines := strings.Count(text, "\n"); lines > 23 {
		t.Errorf("%d lines:\n%s", lines, text)
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// state holds the reports of a cluster from which the command builds its output.
type state struct {
	clusterName string
	nodes       []admin.ClusterNode
	groups      []admin.ClusterGroup
	keyspaces   []client.Keyspace
	version     admin.ClusterVersion
	why         string // reason why the node is not ready; "" if it is ready
	id          string
}

// healthy returns the state of a cluster with 24 groups. The first three nodes have replicas of all
// groups and lead them in turn.
func healthy(nodes int) *state {
	s := &state{id: "fb3880046ca8e4746d3695f64d2e2e1f", version: admin.ClusterVersion{Version: 5, Max: 5}}
	for n := range nodes {
		name := fmt.Sprintf("db-eu-west-%d", n+1)
		s.nodes = append(s.nodes, admin.ClusterNode{
			ID: name, Key: fmt.Sprintf("%s.0000000%d", name, n), Zone: "eu-west-1" + string("abc"[n%3]), State: "active",
			Alive: true, Answers: true, Version: "v1.4.0-rc.1", VersionMax: 5, HTTPAddr: "10.20.30.40:7400",
		})
	}
	for _, k := range []struct {
		name         string
		shards       int
		rows, bytes  uint64
		cold, onDisk uint64
	}{
		{"meta", 1, 0, 0, 0, 0},
		{"posts", 7, 176_367_231, 1_851_000_000, 150_000_000, 812_000_000},
		{"users", 7, 12_004_112, 261_000_000, 0, 0},
		{"unread", 7, 3_120_555, 61_400_000, 0, 0},
		{"feed", 1, 880_431, 402_000_000, 0, 0},
		{"board", 1, 12, 4_100, 0, 0},
	} {
		for shard := range k.shards {
			g := admin.ClusterGroup{
				ID: uint32(len(s.groups)), Keyspace: k.name, Shard: shard, Term: 3,
				Rows: k.rows, Bytes: k.bytes, ColdRows: k.cold, ColdBytes: k.onDisk,
			}
			for n := range min(3, nodes) {
				name := s.nodes[n].ID
				g.Target, g.Voters = append(g.Target, name), append(g.Voters, name)
				g.Replicas = append(g.Replicas, admin.Replica{Node: name, Role: "follower", AppliedIndex: 100})
				s.nodes[n].Replicas++
			}
			lead := len(s.groups) % min(3, nodes)
			g.Leader = s.nodes[lead].ID
			s.nodes[lead].Leads++
			s.groups = append(s.groups, g)
		}
	}
	return s
}

// kill marks a node as dead. Another node leads its groups if two of the first three nodes
// live; otherwise no group has a leader.
func (s *state) kill(n int) {
	dead := &s.nodes[n]
	dead.Alive, dead.Answers, dead.Leads = false, false, 0
	for i := range s.groups {
		g, living := &s.groups[i], []int{}
		for at := range s.nodes[:3] {
			if s.nodes[at].Alive {
				living = append(living, at)
			}
		}
		switch {
		case len(living) < 2:
			g.Leader = ""
		case g.Leader == dead.ID:
			g.Leader = s.nodes[living[0]].ID
			s.nodes[living[0]].Leads++
		}
	}
}

func (s *state) screen(t *testing.T) string {
	t.Helper()
	out := statusOutput{Ready: s.why == "", Why: s.why}
	if err := out.fill(admin.ClusterNodes{ClusterID: s.id, ClusterName: s.clusterName, Nodes: s.nodes}, s.groups, nil, s.version); err != nil {
		t.Fatal(err)
	}
	out.addGrowing(s.keyspaces)
	var text bytes.Buffer
	table := cli.NewTable(&text)
	out.screen(table)
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// The expected screens are files in testdata. They also serve as documentation.
func TestStatusScreens(t *testing.T) {
	for name, test := range map[string]struct {
		nodes  int
		change func(s *state)
	}{
		"healthy":  {3, func(*state) {}},
		"named":    {3, func(s *state) { s.clusterName = "prod" }},
		"one-dead": {3, func(s *state) { s.kill(1) }},
		"most-dead": {3, func(s *state) {
			s.kill(1)
			s.kill(2)
			s.why = "group 2 (posts): the shard has no leader"
			s.nodes[0].NotReady = s.why
		}},
		"no-disk": {3, func(s *state) { s.nodes[2].DiskFull = true }},
		"mixed-versions": {3, func(s *state) {
			s.nodes[0].Version, s.nodes[0].VersionMax, s.version = "v1.3.9-14-gabcdef0-dirty", 4, admin.ClusterVersion{Version: 4, Max: 4}
		}},
		"uneven-shards": {3, func(s *state) {
			for i := range s.groups {
				if g := &s.groups[i]; g.Keyspace == "posts" && g.Shard > 0 {
					g.Rows, g.ColdRows = 20, 0
				}
			}
		}},
		"a-node-leaves": {5, func(s *state) {
			s.nodes[1].State = "leaving"
			for i := range s.groups[:18] {
				s.groups[i].Target[1] = s.nodes[3].ID
			}
		}},
		"a-keyspace-grows": {3, func(s *state) {
			s.keyspaces = []client.Keyspace{{Name: "users", Shards: 1}, {Name: "posts", Shards: 7, Growing: &client.Growing{
				To: 21, Split: 1, Since: "2026-03-01T12:00:00Z",
				Shards: []client.GrowingShard{{State: "begun"}, {Shard: 1, State: "split"}, {Shard: 2, State: "committed"}, {Shard: 3, State: "waiting"}},
			}}}
		}},
		"twelve-nodes": {12, func(s *state) {
			for n := 5; n < 9; n++ {
				s.nodes[n].Alive, s.nodes[n].Answers = false, false
			}
			s.nodes[10].MemoryFull, s.nodes[11].MemoryFull = true, true
			for n := range 30 {
				g := s.groups[1]
				g.ID, g.Keyspace, g.Shard = uint32(100+n), fmt.Sprintf("a_keyspace_with_a_long_name_%d", n), 0
				g.Misfit = &admin.Misfit{ID: client.Number(1850000000000000000), Layout: "weibo", Fits: "twitter", Rows: g.Rows - g.ColdRows}
				s.groups = append(s.groups, g)
			}
		}},
		"no-cluster": {1, func(s *state) {
			*s = state{}
			s.why = "this node waits for two other nodes at 10.20.30.41:7402, 10.20.30.42:7402: it has found none yet, and asks again each second until they answer or it is stopped"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy(test.nodes)
			test.change(s)
			got := s.screen(t)
			fitsScreen(t, got)
			path := filepath.Join("testdata", "status-"+name+".txt")
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the screen is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestStatusScreenOfEverythingWrong(t *testing.T) {
	s := healthy(40)
	for n := range s.nodes {
		s.nodes[n].ID = strings.Repeat("x", 60) + fmt.Sprint(n)
		s.nodes[n].NotReady = strings.Repeat("a reason ", 30) + fmt.Sprint(n)
		s.nodes[n].Version, s.nodes[n].Zone = strings.Repeat("v", 100), strings.Repeat("z", 100)
		s.nodes[n].DiskFull, s.nodes[n].MemoryFull, s.nodes[n].Leads, s.nodes[n].Replicas = true, true, 99_999, 99_999
	}
	for g := range s.groups {
		s.groups[g].Keyspace = strings.Repeat("k", 60) + s.groups[g].Keyspace
	}
	s.why = strings.Repeat("why ", 100)
	fitsScreen(t, s.screen(t))
}
