package cluster

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
)

// sim is a naive cluster: the real catalog, and Raft groups that follow it one change at a time. rapid makes all random choices.
type sim struct {
	t        *rapid.T
	catalog  *catalog.View
	settings PlanSettings
	now      time.Duration
	dead     map[string]time.Duration // node → time of its death
	groups   map[uint32]*simGroup
	wiped    string // the last node that lost its disk; it never returns, and heir is the node with its address
	heir     string
	made     int  // number of nodes ever created
	calm     bool // nothing fails or is delayed any more
}

// simGroup is a group's Raft configuration.
type simGroup struct {
	leader            string // "" for none
	voters, nonVoters []string
	behind            map[string]bool
}

func newSim(t *rapid.T) *sim {
	return &sim{
		t: t, catalog: catalog.New().View(), dead: map[string]time.Duration{}, groups: map[uint32]*simGroup{},
		settings: PlanSettings{Replicas: 3, ReplaceAfter: 10 * time.Second, MovesMax: rapid.IntRange(1, 3).Draw(t, "moves at a time")},
	}
}

func (s *sim) chance(percent int, what string) bool {
	return rapid.IntRange(0, 99).Draw(s.t, what) < percent
}

func (s *sim) pick(keys []string, what string) string {
	return rapid.SampledFrom(keys).Draw(s.t, what)
}

// apply applies a command and returns the reason of a refusal, or "".
func (s *sim) apply(command *catalog.Command) string {
	next, result := s.catalog.After(command)
	s.catalog = next
	return result.Refused
}

// join adds a node. If replaces is not "", the node takes the place of the node with that key.
func (s *sim) join(zone, replaces string, versionMax int) string {
	s.made++
	name := fmt.Sprintf("n%d", s.made)
	if replaces != "" {
		name = s.catalog.Nodes[replaces].Name
	}
	key := fmt.Sprintf("%s.%d", name, s.made)
	node := catalog.Node{Key: key, Name: name, Zone: zone, VersionMax: versionMax}
	if no := s.apply(&catalog.Command{PutNode: &catalog.PutNodeEntry{Node: node, Replaces: replaces}}); no != "" {
		s.t.Fatalf("node %s cannot join: %s", key, no)
	}
	return key
}

// create creates a keyspace with the placement of Initial and with elected leaders.
func (s *sim) create(name string, shards int) {
	replicas, err := Initial(s.view(), shards)
	if err != nil {
		return // no node takes replicas
	}
	command := &catalog.CreateEntry{Keyspace: catalog.Keyspace{Name: name, Kind: "counters", Divisor: shards}, Replicas: replicas}
	if no := s.apply(&catalog.Command{Create: command}); no != "" {
		s.t.Fatalf("keyspace %s: %s", name, no)
	}
}

// begin starts the groups that only the catalog has, and ends the groups that the catalog has dropped.
func (s *sim) begin() {
	maps.DeleteFunc(s.groups, func(g uint32, _ *simGroup) bool { return s.catalog.Dropped(g) })
	for g, p := range s.catalog.Groups {
		if s.groups[g] == nil {
			s.groups[g] = &simGroup{voters: slices.Clone(p.Initial), behind: map[string]bool{}}
		}
	}
}

func (s *sim) alive(key string) bool {
	_, dead := s.dead[key]
	return !dead
}

func (s *sim) quorum(keys []string) bool {
	n := 0
	for _, key := range keys {
		n += toInt(s.alive(key))
	}
	return 2*n > len(keys)
}

func (s *sim) numbers() []uint32 { return slices.Sorted(maps.Keys(s.groups)) }

func (s *sim) view() View {
	v := View{Catalog: s.catalog, Dead: map[string]time.Duration{}, Groups: map[uint32]leadership.LeaderView{}, Settings: s.settings}
	for key, since := range s.dead {
		v.Dead[key] = s.now - since
	}
	for g, group := range s.groups {
		if group.leader == "" {
			continue
		}
		report := leadership.LeaderView{Leader: group.leader, Voters: slices.Clone(group.voters), NonVoters: slices.Clone(group.nonVoters)}
		for _, key := range group.voters {
			if s.alive(key) && !group.behind[key] {
				report.CaughtUp = append(report.CaughtUp, key)
			}
		}
		v.Groups[g] = report
	}
	return v
}

// tick advances time. Meanwhile, each group makes at most one change.
func (s *sim) tick() {
	s.now += time.Second
	s.begin()
	for _, g := range s.numbers() {
		group := s.groups[g]
		if group.leader != "" && (!s.alive(group.leader) || !s.quorum(group.voters)) {
			group.leader = ""
		}
		switch {
		case !s.quorum(group.voters) || !s.calm && s.chance(20, "it takes longer"):
		case group.leader == "":
			s.elect(group)
		default:
			s.reconcile(g, group)
		}
	}
}

