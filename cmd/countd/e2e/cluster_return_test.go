package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	returnNodes  = 5
	addsBefore   = 10 // increments of each row that the stale node knows
	addsAfter    = 23 // increments of each row that the stale node does not know
	aloneTimeout = time.Second
	// aloneTries is the number of rounds of requests to replicas that must not lead. The rounds
	// take several election timeouts.
	aloneTries = 5
)

// In TestClusterReplicaReturnsKilled, a replica leaves a node and comes back while another voter is
// down. The only faults are kills with kill -9:
//
//  1. A group has the voters stale, keeper and returning. Stale is killed.
//  2. The replica of returning moves to relay. Keeper and relay acknowledge writes.
//  3. Returning is killed. An order moves the replica of relay back to returning.
//  4. Keeper and relay are killed. Stale and returning start.
//
// Stale has an old configuration and an old log, and returning has a new, empty replica. These two
// must not elect a leader. No acknowledged increment is lost, no linearizable read misses one, and
// in the end verify finds all replicas equal.
func TestClusterReplicaReturnsKilled(t *testing.T) {
	long(t)
	beside(t)
	for _, store := range stores("boltdb") {
		t.Run(store, func(t *testing.T) {
			c := newCluster(t, proctest.Options{Nodes: returnNodes, LogStore: store})
			for round := range short(1, 10) {
				r := newReturn(t, c, round%c.Shards("posts"))
				r.killed()
				r.verifies()
			}
		})
	}
}

// TestClusterReplicaReturnsCut is TestClusterReplicaReturnsKilled with nodes that are cut off
// instead of killed. Keeper and relay continue meanwhile, so if stale and returning elected a
// leader, the group would have two.
func TestClusterReplicaReturnsCut(t *testing.T) {
	long(t)
	beside(t)
	for _, store := range stores("shared") {
		t.Run(store, func(t *testing.T) {
			c := newCluster(t, proctest.Options{Nodes: returnNodes, LogStore: store, Cuttable: true})
			for round := range short(1, 10) {
				r := newReturn(t, c, round%c.Shards("posts"))
				r.cut()
				r.verifies()
			}
		})
	}
}

// replicaReturn is one return of a replica to its node. Its fields are the roles that
// TestClusterReplicaReturnsKilled explains.
type replicaReturn struct {
	t     *testing.T
	c     *proctest.Cluster
	group uint32
	tally *proctest.Tally

	stale, keeper, returning *proctest.Member // voters of the group
	relay                    *proctest.Member
	// witness is never a voter of the group. The voters of the catalog are witness and one node of
	// each side, so each side can have a catalog leader.
	witness *proctest.Member
}

// newReturn chooses the roles for a shard of posts, and moves the catalog's voters to the required
// nodes.
func newReturn(t *testing.T, c *proctest.Cluster, shard int) *replicaReturn {
	t.Helper()
	r := &replicaReturn{t: t, c: c, tally: c.NewTally(shard)}
	c.AwaitReady(c.Nodes()...)
	at := c.Nodes()[0]
	placed := at.Placed()
	i := slices.IndexFunc(placed, func(p proctest.Placed) bool { return p.Keyspace == "posts" && p.Shard == shard })
	if i < 0 {
		t.Fatalf("no shard %d of posts in %+v", shard, placed)
	}
	r.group = placed[i].ID
	catalog := r.nodes(c.AwaitSettled(at, 0, voters).Voters)
	in := r.nodes(c.AwaitSettled(at, r.group, voters).Voters)
	out := c.Others(in...)
	r.relay, r.witness = out[0], out[1]
	if !slices.Contains(catalog, r.witness) {
		r.relay, r.witness = r.witness, r.relay
	}
	if !slices.Contains(catalog, r.witness) {
		c.Move(at, 0, catalog[0], r.witness)
		catalog[0] = r.witness
	}
	// Nodes that also vote in the catalog come last, so that stale is one of them.
	slices.SortStableFunc(in, func(a, b *proctest.Member) int {
		return strings.Compare(fmt.Sprint(slices.Contains(catalog, a)), fmt.Sprint(slices.Contains(catalog, b)))
	})
	r.keeper, r.returning, r.stale = in[0], in[1], in[2]
	if !slices.Contains(catalog, r.relay) {
		r.keeper, r.returning = in[1], in[0]
	}
	t.Logf("group %d: stale %s, keeper %s, returning %s, relay %s, witness %s; the catalog is on %v", r.group,
		r.stale.Name, r.keeper.Name, r.returning.Name, r.relay.Name, r.witness.Name, catalogNames(catalog))
	r.tally.AddAll(addsBefore, in...)
	return r
}

