package main

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/cluster"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
)

const (
	// watchEvery is the interval at which the watcher compares the node's view with the previous
	// one. It is shorter than an election, so the watcher sees most elections.
	watchEvery = 500 * time.Millisecond
	// unheardMax is how long gossip may not know a node of the catalog before the watcher counts
	// that node as dead.
	unheardMax = 10 * time.Second
)

// watchedNode is the part of a node that a watcher needs; *shard.Node implements it.
type watchedNode interface {
	Catalog() *catalog.View
	Health() shard.Health
}

// watchedGossip is the part of gossip that a watcher needs; *cluster.Gossip implements it.
type watchedGossip interface {
	Member(key string) (cluster.Member, bool)
}

// watcher collects its node's view and logs the changes. watch starts its goroutine. close stops
// the goroutine and waits for it.
type watcher struct {
	node     watchedNode
	gossip   watchedGossip
	self     string // key of this node
	settings cluster.PlanSettings
	log      *clusterWatch
	unheard  map[string]time.Time // for nodes that gossip has never named: when the watcher first noticed this

	stop, stopped chan struct{}
}

func watch(node watchedNode, gossip watchedGossip, self string, settings cluster.PlanSettings, logger *slog.Logger) *watcher {
	w := &watcher{
		node: node, gossip: gossip, self: self, settings: settings, log: newClusterWatch(logger),
		unheard: map[string]time.Time{}, stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	go w.run()
	return w
}

func (w *watcher) close() {
	close(w.stop)
	<-w.stopped
}

func (w *watcher) run() {
	defer close(w.stopped)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.log.Update(w.view(time.Now()))
		case <-w.stop:
			return
		}
	}
}

func (w *watcher) view(now time.Time) clusterView {
	catalog, health := w.node.Catalog(), w.node.Health()
	name := admin.Names(catalog)
	v := clusterView{At: now, Disk: viewSpace(health.Disk), Memory: viewSpace(health.Memory)}
	dead := map[string]time.Duration{}
	for _, key := range slices.Sorted(maps.Keys(catalog.Nodes)) {
		n := viewNode{Key: key, Name: name[key], State: string(catalog.Nodes[key].State)}
		if n.DeadSince, n.Stopped = w.deadSince(key, now); !n.DeadSince.IsZero() {
			dead[key] = now.Sub(n.DeadSince)
		}
		v.Nodes = append(v.Nodes, n)
	}
	groups := cluster.GroupNames(catalog)
	for _, number := range slices.Sorted(maps.Keys(catalog.Groups)) {
		leader, here := health.Leaders[number]
		v.Groups = append(v.Groups, viewGroup{Name: groups[number], Here: here, Leader: leader, Voters: catalog.Groups[number].Target})
	}
	for _, number := range health.VotersFull {
		v.VotersFull = append(v.VotersFull, groups[number])
	}
	v.Replaced = func(key string) (time.Time, string) {
		view := cluster.View{Catalog: catalog, Dead: dead, Settings: w.settings}
		return now.Add(w.settings.ReplaceAfter - dead[key]), cluster.Kept(view, key)
	}
	return v
}

// deadSince returns when a node died, or the zero time if it is alive. A node that gossip has not
// known for unheardMax counts as dead. deadSince also reports whether the node was stopped.
func (w *watcher) deadSince(key string, now time.Time) (since time.Time, stopped bool) {
	m, heard := w.gossip.Member(key)
	switch {
	case key == w.self || m.Alive:
	case heard:
		delete(w.unheard, key)
		return m.Since, m.State == cluster.MemberStopping
	case w.unheard[key].IsZero():
		w.unheard[key] = now
	case now.Sub(w.unheard[key]) >= unheardMax:
		return w.unheard[key], false
	}
	return time.Time{}, false
}