func (s *sim) elect(group *simGroup) {
	able := slices.DeleteFunc(slices.Clone(group.voters), func(key string) bool { return !s.alive(key) || group.behind[key] })
	if len(able) > 0 {
		group.leader = able[0]
		if !s.calm {
			group.leader = s.pick(able, "elected")
		}
		return
	}
	for key := range group.behind { // all living nodes lag, which cannot happen: at least one must have all committed entries
		delete(group.behind, key)
	}
}

// reconcile makes one change that brings a group nearer to its target in the catalog.
func (s *sim) reconcile(g uint32, group *simGroup) {
	c := s.catalog
	target := c.Groups[g].Target
	others := []string(nil)
	if c.EveryNode(g) {
		placement := c.Groups[g]
		others = slices.DeleteFunc(slices.Sorted(maps.Keys(c.Nodes)), func(key string) bool {
			_, numbered := leadership.MemberID(&placement, key)
			return contains(target, key) || key == s.wiped || !numbered
		})
	}
	for _, key := range group.voters {
		if group.behind[key] && s.alive(key) {
			delete(group.behind, key)
			return
		}
	}
	for _, key := range slices.Concat(target, others) {
		if !contains(group.voters, key) && !contains(group.nonVoters, key) {
			if key == s.heir && (contains(group.voters, s.wiped) || contains(group.nonVoters, s.wiped)) {
				left := without(group.voters, s.wiped)
				if contains(target, s.wiped) || !s.quorum(left) {
					continue // Raft accepts no address twice
				}
				group.voters, group.nonVoters = left, without(group.nonVoters, s.wiped)
				return
			}
			group.nonVoters = append(group.nonVoters, key)
			group.behind[key] = true
			return
		}
	}
	for _, key := range group.nonVoters {
		switch {
		case !contains(target, key) && !contains(others, key):
			group.nonVoters = without(group.nonVoters, key)
			return
		case contains(target, key) && s.alive(key) && s.follows(g, key):
			group.nonVoters, group.voters = without(group.nonVoters, key), append(group.voters, key)
			delete(group.behind, key)
			return
		}
	}
	s.dismiss(group, target, others)
}

// follows reports whether a node has learned from the catalog that it should have a replica of a
// group. A node has learned this once the catalog's group has admitted the node. For the catalog's
// own group, follows is always true.
func (s *sim) follows(g uint32, key string) bool {
	meta := s.groups[catalog.Group]
	return g == catalog.Group || contains(meta.voters, key) || contains(meta.nonVoters, key)
}

// canWipe reports whether a node may lose its disk: no other wiped node remains in the cluster, and no group
// needs this node.
func (s *sim) canWipe(key string) bool {
	s.begin()
	c := s.catalog
	if _, left := c.Nodes[s.wiped]; left || len(c.Nodes) >= 9 || c.Nodes[key].State == catalog.NodeLeaving {
		return false
	}
	for g, group := range s.groups {
		if !s.quorum(without(group.voters, key)) || len(group.voters) < 3 || contains(group.voters, s.wiped) ||
			!s.quorum(without(c.Groups[g].Target, key)) {
			return false
		}
	}
	return true
}

// dismiss removes a voter that is not in the target, the leader last. It waits until all voters of
// the target have joined. It removes no voter unless most of the remaining voters are alive. A
// removed voter that is in the list others stays as a non-voter.
func (s *sim) dismiss(group *simGroup, target, others []string) {
	for _, key := range target {
		if !contains(group.voters, key) {
			return
		}
	}
	extra := slices.DeleteFunc(slices.Clone(group.voters), func(key string) bool { return contains(target, key) })
	if len(extra) == 0 {
		return
	}
	key := extra[0]
	if key == group.leader && len(extra) > 1 {
		key = extra[1]
	}
	if key == group.leader {
		group.leader = ""
		for _, to := range target {
			if s.alive(to) && !group.behind[to] {
				group.leader = to
			}
		}
		return
	}
	if left := without(group.voters, key); s.quorum(left) {
		group.voters = left
		if contains(others, key) {
			group.nonVoters = append(group.nonVoters, key)
		}
	}
}

// carryOut carries out a step, as far as it still applies.
func (s *sim) carryOut(step Step) {
	switch step := step.(type) {
	case Place:
		s.apply(&catalog.Command{Place: &catalog.PlaceEntry{Group: step.Group, Target: step.Target, Was: step.Was}})
	case Transfer:
		group := s.groups[step.Group]
		if group != nil && group.leader == step.From && contains(group.voters, step.To) && s.alive(step.To) && !group.behind[step.To] {
			group.leader = step.To
		}
	case SetNodeState:
		s.apply(&catalog.Command{SetNodeState: &catalog.SetNodeStateEntry{Key: step.Node, State: step.State}})
	case RemoveNode:
		s.apply(&catalog.Command{RemoveNode: &catalog.RemoveNodeEntry{Key: step.Node}})
	case RaiseVersion:
		s.apply(&catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: step.Version}})
	default:
		s.t.Fatalf("a step of type %T", step)
	}
}