func (r *replicaReturn) nodes(names []string) (nodes []*proctest.Member) {
	for _, n := range r.c.Nodes() {
		if slices.Contains(names, n.Name) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func catalogNames(nodes []*proctest.Member) (names []string) {
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}

func (r *replicaReturn) killed() {
	r.t.Helper()
	r.stale.Kill()
	r.moveAway()
	r.comeBack()
	r.check()
}

// comeBack orders the replica back to returning, which was killed. It then kills keeper and relay,
// and starts returning and stale.
func (r *replicaReturn) comeBack() {
	r.t.Helper()
	for r.returning.Kill(); !r.orderBack(); r.returning.Kill() {
		r.returning.Start()
		r.c.AwaitReady(r.returning)
	}
	r.keeper.Kill()
	r.relay.Kill()
	r.returning.Start()
	r.stale.Start()
	r.mustNotLead(func() {})
	r.keeper.Start()
	r.relay.Start()
}

func (r *replicaReturn) cut() {
	r.t.Helper()
	r.c.Cut([]*proctest.Member{r.stale})
	r.moveAway()
	stale, returning := []*proctest.Member{r.stale}, []*proctest.Member{r.returning}
	for r.c.Cut(stale, returning); !r.orderBack(); r.c.Cut(stale, returning) {
		r.c.Cut(stale)
	}
	r.c.Cut([]*proctest.Member{r.keeper, r.relay})
	before := r.tally.AcknowledgedBy(r.stale, r.returning, r.witness)
	r.mustNotLead(func() {
		r.tally.AddAll(1, r.keeper, r.relay)
		r.tally.Read(r.keeper, aloneTimeout)
	})
	if after := r.tally.AcknowledgedBy(r.stale, r.returning, r.witness); after > before {
		r.t.Errorf("%d increments were acknowledged beside the leader on the other side of the cut", after-before)
	}
	r.c.Heal()
	r.check()
}

// moveAway moves the replica of returning to relay and makes the remaining nodes
// acknowledge writes.
func (r *replicaReturn) moveAway() {
	r.t.Helper()
	r.c.Move(r.witness, r.group, r.returning, r.relay)
	r.c.AwaitReplica(r.returning, r.group, false)
	r.tally.AddAll(addsAfter, r.keeper, r.relay, r.witness)
}

// orderBack orders the move of relay's replica to returning, which is unreachable, before gossip
// declares returning dead. It reports whether the cluster accepted the order.
func (r *replicaReturn) orderBack() (taken bool) {
	r.t.Helper()
	eventually(r.t, "the replica is ordered back or returning is dead", func() bool {
		refused := r.witness.OrderMove(r.group, r.relay, r.returning)
		p := r.witness.PlacedAt(r.group)
		taken = p != nil && slices.Contains(p.Target, r.returning.Name)
		return taken || strings.Contains(refused, "is dead")
	})
	return taken
}

// mustNotLead writes to and reads from stale, returning and witness, which cannot reach the other
// nodes. The tally later checks their answers against the acknowledged writes.
func (r *replicaReturn) mustNotLead(beside func()) {
	r.t.Helper()
	eventually(r.t, "returning knows of the order", func() bool {
		p := r.returning.PlacedAt(r.group)
		return p != nil && slices.Contains(p.Target, r.returning.Name)
	})
	r.c.AwaitReplica(r.returning, r.group, true)
	var answered atomic.Int32
	for range aloneTries {
		var asked sync.WaitGroup
		for _, n := range []*proctest.Member{r.stale, r.returning, r.witness} {
			for _, ask := range []func(*proctest.Member, time.Duration) bool{r.tally.Read, r.tally.Add} {
				asked.Go(func() {
					if ask(n, aloneTimeout) {
						answered.Add(1)
					}
				})
			}
		}
		beside()
		asked.Wait()
	}
	r.t.Logf("%d requests were answered without keeper and relay", answered.Load())
}

// check waits until all nodes are ready, and then checks all answers and compares the replicas.
func (r *replicaReturn) check() {
	r.t.Helper()
	r.c.AwaitReady(r.c.Nodes()...)
	r.tally.Check(r.c.Nodes()...)
}

// verifies waits until no replica moves and compares all replicas.
func (r *replicaReturn) verifies() {
	r.t.Helper()
	r.c.AwaitVoters(voters)
	if run := r.witness.Ctl("verify"); run.Code != 0 {
		r.t.Errorf("verify exits %d\n%s%s", run.Code, run.Stdout, run.Stderr)
	}
	if r.t.Failed() {
		r.t.FailNow() // stop now, because the next run would begin with a broken cluster
	}
}
