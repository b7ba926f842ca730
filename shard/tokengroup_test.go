package shard

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
)

// A read with the token of a group that its node does not know:
//
//  1. waits until the node knows the group;
//  2. fails if the node cannot learn whether the group exists;
//  3. ignores a group that never was, or that was dropped; for the latter it asks nobody.
func TestTokenOfAnUnknownGroup(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	read := func(n *Node, group uint32) error {
		opt := &ReadOptions{Deadline: soon(), Token: Token{Cluster: n.router.clusterHash, At: []GroupIndex{{Group: group, Index: 1}}}}
		return n.Get(n.Keyspace("posts"), []uint64{1}, 1, opt, make([]int64, 1))
	}
	var last uint32
	for i := range 9 {
		by, asked, name := all[i%3], all[(i+1)%3], fmt.Sprintf("k%d", i)
		mustDo(t, by.catalogClient.MustChange(t.Context(), &catalog.Command{Create: &catalog.CreateEntry{Keyspace: catalog.Keyspace{
			Name: name, Kind: kinds.Counters, Columns: []string{"c"}, Divisor: 1,
		}}}))
		created := by.Catalog().Keyspaces[name]
		last = created.FirstGroup()
		mustDo(t, read(asked, last))
		if asked.registry.shardOf(last) == nil {
			t.Errorf("%s has read before it knew group %d", asked.cfg.NodeName, last)
		}
	}
	mustDo(t, read(all[0], last+1))
	_, err := all[0].DropKeyspace(t.Context(), "k8")
	mustDo(t, err)
	router := *all[0].reader.router
	router.newest = nil
	ks := all[0].Keyspace("posts")
	of := func(groups ...uint32) *ReadOptions {
		opt := &ReadOptions{Deadline: soon(), Token: Token{Cluster: router.clusterHash}}
		for _, g := range groups {
			opt.Token.At = append(opt.Token.At, GroupIndex{Group: g, Index: 1})
		}
		return opt
	}
	_, err = router.shardsToRead(ks, of(last, catalogGroup))
	mustDo(t, err)
	asked := 0
	router.newest = func(context.Context) error { asked++; return nil }
	if _, err = router.shardsToRead(ks, of(last+1, last+2, last+3)); err != nil || asked != 1 {
		t.Errorf("the catalog's leader was asked %d times, %v", asked, err)
	}
	router.newest = func(context.Context) error { return errs.ErrNoLeader }
	if _, err = router.shardsToRead(ks, of(last+1)); !errors.Is(err, errs.ErrNoQuorum) {
		t.Errorf("without the catalog's leader: %v", err)
	}
}

// A token of a part shows a read that the parent has split. The read does not change the route of
// others, because a client may forge a token.
func TestTokenOfAPart(t *testing.T) {
	t.Parallel()
	const parents, parts = 2, 3
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	router, ks := *n.reader.router, &Keyspace{Name: "g", FirstGroup: 100, Shards: parents}
	router.registry = &registry{}
	shards := &keyspaceShards{route: raftfsm.NewRoute(parents, parents*parts, false).Growing([]uint32{parents, parents})}
	table := &groupTable{byFirst: map[uint32]*keyspaceShards{ks.FirstGroup: shards}, byNumber: map[uint32]*shardReplica{}}
	for s := range parents * parts {
		g := &shardReplica{number: ks.FirstGroup + uint32(s), shard: s}
		shards.all, table.byNumber[g.number] = append(shards.all, g), g
	}
	table.byNumber[7] = &shardReplica{number: 7, shard: parents} // of another keyspace
	router.registry.groups.Store(table)
	for group, want := range map[uint32]int{100: 1, 101: 1, 102: 1, 103: 3, 105: 5, 7: 1} { // the shard of id 5 or 3, by the token's group
		id := uint64(5)
		if group == 103 {
			id = 3
		}
		got, err := router.shardsToRead(ks, &ReadOptions{Deadline: soon(), Token: Token{Cluster: router.clusterHash, At: []GroupIndex{{Group: group, Index: 9}}}})
		mustDo(t, err)
		if s, _ := got.route.KeyOf(id); s != want {
			t.Errorf("token of group %d: id %d is read in shard %d, want %d", group, id, s, want)
		}
		if s, _ := shards.route.KeyOf(id); s != 1 || router.registry.groups.Load() != table {
			t.Errorf("token of group %d: the route of other reads has changed", group)
		}
	}
}
