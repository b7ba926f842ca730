package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/cluster"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/tiering"
)

// watchedParts fakes the node n1 of a cluster of four, and its gossip.
type watchedParts struct {
	catalog *catalog.View
	health  shard.Health
	heard   map[string]cluster.Member
}

func (p *watchedParts) Catalog() *catalog.View { return p.catalog }
func (p *watchedParts) Health() shard.Health   { return p.health }

func (p *watchedParts) Member(key string) (cluster.Member, bool) {
	m, heard := p.heard[key]
	return m, heard
}

// The view combines the state of gossip, the catalog and the node. A node that gossip never names
// counts as dead after unheardMax.
func TestWatcherGathersTheView(t *testing.T) {
	began := time.Date(2026, 11, 22, 18, 0, 0, 0, time.UTC)
	known := catalog.New().View()
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		known.Nodes[name] = catalog.Node{Key: name, Name: name, State: catalog.NodeActive, VersionMax: 1}
	}
	known.Keyspaces["posts"] = catalog.Keyspace{Name: "posts", Groups: []uint32{1, 2}}
	known.Groups[1] = catalog.Placement{Target: []string{"n1", "n2", "n3"}}
	known.Groups[2] = catalog.Placement{Target: []string{"n2", "n3", "n4"}}
	parts := &watchedParts{
		catalog: known,
		health:  shard.Health{Leaders: map[uint32]string{1: "n1"}, Disk: tiering.Usage{Full: true, NeededBytes: 2, HasBytes: 1}, VotersFull: []uint32{1}},
		heard: map[string]cluster.Member{
			"n2": {Since: began},
			"n3": {Since: began, State: cluster.MemberStopping},
		},
	}
	settings := cluster.PlanSettings{Replicas: 3, ReplaceAfter: 10 * time.Minute, MovesMax: 2}
	w := &watcher{node: parts, gossip: parts, self: "n1", settings: settings, unheard: map[string]time.Time{}}

	v := w.view(began.Add(time.Second))
	if n := v.Nodes[1]; n.Name != "n2" || !n.DeadSince.Equal(began) || n.Stopped || !v.Nodes[2].Stopped {
		t.Errorf("nodes %+v", v.Nodes)
	}
	if !v.Nodes[0].DeadSince.IsZero() || !v.Nodes[3].DeadSince.IsZero() {
		t.Errorf("dead already: %+v", v.Nodes)
	}
	if g := v.Groups; len(g) != 2 || g[0].Name != "posts/0" || !g[0].Here || g[0].Leader != "n1" || g[1].Here || len(g[1].Voters) != 3 {
		t.Errorf("groups %+v", g)
	}
	if !v.Disk.Full || v.Memory.Full || len(v.VotersFull) != 1 || v.VotersFull[0] != "posts/0" {
		t.Errorf("room %+v %+v %q", v.Disk, v.Memory, v.VotersFull)
	}
	if _, never := v.Replaced("n2"); never != "half of the nodes or more are dead" {
		t.Errorf("half of four is dead, replaced: %q", never)
	}
	parts.heard["n3"] = cluster.Member{Alive: true}
	v = w.view(began.Add(2 * time.Second))
	if at, never := v.Replaced("n2"); never != "" || !at.Equal(began.Add(10*time.Minute)) {
		t.Errorf("replaced at %s, never %q", at, never)
	}
	v = w.view(began.Add(time.Second + unheardMax))
	if n := v.Nodes[3]; !n.DeadSince.Equal(began.Add(time.Second)) {
		t.Errorf("n4 is dead since %s", n.DeadSince)
	}
	delete(known.Nodes, "n4")
	if _, never := w.view(began.Add(time.Minute)).Replaced("n2"); !strings.Contains(never, "2 other nodes take replicas, a group has 3") {
		t.Errorf("nobody is left to replace n2: %q", never)
	}
}

func TestWatcherLogs(t *testing.T) {
	view := catalog.New().View()
	view.Nodes["n1"] = catalog.Node{Key: "n1", Name: "n1", State: catalog.NodeActive}
	lines := make(chan string, 1)
	parts := &watchedParts{catalog: view, health: shard.Health{Memory: tiering.Usage{Full: true}}}
	w := watch(parts, parts, "n1", cluster.PlanSettingsDefault, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
	if line := <-lines; !strings.Contains(line, `msg="writes of new rows stopped"`) {
		t.Errorf("logged %q", line)
	}
	w.close()
}

type lineWriter chan<- string

func (l lineWriter) Write(line []byte) (int, error) {
	l <- string(bytes.TrimSpace(line))
	return len(line), nil
}
