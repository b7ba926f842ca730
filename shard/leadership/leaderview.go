package leadership

import (
	"context"
	"fmt"
	"maps"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// LeaderView is a group's latest configuration as its leader knows it. Voters and non-voters are
// node keys.
type LeaderView struct {
	Group     uint32
	Leader    string
	Voters    []string
	NonVoters []string
	CaughtUp  []string // other voters that lag by at most CaughtUpEntries
}

// LeaderViews collects the views of all groups from the nodes that lead them. A group is missing
// if its leader does not answer.
func (m *Membership) LeaderViews(ctx context.Context) map[uint32]LeaderView {
	all := map[uint32]LeaderView{}
	for _, views := range rpc.AskAllJSON(ctx, m.cfg.Calls, m.cfg.Key, maps.Keys(m.cfg.Catalog.View().Nodes), methodLeaderViews, rpc.None{}, m.leaderViewsHere) {
		for _, view := range views {
			all[view.Group] = view
		}
	}
	return all
}

// leaderViewsHere returns the views of the groups that this node leads. It requests the progress
// of the other voters, and updates VotersLag.
func (m *Membership) leaderViewsHere(ctx context.Context, _ rpc.None) ([]LeaderView, error) {
	views := []LeaderView{}
	last := map[uint32]uint64{} // last index of each log; read before the progress of other nodes
	place := map[uint32]int{}   // index in views, by group
	voters := map[string][]raftstore.ReplicaID{}
	for _, g := range m.cfg.Replicas.Replicas() {
		if g.Ready() != nil {
			continue
		}
		f := LeaderView{Group: g.Group(), Leader: m.cfg.Key}
		for _, s := range g.Configuration().Servers {
			if s.Suffrage != raft.Voter {
				f.NonVoters = append(f.NonVoters, replica.NodeOf(s.ID))
				continue
			}
			f.Voters = append(f.Voters, replica.NodeOf(s.ID))
			if key, number := catalog.ParseReplicaID(string(s.ID)); key != m.cfg.Key {
				voters[key] = append(voters[key], raftstore.ReplicaID{Group: f.Group, Number: number})
			}
		}
		place[f.Group] = len(views)
		last[f.Group] = g.LastIndex()
		views = append(views, f)
	}
	lag := uint64(0)
	for key, progress := range rpc.AskAll(ctx, maps.Keys(voters), func(ctx context.Context, key string) ([]uint64, error) {
		return m.Progress(ctx, key, voters[key])
	}) {
		for i, r := range voters[key] {
			lag = max(lag, last[r.Group]-min(last[r.Group], progress[i]))
			if progress[i]+replica.CaughtUpEntries >= last[r.Group] {
				at := place[r.Group]
				views[at].CaughtUp = append(views[at].CaughtUp, key)
			}
		}
	}
	m.VotersLag.Store(lag)
	return views, nil
}

// Progress returns the applied index of each of these replicas on another node.
func (m *Membership) Progress(ctx context.Context, node string, replicas []raftstore.ReplicaID) ([]uint64, error) {
	return m.progress(ctx, node, methodProgress, replicas)
}

func (m *Membership) progress(ctx context.Context, node, method string, replicas []raftstore.ReplicaID) ([]uint64, error) {
	applied, err := rpc.CallJSON[[]uint64](ctx, m.cfg.Calls, node, method, replicas)
	if err == nil && len(applied) != len(replicas) {
		err = fmt.Errorf("%w: the progress of %d replicas, of %d", wire.ErrBadMessage, len(applied), len(replicas))
	}
	return applied, err
}

// transfer is the request to hand the leadership of a group over to the node with the key To.
type transfer struct {
	Group uint32
	To    string
}

// Transfer makes the leading node hand its leadership of a group over to the successor. Both are
// node keys.
func (m *Membership) Transfer(ctx context.Context, group uint32, leader, successor string) error {
	if leader == m.cfg.Key {
		return m.HandOver(group, successor)
	}
	_, err := rpc.CallJSON[rpc.None](ctx, m.cfg.Calls, leader, methodTransfer, transfer{group, successor})
	return err
}

// ToHandOver counts the groups that this node leads and that have other voters. heirless is how
// many of them have no other voter that can lead.
func (m *Membership) ToHandOver() (led, heirless int) {
	for _, g := range m.cfg.Replicas.Replicas() {
		leads := g.Ready() == nil || g.Growth.Unborn() && g.Growth.Elected()
		if !leads || len(g.Voters()) < 2 {
			continue
		}
		if led++; g.Heirless.Load() {
			heirless++
		}
	}
	return led, heirless
}
