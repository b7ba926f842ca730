package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestClusterEverywhere: for a keyspace with full replication (everywhere)
//
//  1. each of four nodes, and a fifth that joins, holds a replica of every shard, but only three
//     replicas of a shard vote;
//  2. the last living node alone answers reads of the whole keyspace;
//  3. a node that was down during writes has these writes after its restart;
//  4. once full replication is off, only the voters hold replicas again.
func TestClusterEverywhere(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{Nodes: 4})
	usersShards := c.Shards("users")
	first := c.Nodes()[0]
	c.AwaitShares()
	if n := usersReplicas(c); n != voters*usersShards {
		t.Fatalf("users has %d replicas to begin with", n)
	}
	first.MustCtl("keyspace", "everywhere", "users")
	write := func(by int64) {
		t.Helper()
		var ops []any
		for id := range 40 {
			ops = append(ops, map[string]any{"id": id, "add": map[string]int64{"posts": by * int64(id)}})
		}
		c.AwaitReady(first)
		first.MustCall("POST", "/v1/counters/users/incr", map[string]any{"ops": ops, "want": "none"}, nil)
	}
	write(1)
	eventually(t, "each node holds all shards of users", func() bool { return usersReplicas(c) == 4*usersShards })
	last := c.Add()
	eventually(t, "so does one that joins", func() bool { return usersReplicas(c) == 5*usersShards })
	eventually(t, "three of five members vote", func() bool {
		for _, g := range first.Cluster().Groups {
			votes := 0
			for _, m := range g.Members {
				if m.Voter {
					votes++
				}
			}
			if g.Keyspace == "users" && (len(g.Members) != 5 || votes != voters) {
				return false
			}
		}
		return true
	})
	c.AwaitAgreement(c.Nodes()...)
	last.Kill()
	write(2)
	last.StartReady()
	c.AwaitAgreement(c.Nodes()...)
	first.MustCtl("verify")

	for _, n := range c.Others(last) {
		n.Kill()
	}
	for id := range 40 {
		var row struct{ Counts map[string]int64 }
		last.MustCall("GET", fmt.Sprintf("/v1/counters/users/%d?consistency=stale", id), nil, &row)
		if row.Counts["posts"] != 3*int64(id) {
			t.Errorf("user %d has %d posts at the last node, want %d", id, row.Counts["posts"], 3*id)
		}
	}
	for _, n := range c.Others(last) {
		n.Start()
	}
	c.AwaitReady(c.Nodes()...)
	var keyspaces struct {
		Keyspaces []struct {
			Name       string
			Everywhere bool
		}
	}
	last.MustCall(http.MethodGet, "/v1/keyspaces", nil, &keyspaces)
	for _, k := range keyspaces.Keyspaces {
		if k.Everywhere != (k.Name == "users") {
			t.Errorf("keyspace %s is everywhere: %v", k.Name, k.Everywhere)
		}
	}
	last.MustCtl("keyspace", "everywhere", "users", "--off")
	c.AwaitVoters(voters)
	eventually(t, "users has the replicas of its voters alone", func() bool { return usersReplicas(c) == voters*usersShards })
	c.AwaitAgreement(c.Nodes()...)
}

// usersReplicas returns how many replicas of the keyspace users the nodes hold.
func usersReplicas(c *proctest.Cluster) (replicas int) {
	for _, n := range c.Nodes() {
		replicas += len(n.Cluster().Digests("users"))
	}
	return replicas
}
