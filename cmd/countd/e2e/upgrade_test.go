package e2e

import (
	"flag"
	"testing"
	"time"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/proctest"
)

const movesOfPhase = 12

var (
	longUpgrades = flag.Bool("upgrades", false, "run the long tests of upgrades (make upgrade)")
	oldCountd    = flag.String("old-countd", "", "the countd that the long tests of upgrades begin with (make upgrade OLD=<git ref>)")
)

// upgrading is a cluster under load that starts with the older of two programs.
type upgrading struct {
	t *testing.T
	*load
	c            *proctest.Cluster
	at           *proctest.Member
	older, newer proctest.Binaries
}

// startUpgrading starts a cluster with the program of -old-countd, for an upgrade to the program of
// this tree. Without the flag, it starts with the program of this tree, for an upgrade to the program
// of nextVersion.
func startUpgrading(t *testing.T) *upgrading {
	t.Helper()
	options := proctest.Options{Nodes: returnNodes}
	switch {
	case *oldCountd != "":
		return startUpgrade(t, proctest.Binaries{Countd: *oldCountd, Countctl: bin.Countctl}, bin, options)
	case !*longUpgrades:
		t.Skip("takes minutes: make upgrade")
	}
	return startUpgrade(t, bin, buildReplaced(t, nextVersion), options)
}

func startUpgrade(t *testing.T, older, newer proctest.Binaries, options proctest.Options) *upgrading {
	t.Helper()
	c := proctest.NewCluster(t, older, options)
	l := &load{t, time.Now(), c.StartLoad(4, faultPace)}
	return &upgrading{t: t, load: l, c: c, at: c.Nodes()[0], older: older, newer: newer}
}

// TestUpgradeUnderLoad upgrades a cluster node by node while replicas move, and then raises the
// cluster version. It stops some nodes and kills others. Then
//
//  1. every move that was ordered before the version rose is complete;
//  2. a replica that leaves its node can come back, as in
//     TestClusterReplicaReturnsKilled;
//  3. each count is the sum of the answered writes, one order explains all other answers, and
//     replicas are equal and never differed at one index.
func TestUpgradeUnderLoad(t *testing.T) {
	u := startUpgrading(t)
	u.at.MustCtl("keyspace", "everywhere", "users")
	u.whileMoving("with the program of before", movesOfPhase, func() {
		for _, n := range u.c.Nodes() {
			u.restart(n, u.older, true)
		}
	})
	u.at.MustCtl("upgrade", "hold")
	u.whileMoving("while the program is replaced", 0, u.replace)
	u.raiseVersion()
	for _, p := range u.at.Placed() {
		u.c.AwaitSettled(u.at, p.ID, voters)
	}
	u.whileMoving("with the new version", movesOfPhase, func() {
		for _, n := range u.c.Nodes() {
			u.restart(n, u.newer, true)
		}
	})
	u.at.MustCtl("keyspace", "everywhere", "users", "--off")
	u.returns()
	u.end()
}

// TestUpgradeHeld upgrades a cluster node by node while its version is held. It returns one node to
// the previous program and upgrades it again. Then it raises the version. Before and after the
// version rises, a replica leaves its node and comes back, as in TestClusterReplicaReturnsKilled.
func TestUpgradeHeld(t *testing.T) {
	u := startUpgrading(t)
	u.at.MustCtl("upgrade", "hold")
	u.replace()
	u.restart(u.at, u.older, false)
	u.restart(u.at, u.newer, true)
	u.returns()
	u.raiseVersion()
	u.returns()
	u.end()
}

// TestUpgradeWhileReplicaIsAway upgrades a cluster after the previous program moved a replica away
// from its node. During the move and the upgrade, another voter is down. This voter does not know
// of the move, and comes back with the previous program.
func TestUpgradeWhileReplicaIsAway(t *testing.T) {
	u := startUpgrading(t)
	r := newReturn(t, u.c, 0)
	r.stale.Kill()
	r.moveAway()
	for i, n := range u.c.Others(r.stale) {
		u.restart(n, u.newer, i%2 == 0)
	}
	r.comeBack()
	r.stale.Kill()
	r.stale.Use(u.newer)
	r.stale.Start()
	r.check()
	u.c.AwaitReady(u.c.Nodes()...)
	u.raiseVersion()
	u.returns()
	u.end()
}

// restart ends a node, by kill -9 if kill is set. It starts the node again with the given programs,
// and waits until the node can serve.
func (u *upgrading) restart(n *proctest.Member, with proctest.Binaries, kill bool) {
	u.t.Helper()
	if kill {
		n.Kill()
	} else {
		n.Stop()
	}
	n.Use(with)
	n.Start()
	u.c.AwaitReady(n)
}

// replace makes each node run the new program, while the version is held.
func (u *upgrading) replace() {
	u.t.Helper()
	before := u.version(u.at)
	for i, n := range u.c.Nodes() {
		u.restart(n, u.newer, i%2 == 0)
	}
	if now := u.version(u.at); now.Version != before.Version || !now.Held {
		u.t.Errorf("the cluster version was held at %d and is %+v", before.Version, now)
	}
}

func (u *upgrading) version(at *proctest.Member) admin.ClusterVersion {
	u.t.Helper()
	return ctl[admin.ClusterVersion](u.t, at, "upgrade", "status")
}

// raiseVersion raises the cluster version to the latest that the new program supports.
func (u *upgrading) raiseVersion() {
	u.t.Helper()
	eventually(u.t, "all nodes are known to speak a later version", func() bool { v := u.version(u.at); return *oldCountd != "" || v.Max > v.Version })
	before := u.version(u.at)
	u.at.MustCtl("upgrade", "finalize", "--yes")
	now := u.version(u.at)
	u.t.Logf("the cluster version was %d and is %d", before.Version, now.Version)
	if now.Version != now.Max || now.Held {
		u.t.Errorf("the cluster version after finalize: %+v", now)
	}
}

// whileMoving moves replicas until f has returned and at least count replicas were moved.
func (u *upgrading) whileMoving(phase string, count int64, f func()) {
	u.t.Helper()
	mover := u.c.StartMoves()
	f()
	eventually(u.t, "replicas move "+phase, func() bool { moved, _ := mover.Moved(); return moved >= count })
	mover.Stop()
	moved, back := mover.Moved()
	u.t.Logf("%s: %d replicas were moved, %d of them back", phase, moved, back)
}

// returns causes the fault of TestClusterReplicaReturnsKilled in two shards.
func (u *upgrading) returns() {
	u.t.Helper()
	for shard := range 2 {
		r := newReturn(u.t, u.c, shard)
		r.killed()
	}
}

// end stops the load and checks all its answers, and compares the replicas.
func (u *upgrading) end() {
	u.t.Helper()
	u.c.AwaitReady(u.c.Nodes()...)
	u.Stop()
	u.c.AwaitVoters(voters)
	u.End(u.c.Nodes()...)
	u.at.MustCtl("verify")
	u.t.Logf("load: %v", u.Between(u.began, time.Now()))
}
