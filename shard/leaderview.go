package shard

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/wire"
)

// askNodeTimeout bounds what one node is asked about its groups.
const askNodeTimeout = time.Second

// LeaderView is a group's latest configuration as its leader knows it, as node
// keys.
type LeaderView struct {
	Group     uint32
	Leader    string
	Voters    []string
	NonVoters []string
	CaughtUp  []string // those of the other voters that are about as far as the leader
}

// Catalog returns the catalog as this node knows it. It is not to be changed.
func (n *Node) Catalog() *catalog.View { return n.catalog.View() }

// LeadsCatalog reports whether this node leads the catalog's group and may
// speak for it.
func (n *Node) LeadsCatalog() bool { return n.meta.Ready() == nil }

// LeaderViews asks every node about the groups that it leads. Groups whose leader does
// not answer are not in it.
func (n *Node) LeaderViews(ctx context.Context) map[uint32]LeaderView {
	var mu sync.Mutex
	all := map[uint32]LeaderView{}
	add := func(views []LeaderView) {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range views {
			all[f.Group] = f
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askNodeTimeout)
	defer cancel()
	var asked sync.WaitGroup
	for key := range n.catalog.View().Nodes {
		asked.Go(func() {
			if key == n.cfg.NodeKey {
				add(n.leaderViewsHere(ctx))
			} else if views, err := n.leaderViewsOf(ctx, key); err == nil {
				add(views)
			}
		})
	}
	asked.Wait()
	return all
}

func (n *Node) leaderViewsOf(ctx context.Context, node string) ([]LeaderView, error) {
	raw, err := n.calls.Call(ctx, node, methodFacts, nil)
	if err != nil {
		return nil, err
	}
	var views []LeaderView
	if err := json.Unmarshal(raw, &views); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrBadMessage, err)
	}
	return views, nil
}

func (n *Node) serveLeaderViews(ctx context.Context, _ []byte) ([]byte, error) {
	return json.Marshal(n.leaderViewsHere(ctx))
}

// leaderViewsHere tells of the groups that this node leads.
func (n *Node) leaderViewsHere(ctx context.Context) []LeaderView {
	views := []LeaderView{}
	last := map[uint32]uint64{} // index of each log, before anybody was asked
	place := map[uint32]int{}   // of each group in views
	voters := map[string][]groupReplica{}
	for _, g := range n.replicas() {
		if g.Ready() != nil {
			continue
		}
		f := LeaderView{Group: g.Group(), Leader: n.cfg.NodeKey}
		for _, s := range g.Configuration().Servers {
			if s.Suffrage != raft.Voter {
				f.NonVoters = append(f.NonVoters, replica.NodeOf(s.ID))
				continue
			}
			f.Voters = append(f.Voters, replica.NodeOf(s.ID))
			if key, number := catalog.ParseReplicaID(string(s.ID)); key != n.cfg.NodeKey {
				voters[key] = append(voters[key], groupReplica{f.Group, number})
			}
		}
		place[f.Group] = len(views)
		last[f.Group] = g.LastIndex()
		views = append(views, f)
	}
	var mu sync.Mutex
	var asked sync.WaitGroup
	lag := uint64(0)
	for key, led := range voters {
		asked.Go(func() {
			progress, err := n.progress(ctx, key, led)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i, r := range led {
				at := place[r.group]
				lag = max(lag, lagOf(last[r.group], progress[i]))
				if progress[i]+replica.CaughtUpEntries >= last[r.group] {
					views[at].CaughtUp = append(views[at].CaughtUp, key)
				}
			}
		})
	}
	asked.Wait()
	n.votersLag.Store(lag)
	return views
}

// lagOf is how many of a leader's entries another replica has not applied.
func lagOf(last, applied uint64) uint64 { return last - min(last, applied) }

// progress returns how far another node has applied the logs of its replicas.
func (n *Node) progress(ctx context.Context, node string, replicas []groupReplica) ([]uint64, error) {
	method, request := methodReplicas, appendReplicas(nil, replicas)
	if allZero(replicas) { // as programs of before replicas had numbers understand it
		method, request = methodProgress, appendGroups(nil, groupsOfReplicas(replicas))
	}
	answer, err := n.calls.Call(ctx, node, method, request)
	if err != nil {
		return nil, err
	}
	r := wire.Reader{Rest: answer}
	applied := make([]uint64, len(replicas))
	for i := range applied {
		applied[i] = r.Uint()
	}
	return applied, r.End()
}

// Transfer has the node that leads a group hand it over to another.
func (n *Node) Transfer(ctx context.Context, group uint32, from, to string) error {
	if from == n.cfg.NodeKey {
		return n.handOver(group, to)
	}
	request := binary.AppendUvarint(nil, uint64(group))
	_, err := n.calls.Call(ctx, from, methodTransfer, wire.AppendBytes(request, []byte(to)))
	return err
}
