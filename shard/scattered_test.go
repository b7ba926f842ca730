package shard

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
)

// scatter adds keyspaces to a node's catalog. The groups of a keyspace do not have consecutive
// numbers. No command creates such keyspaces yet.
func scatter(t *testing.T, n *Node, groups map[string][]uint32) {
	t.Helper()
	v := *n.catalog.View()
	keys := slices.Sorted(maps.Keys(v.Nodes))
	numbers := map[string]uint64{}
	for i, key := range keys {
		numbers[key] = uint64(i + 1)
	}
	v.Keyspaces, v.Groups = maps.Clone(v.Keyspaces), maps.Clone(v.Groups)
	for name, of := range groups {
		v.Keyspaces[name] = catalog.Keyspace{Name: name, Kind: kinds.Counters, Columns: []string{"plays"}, Divisor: len(of), Groups: of}
		for _, g := range of {
			v.Groups[g] = catalog.Placement{Initial: keys, Target: keys, Replicas: numbers, FirstReplica: 1, NextReplica: uint64(len(keys) + 1)}
			v.NextGroup = max(v.NextGroup, g+1)
		}
	}
	body, err := json.Marshal(&v)
	mustDo(t, err)
	part := rafttest.Part{Kind: codec.StreamCatalog, Payload: body}
	mustDo(t, rafttest.Restore(n.catalog, rafttest.StreamOf(codec.KindCatalog, v.Applied, []rafttest.Part{part}, uint64(len(v.Keyspaces)), v.Digest())))
}

// Keyspaces whose groups do not have consecutive numbers are written, read, backed up and dropped
// like all others.
func TestGroupsNeedNotFollowEachOther(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 2)
	eventually(t, "the catalogs are equal", func() bool { return all[0].catalog.Applied() == all[1].catalog.Applied() })
	next := all[0].catalog.View().NextGroup
	groups := map[string][]uint32{"songs": {next + 4, next, next + 2}, "clips": {next + 1, next + 5, next + 3}}
	for _, n := range all {
		scatter(t, n, groups)
	}
	const ids = 12
	ask := make([]uint64, ids)
	for id := range ask {
		ask[id] = uint64(id)
	}
	for i, name := range []string{"songs", "clips"} {
		eventually(t, "all serve "+name, func() bool {
			return !slices.ContainsFunc(all, func(n *Node) bool { return n.Keyspace(name) == nil || !n.Holds(n.Keyspace(name)) })
		})
		for id := range uint64(ids) {
			n := all[id%2]
			w := once(&Write{Ops: counters.Ops{addTo(id, 0, int64(id)+int64(100*i)+1)}, Deadline: soon()})
			mustDo(t, n.Write(n.Keyspace(name), w))
			if g := groups[name][id%3]; len(w.Token.At) != 1 || w.Token.At[0].Group != g {
				t.Errorf("id %d of %s was written to %v, want group %d", id, name, w.Token.At, g)
			}
		}
	}
	for i, name := range []string{"songs", "clips"} {
		for _, n := range all {
			counts := make([]int64, ids)
			mustDo(t, n.Get(n.Keyspace(name), ask, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, counts))
			for id, count := range counts {
				if count != int64(id+100*i+1) {
					t.Errorf("%s reads %d of id %d of %s", n.cfg.NodeName, count, id, name)
				}
			}
		}
		for shard, g := range groups[name] {
			ks, number, err := all[0].ShardOf(g)
			if err != nil || ks.Name != name || number != shard {
				t.Errorf("group %d is shard %d of %v, %v", g, number, ks, err)
			}
			if _, facts := taken(t, all, g); facts.Rows != ids/3 {
				t.Errorf("group %d of %s has %d rows", g, name, facts.Rows)
			}
		}
	}
	mustDrop(t, all[1], "songs")
	for _, n := range all {
		for _, g := range groups["songs"] {
			eventually(t, n.cfg.NodeName+" deletes its replicas of songs", func() bool { return isDeleted(t, n, g, 1) })
		}
		if !n.Holds(n.Keyspace("clips")) {
			t.Errorf("%s has deleted a replica of clips", n.cfg.NodeName)
		}
	}
}
