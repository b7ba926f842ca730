package membership

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// LeaderView is a group's latest configuration as its leader knows it, in node keys.
type LeaderView struct {
	Group     uint32
	Leader    string
	Voters    []string
	NonVoters []string
	CaughtUp  []string // other voters that are within CaughtUpEntries of the leader
}

// LeaderViews asks every node for the views of the groups that it leads. A group is missing if its
// leader does not answer.
func (m *Membership) LeaderViews(ctx context.Context) map[uint32]LeaderView {
	answers := rpc.AskAll(ctx, maps.Keys(m.cfg.Catalog.View().Nodes), func(ctx context.Context, node string) ([]LeaderView, error) {
		if node == m.cfg.Key {
			return m.LeaderViewsHere(ctx), nil
		}
		return m.leaderViewsOf(ctx, node)
	})
	all := map[uint32]LeaderView{}
	for _, views := range answers {
		for _, view := range views {
			all[view.Group] = view
		}
	}
	return all
}

func (m *Membership) leaderViewsOf(ctx context.Context, node string) ([]LeaderView, error) {
	raw, err := m.cfg.Calls.Call(ctx, node, methodFacts, nil)
	if err != nil {
		return nil, err
	}
	var views []LeaderView
	if err := json.Unmarshal(raw, &views); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrBadMessage, err)
	}
	return views, nil
}

func (m *Membership) serveLeaderViews(ctx context.Context, _ []byte) ([]byte, error) {
	return json.Marshal(m.LeaderViewsHere(ctx))
}

// LeaderViewsHere returns the views of the groups that this node leads. It asks the other voters
// for their progress, and updates VotersLag.
func (m *Membership) LeaderViewsHere(ctx context.Context) []LeaderView {
	views := []LeaderView{}
	last := map[uint32]uint64{} // last index of each log, read before any other node is asked
	place := map[uint32]int{}   // index in views of each group
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
	var mu sync.Mutex
	var asked sync.WaitGroup
	lag := uint64(0)
	for key, led := range voters {
		asked.Go(func() {
			progress, err := m.Progress(ctx, key, led)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i, r := range led {
				at := place[r.Group]
				lag = max(lag, last[r.Group]-min(last[r.Group], progress[i]))
				if progress[i]+replica.CaughtUpEntries >= last[r.Group] {
					views[at].CaughtUp = append(views[at].CaughtUp, key)
				}
			}
		})
	}
	asked.Wait()
	m.VotersLag.Store(lag)
	return views
}

// Progress returns the last index that each replica on another node has applied.
func (m *Membership) Progress(ctx context.Context, node string, replicas []raftstore.ReplicaID) ([]uint64, error) {
	answer, err := m.cfg.Calls.Call(ctx, node, methodProgress, AppendReplicas(nil, replicas))
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

// Transfer asks the node from, which leads a group, to hand it over to another.
func (m *Membership) Transfer(ctx context.Context, group uint32, from, to string) error {
	if from == m.cfg.Key {
		return m.HandOver(group, to)
	}
	request := binary.AppendUvarint(nil, uint64(group))
	_, err := m.cfg.Calls.Call(ctx, from, methodTransfer, wire.AppendBytes(request, []byte(to)))
	return err
}

// ToHandOver returns how many groups with other voters this node leads, and how many of them have
// no successor.
func (m *Membership) ToHandOver() (led, heirless int) {
	for _, g := range m.cfg.Replicas.Replicas() {
		if g.Ready() != nil || len(g.Voters()) < 2 {
			continue
		}
		if led++; g.Heirless.Load() {
			heirless++
		}
	}
	return led, heirless
}
