package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/countd/countd/client"
)

const (
	// lagWarned is how many entries behind its leader a replica is warned of: a
	// follower that only waits for its disk is some tens behind.
	lagWarned = 1000
	// unevenRowsMin is from how many rows on a shard is warned of that holds more than
	// twice its share: among fewer that is chance.
	unevenRowsMin = 10_000
	// votersWanted is how many voters a group is to have as far as there are
	// nodes: the least that outlive one of them.
	votersWanted = 3
)

// warning is something that an operator should look at. The runbook says what to
// do about each code.
type warning struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// warningsOf looks through what a cluster says of itself.
func warningsOf(nodes []client.ClusterNode, groups []client.ClusterGroup, digests []client.GroupDigests, version client.ClusterVersion) []warning {
	found := []warning{}
	warn := func(code, format string, args ...any) {
		found = append(found, warning{code, fmt.Sprintf(format, args...)})
	}
	dead := map[string]bool{}
	staying := 0
	for _, n := range nodes {
		dead[n.ID] = !n.Alive
		if n.State != "leaving" {
			staying++
		}
		warnOfNode(n, warn)
	}
	if bare := slices.DeleteFunc(slices.Clone(nodes), func(n client.ClusterNode) bool { return n.Zone != "" }); len(bare) > 0 && len(bare) < len(nodes) {
		warn("zones_mixed", "%d of %d nodes have no zone, such as %s: they count as one zone together", len(bare), len(nodes), bare[0].ID)
	}
	for _, g := range groups {
		warnOfGroup(g, dead, min(votersWanted, staying), warn)
	}
	warnOfDifferences(digests, warn)
	warnOfSkew(groups, warn)
	warnOfMisfits(groups, warn)
	switch {
	case version.Held:
		warn("version_held", "the cluster version is held at %d, the nodes speak %d", version.Version, version.Max)
	case mixedPrograms(nodes):
		warn("versions_differ", "the nodes run programs of different versions")
	}
	return found
}

func warnOfNode(n client.ClusterNode, warn func(code, format string, args ...any)) {
	switch condition(n) {
	case "dead":
		warn("node_dead", "%s is dead: no other node hears of it; it holds %d replicas", n.ID, n.Replicas)
	case "silent":
		warn("node_silent", "%s did not answer within a second, though it is not known to be dead", n.ID)
	case "not ready":
		warn("node_not_ready", "%s is not ready: %s", n.ID, n.NotReady)
	}
	switch n.State {
	case "draining":
		warn("node_draining", "%s is drained; countctl node undrain %s ends that", n.ID, n.ID)
	case "leaving":
		warn("node_leaving", "%s is leaving; it holds %d replicas", n.ID, n.Replicas)
	}
	if n.JoinIgnored {
		warn("join_ignored", "%s is the only node of its cluster: --join and --bootstrap-expect have it join no other, which takes a new data directory", n.ID)
	}
	if n.MemoryFull {
		warn("memory_full", "%s is at its memory limit and takes no new rows", n.ID)
	}
	if n.DiskFull {
		warn("disk_full", "the disk of %s is at its reserve and takes no writes", n.ID)
	}
}

func warnOfGroup(g client.ClusterGroup, dead map[string]bool, wanted int, warn func(code, format string, args ...any)) {
	alive := slices.DeleteFunc(slices.Clone(g.Voters), func(name string) bool { return dead[name] })
	lost := allDead(g, dead)
	switch {
	case lost:
		warn("group_no_leader", "%s: all its replicas are on dead nodes %s", groupName(g), strings.Join(g.Voters, ", "))
	case g.Leader == "":
		warn("group_no_leader", "%s has no leader; %d of its %d voters are alive", groupName(g), len(alive), len(g.Voters))
	}
	switch {
	case lost: // said already
	case len(alive) < len(g.Voters):
		warn("group_degraded", "%s has %d of its %d voters alive", groupName(g), len(alive), len(g.Voters))
	case len(g.Target) < wanted:
		warn("group_few_voters", "%s is to have %d voters, there are nodes for %d", groupName(g), len(g.Target), wanted)
	case !sameNames(g.Voters, g.Target):
		warn("group_moving", "%s has voters %s and is to have %s", groupName(g), strings.Join(g.Voters, ","), strings.Join(g.Target, ","))
	}
	for _, r := range g.Replicas {
		if r.Lag > lagWarned {
			warn("replica_lags", "%s on %s is %s entries behind", groupName(g), r.Node, grouped(r.Lag))
		}
		if r.ColdDamaged {
			warn("cold_damaged", "%s on %s has cold rows that cannot be read", groupName(g), r.Node)
		}
	}
}

// warnOfDifferences warns once of each group whose replicas differ as far as one look
// shows it: verify looks again until all are compared.
func warnOfDifferences(digests []client.GroupDigests, warn func(code, format string, args ...any)) {
	v := newVerification()
	v.add(digests)
	warned := map[string]bool{}
	for _, d := range v.differs {
		if !warned[d.Group] {
			warn("replicas_differ", "%s differs at index %d: %s", d.Group, d.Index, d.sides())
		}
		warned[d.Group] = true
	}
}

// warnOfMisfits names one id of each keyspace whose ids are not of its layout: its rows
// are never old, so they stay in memory.
func warnOfMisfits(groups []client.ClusterGroup, warn func(code, format string, args ...any)) {
	told := map[string]bool{}
	for _, g := range groups {
		if m := g.Misfit; m != nil && !told[g.Keyspace] {
			told[g.Keyspace] = true
			warn("id_layout_misfit", "%s has id %s, which is not of layout %s; start the nodes with --id-layout %s=%s",
				g.Keyspace, m.ID, m.Layout, g.Keyspace, m.Fits)
		}
	}
}

// warnOfSkew finds keyspaces whose ids crowd in one shard: its group has the load of
// several, which no further node takes from it.
func warnOfSkew(groups []client.ClusterGroup, warn func(code, format string, args ...any)) {
	rows, shards, fullest := map[string]uint64{}, map[string]uint64{}, map[string]client.ClusterGroup{}
	for _, g := range groups {
		rows[g.Keyspace] += g.Rows
		shards[g.Keyspace]++
		if g.Rows > fullest[g.Keyspace].Rows {
			fullest[g.Keyspace] = g
		}
	}
	for _, keyspace := range slices.Sorted(maps.Keys(fullest)) {
		g := fullest[keyspace]
		if g.Rows >= unevenRowsMin && g.Rows*shards[keyspace] > 2*rows[keyspace] {
			warn("shards_uneven", "%s holds %s of the %s rows of %s, more than twice its share of %d shards",
				groupName(g), grouped(g.Rows), grouped(rows[keyspace]), keyspace, shards[keyspace])
		}
	}
}

// allDead reports whether no living node has a replica of a group.
func allDead(g client.ClusterGroup, dead map[string]bool) bool {
	members := slices.Concat(g.Voters, g.NonVoters)
	return len(g.Voters) > 0 && !slices.ContainsFunc(members, func(name string) bool { return !dead[name] })
}

func mixedPrograms(nodes []client.ClusterNode) bool {
	return slices.ContainsFunc(nodes, func(n client.ClusterNode) bool { return n.Version != nodes[0].Version })
}
