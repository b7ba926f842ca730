package cluster

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
)

// This file decides what a recovery does to each group.

// Plan returns what Recover will do, and whether it completes an interrupted recovery. now goes into
// a new plan.
func (s *Survivors) Plan(now time.Time) (plan *Recovery, resumed bool, err error) {
	if plan, err = s.interrupted(); err != nil {
		return nil, false, err
	}
	if err := s.readCatalog(); err != nil {
		return nil, false, err
	}
	if plan != nil {
		return plan, true, nil
	}
	id := s.nodes[0].Identity.ClusterID
	plan = &Recovery{Format: recoveryFormat, At: now.UTC().Truncate(time.Second), From: id, To: nextEpoch(id), Lost: []string{}}
	for _, n := range s.nodes {
		if n.Identity.ClusterID != id {
			return nil, false, fmt.Errorf("%w: %q is of cluster %s, %q of cluster %s", ErrCannotRecover, s.nodes[0].path, id, n.path, n.Identity.ClusterID)
		}
		if _, known := s.view.Nodes[n.Identity.Key()]; !known {
			return nil, false, fmt.Errorf("%w: node %s of %q was removed from the cluster; leave its directory out", ErrCannotRecover, n.Identity.Key(), n.path)
		}
		plan.Nodes = append(plan.Nodes, n.Identity.Key())
	}
	for _, key := range slices.Sorted(maps.Keys(s.view.Nodes)) {
		if !slices.Contains(plan.Nodes, key) {
			plan.Lost = append(plan.Lost, key)
		}
	}
	if err := s.planGroups(plan); err != nil {
		return nil, false, err
	}
	if err := s.checkGrowing(plan); err != nil {
		return nil, false, err
	}
	if !plan.Groups[0].Kept { // ask now what would be refused later
		_, err = s.catalogCommands(plan)
	}
	return plan, false, err
}

// interrupted returns the plan that an earlier run has written to all of its directories; nil for
// none. It ignores a plan that a directory of its nodes lacks: no log was changed for it.
func (s *Survivors) interrupted() (plan *Recovery, err error) {
	for _, n := range s.nodes {
		switch {
		case n.plan == nil || s.lacks(n.plan):
		case plan == nil || plan.To == n.plan.To:
			plan = n.plan
		default:
			return nil, fmt.Errorf("%w: these directories have the plans of different recoveries", ErrCannotRecover)
		}
	}
	if plan == nil {
		return nil, nil
	}
	for _, n := range s.nodes {
		if !slices.Contains(plan.Nodes, n.Identity.Key()) {
			return nil, fmt.Errorf("%w: a recovery without %q is not complete; complete it first, with the directories of %v", ErrCannotRecover, n.path, plan.Nodes)
		}
	}
	if len(s.nodes) < len(plan.Nodes) {
		return nil, fmt.Errorf("%w: complete the interrupted recovery with the directories of all of %v", ErrCannotRecover, plan.Nodes)
	}
	return plan, nil
}

// lacks reports whether one of the directories should have the plan, and has neither the plan nor
// its effects.
func (s *Survivors) lacks(plan *Recovery) bool {
	return slices.ContainsFunc(s.nodes, func(n *survivor) bool {
		return slices.Contains(plan.Nodes, n.Identity.Key()) && n.Identity.ClusterID != plan.To && (n.plan == nil || n.plan.To != plan.To)
	})
}

// newest returns the node with the newest replica of a group; nil if none has one that counts.
func (s *Survivors) newest(group uint32) (at *survivor) {
	for _, n := range s.nodes {
		r := n.replicas[group]
		if r == nil || !s.counts(n, group) {
			continue
		}
		if at == nil || r.NewerThan(at.replicas[group]) {
			at = n
		}
	}
	return at
}

// counts reports whether the catalog has not retired the replica of a node.
func (s *Survivors) counts(n *survivor, group uint32) bool {
	if group == catalog.Group {
		return true
	}
	p := s.view.Groups[group]
	return !p.Numbered() || !p.Retired(n.Identity.Key(), n.replicas[group].Number)
}

func (s *Survivors) readCatalog() error {
	at := s.newest(catalog.Group)
	if at == nil {
		return fmt.Errorf("%w: no directory has the catalog", ErrCannotRecover)
	}
	s.meta = at.replicas[catalog.Group]
	var err error
	if s.view, err = s.meta.Catalog(); err != nil {
		return err
	}
	for _, n := range s.nodes {
		for group, r := range n.replicas {
			p, placed := s.view.Groups[group]
			if group != catalog.Group && !placed && !s.view.Dropped(group) {
				return fmt.Errorf("%w: %q has a replica of group %d, which the newest catalog does not know; leave it out", ErrCannotRecover, n.path, group)
			}
			if p.Numbered() && r.Number >= p.NextReplica {
				return fmt.Errorf("%w: %q has replica %d of group %d, and the newest catalog has given only lower numbers; leave it out", ErrCannotRecover, n.path, r.Number, group)
			}
		}
	}
	return nil
}