// happen injects one random event.
func (s *sim) happen() {
	c := s.catalog
	keys := slices.Sorted(maps.Keys(c.Nodes))
	set := func(key string, state catalog.NodeState) {
		s.apply(&catalog.Command{SetNodeState: &catalog.SetNodeStateEntry{Key: key, State: state}})
	}
	zones := rapid.SampledFrom([]string{"", "x", "y", "z"})
	switch rapid.IntRange(0, 12).Draw(s.t, "event") {
	case 0:
		if len(keys) < 9 {
			s.join(zones.Draw(s.t, "zone"), "", rapid.IntRange(c.ClusterVersion, 3).Draw(s.t, "version"))
		}
	case 1, 2:
		if key := s.pick(keys, "dies"); s.alive(key) {
			s.dead[key] = s.now
		}
	case 3, 4, 5:
		if len(s.dead) > 0 {
			s.revive(s.pick(slices.Sorted(maps.Keys(s.dead)), "returns"))
		}
	case 6:
		set(s.pick(keys, "drained"), catalog.NodeDraining)
	case 7:
		set(s.pick(keys, "undrained"), catalog.NodeActive)
	case 8:
		if len(keys) > 3 {
			set(s.pick(keys, "removed"), catalog.NodeLeaving)
		}
	case 9:
		if key := s.pick(keys, "wiped"); s.canWipe(key) {
			s.dead[key] = s.now
			s.wiped, s.heir = key, s.join(c.Nodes[key].Zone, key, c.Nodes[key].VersionMax)
		}
	case 10:
		s.apply(&catalog.Command{SetEverywhere: &catalog.SetEverywhereEntry{Keyspace: "first", Everywhere: s.chance(70, "everywhere")}})
	case 11, 12:
		s.split()
	}
}

// split makes a random step of a growth of the first keyspace.
func (s *sim) split() {
	s.begin()
	defer s.begin()
	first := func() catalog.Keyspace { return s.catalog.Keyspaces["first"] }
	k := first()
	if len(k.Groups) < 12 {
		s.retire(k.Groups)
		s.apply(&catalog.Command{Grow: &catalog.GrowEntry{Keyspace: k.Name, FirstGroup: k.FirstGroup(), From: len(k.Groups), To: 2 * len(k.Groups)}})
	}
	if k = first(); k.Growth == nil {
		return
	}
	parent := rapid.SampledFrom(k.Groups).Draw(s.t, "parent")
	p, a := s.catalog.Groups[parent], k.Growth.Attempts[parent]
	switch {
	case a.Number == 0:
		if sameSet(s.groups[parent].voters, p.Target) || s.chance(30, "while its members change") {
			s.apply(&catalog.Command{CommitSplit: &catalog.CommitSplitEntry{Group: parent, Revision: p.Revision}})
		}
	case s.chance(20, "abandoned"):
		s.apply(&catalog.Command{AbandonSplit: &catalog.AbandonSplitEntry{Group: parent, Attempt: a.Number}})
	default:
		s.endSplit(a)
	}
}

// endSplit reports that the children of an attempt have begun.
func (s *sim) endSplit(a catalog.Attempt) {
	for _, child := range a.Pending {
		s.apply(&catalog.Command{ChildBegun: &catalog.ChildBegunEntry{Group: child}})
	}
}

// retire retires the numbers of replicas that have left their groups.
func (s *sim) retire(groups []uint32) {
	for _, g := range groups {
		p := s.catalog.Groups[g]
		for _, node := range slices.Sorted(maps.Keys(p.Replicas)) {
			if group := s.groups[g]; group != nil && !contains(group.voters, node) && !contains(group.nonVoters, node) {
				s.apply(&catalog.Command{Retire: &catalog.RetireEntry{Group: g, Node: node, Number: p.Replicas[node], Revision: p.Revision}})
			}
		}
	}
}

// revive brings a node back with replicas that lag.
func (s *sim) revive(key string) {
	if key == s.wiped {
		return
	}
	delete(s.dead, key)
	for _, g := range s.numbers() {
		if contains(s.groups[g].voters, key) && s.groups[g].leader != "" {
			s.groups[g].behind[key] = true
		}
	}
}

// String describes the cluster for the message of a failed test.
func (s *sim) String() string {
	c := s.catalog
	out := fmt.Sprintf("at %s:\n", s.now)
	for _, key := range slices.Sorted(maps.Keys(c.Nodes)) {
		out += fmt.Sprintf("  node %s in %q %s", key, c.Nodes[key].Zone, c.Nodes[key].State)
		if since, dead := s.dead[key]; dead {
			out += fmt.Sprintf(", dead for %s", s.now-since)
		}
		out += "\n"
	}
	for _, g := range s.numbers() {
		group := s.groups[g]
		out += fmt.Sprintf("  group %d for %v: led by %q, voters %v, others %v, behind %v\n",
			g, c.Groups[g].Target, group.leader, group.voters, group.nonVoters, slices.Sorted(maps.Keys(group.behind)))
	}
	return out
}