func (s *Survivors) planGroups(plan *Recovery) error {
	meta, err := s.planGroup(RecoveredGroup{Group: catalog.Group})
	if err != nil {
		return err
	}
	plan.Groups = append(plan.Groups, meta)
	for _, k := range s.view.KeyspacesByName() {
		for shard, group := range k.All() {
			g, err := s.planGroup(RecoveredGroup{Group: group, Keyspace: k.Name, Shard: shard})
			if err != nil {
				return err
			}
			plan.Groups = append(plan.Groups, g)
		}
	}
	for _, g := range plan.Groups {
		if !g.Kept {
			return nil
		}
	}
	return fmt.Errorf("%w: a majority of each group is here and nothing is lost; start the nodes", ErrCannotRecover)
}

// replicaHere is a replica of a group on a survivor that may vote.
type replicaHere struct {
	at *survivor
	id raft.ServerID
	// configurations are those of its log. A first voter without a log begins with the first voters.
	configurations []raft.Configuration
	lost           bool // its log is missing or damaged: the node refuses to start with it
}

// here returns all replicas of a group on survivors that may vote. See DESIGN.md, C4.
func (s *Survivors) here(group uint32) (all []replicaHere) {
	first := s.firstVoters(group)
	for _, n := range s.nodes {
		if r := n.replicas[group]; r != nil {
			all = append(all, replicaHere{at: n, id: r.ID, configurations: r.Configurations})
			continue
		}
		if number, has := n.offline.Number(group); has && n.damaged[group] {
			all = append(all, replicaHere{at: n, id: replica.RaftID(n.Identity.Key(), number), lost: true})
			continue
		}
		for _, voter := range first.Servers {
			node, number := catalog.ParseReplicaID(string(voter.ID))
			if node == n.Identity.Key() && n.offline.MayBegin(group, number) {
				all = append(all, replicaHere{at: n, id: voter.ID, configurations: []raft.Configuration{first}, lost: n.WasOpened(group)})
			}
		}
	}
	return all
}

// firstVoters returns the configuration with which the replicas of a group begin. For the catalog it
// is empty, because only the founder's replica began, before there was any other.
func (s *Survivors) firstVoters(group uint32) (c raft.Configuration) {
	if group == catalog.Group {
		return c
	}
	p := s.view.Groups[group]
	for i := range p.Initial {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(p.InitialID(i))})
	}
	return c
}

// planGroup completes g. See DESIGN.md, C2 to C5.
func (s *Survivors) planGroup(g RecoveredGroup) (RecoveredGroup, error) {
	at, here := s.newest(g.Group), s.here(g.Group)
	all, others := map[raft.ServerID]bool{}, map[raft.ServerID]bool{}
	for _, r := range here {
		all[r.id], others[r.id] = !r.lost, r.at != at
		if r.at.damaged[g.Group] {
			g.Damaged = append(g.Damaged, r.at.Identity.Key())
		}
	}
	g.Kept = len(here) > 0
	for _, r := range here {
		newest := r.configurations[max(0, len(r.configurations)-1):]
		g.Kept = g.Kept && (r.lost || len(newest) == 1 && replica.HasMajority(newest[0], all))
	}
	if at == nil {
		logs := slices.ContainsFunc(here, func(r replicaHere) bool { return r.lost || r.at.replicas[g.Group] != nil })
		if g.Kept = g.Kept && !logs; g.Kept {
			g.Node = here[0].at.Identity.Key() // the group has no entries yet
		}
		return g, nil
	}
	newest := at.replicas[g.Group]
	g.Node, g.Index, g.Committed, g.Written = at.Identity.Key(), newest.LastIndex, newest.SnapshotIndex, newest.Written
	if g.Kept {
		return g, nil
	}
	for _, n := range s.nodes {
		if r := n.replicas[g.Group]; r != nil {
			g.Term = max(g.Term, r.Term+1)
		}
	}
	for _, r := range here {
		if r.at != at && slices.ContainsFunc(r.configurations, func(c raft.Configuration) bool { return replica.HasMajority(c, others) }) {
			return g, fmt.Errorf("%w: replicas of %s other than the newest one, on %s, may elect a leader; leave %q out", ErrCannotRecover, g.Name(), g.Node, r.at.path)
		}
	}
	return g, nil
}

// checkGrowing refuses a plan that recovers a parent and its children, during a split, on different
// nodes.
func (s *Survivors) checkGrowing(plan *Recovery) error {
	at, kept := map[uint32]*RecoveredGroup{}, map[uint32]bool{} // by parent
	for i := range plan.Groups {
		g := &plan.Groups[i]
		if g.Group == catalog.Group || g.Node == "" || !s.view.Frozen(g.Group) {
			continue
		}
		parent := s.view.SplitOf(g.Group).Parent
		first, has := at[parent]
		if !has {
			at[parent], kept[parent] = g, g.Kept
			continue
		}
		kept[parent] = kept[parent] && g.Kept
		if first.Node != g.Node && !kept[parent] {
			return fmt.Errorf("%w: %s and %s are parts of one shard that is being split, and their newest replicas are on %s and %s; recover with one of these directories",
				ErrCannotRecover, first.Name(), g.Name(), first.Node, g.Node)
		}
	}
	return nil
}
