package e2e

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// In TestClusterMissedConfiguration one node misses a change of voters, and then another node loses
// its disk:
//
//  1. A group has the voters stale, lost and leaving. Stale is killed, or paused.
//  2. The replica of leaving moves to another node, the newcomer. It moves for one of three
//     reasons: by an order, because leaving is removed from the cluster, or because the newcomer is
//     added. Writes are acknowledged.
//  3. Lost is killed and its disk is deleted. Stale is started or resumed.
//
// Stale does not know the newcomer, and the newcomer has all acknowledged writes. The two are a majority, so
// every group has a leader and no increment is lost. Once lost is back with an empty disk, each group has three
// voters, and verify finds all replicas equal.
func TestClusterMissedConfiguration(t *testing.T) {
	long(t)
	beside(t)
	for _, store := range stores("shared") {
		for _, change := range short([]string{"move"}, []string{"move", "remove", "grow"}) {
			for _, paused := range short([]bool{false}, []bool{false, true}) {
				t.Run(store+"/"+change+map[bool]string{false: "/killed", true: "/paused"}[paused], func(t *testing.T) {
					nodes := returnNodes
					if change == "grow" {
						nodes-- // a node is added later
					}
					c := newCluster(t, proctest.Options{Nodes: nodes, LogStore: store})
					newMissed(t, c, 0).run(change, paused)
				})
			}
		}
	}
}

// missed are the roles of TestClusterMissedConfiguration for a shard of posts.
type missed struct {
	t                    *testing.T
	c                    *proctest.Cluster
	group                uint32
	tally                *proctest.Tally
	stale, lost, leaving *proctest.Member
	out                  *proctest.Member // has no replica of the group at first
}

func newMissed(t *testing.T, c *proctest.Cluster, shard int) *missed {
	t.Helper()
	m := &missed{t: t, c: c, tally: c.NewTally(shard)}
	c.AwaitReady(c.Nodes()...)
	at := c.Nodes()[0]
	placed := at.Placed()
	i := slices.IndexFunc(placed, func(p proctest.Placed) bool { return p.Keyspace == "posts" && p.Shard == shard })
	if i < 0 {
		t.Fatalf("no shard %d of posts in %+v", shard, placed)
	}
	m.group = placed[i].ID
	var in, out []*proctest.Member
	for _, n := range c.Nodes() {
		if slices.Contains(placed[i].Target, n.Name) {
			in = append(in, n)
		} else {
			out = append(out, n)
		}
	}
	rand.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
	m.stale, m.lost, m.leaving, m.out = in[0], in[1], in[2], out[0]
	t.Logf("group %d: stale %s, lost %s, leaving %s", m.group, m.stale.Name, m.lost.Name, m.leaving.Name)
	return m
}

func (m *missed) run(change string, paused bool) {
	m.t.Helper()
	m.tally.AddAll(addsBefore, m.c.Nodes()...)
	if change == "grow" {
		m.out = m.c.Add()
		eventually(m.t, "moves to the new node are planned", func() bool { return len(m.planned()) > 0 })
	}
	if paused {
		m.stale.Pause()
	} else {
		m.stale.Kill()
	}
	var removing *proctest.Ctl // runs in the background: it also waits until stale, which is down, has replicas of other groups
	switch change {
	case "move":
		m.c.Move(m.out, m.group, m.leaving, m.out)
	case "remove":
		removing = m.out.StartCtl("node", "remove", m.leaving.Name, "--yes")
		eventually(m.t, "the group is without leaving", func() bool {
			p := m.out.PlacedAt(m.group)
			return p != nil && p.Settled() && !slices.Contains(p.Target, m.leaving.Name)
		})
	case "grow":
		eventually(m.t, "the moves are made", func() bool {
			planned := m.planned()
			return len(planned) > 0 && !slices.ContainsFunc(planned, func(p proctest.Placed) bool { return !p.Settled() })
		})
	}
	m.tally.AddAll(addsAfter, m.c.Others(m.stale)...)
	m.loseDisk()
	if paused {
		m.stale.Resume()
	} else {
		m.stale.Start()
	}
	m.mustBeLed(m.lost)
	m.tally.AddAll(1, m.c.Others(m.lost, m.leaving)...)
	m.lost.Start()
	left := m.c.Nodes()
	if removing != nil {
		if removing.Wait(); removing.Code != 0 {
			m.t.Errorf("node remove exits %d: %s", removing.Code, removing.Stderr)
		}
		left = m.c.Others(m.leaving)
		m.leaving.Stop()
	}
	m.c.AwaitReady(left...)
	m.c.AwaitVoters(voters, m.c.Others(left...)...)
	m.tally.Check(left...)
	if run := m.out.Ctl("verify"); run.Code != 0 {
		m.t.Errorf("verify exits %d\n%s%s", run.Code, run.Stdout, run.Stderr)
	}
}

// planned returns the groups that should have a replica on out, as out reports them.
func (m *missed) planned() []proctest.Placed {
	return slices.DeleteFunc(m.out.Placed(), func(p proctest.Placed) bool {
		return p.ID == 0 || !slices.Contains(p.Target, m.out.Name)
	})
}

// loseDisk kills the node lost and deletes its data. At its next start, it is a new node of the
// same name.
func (m *missed) loseDisk() {
	m.t.Helper()
	m.lost.Kill()
	must.Do(m.t, os.RemoveAll(m.lost.Dir))
}

func (m *missed) mustBeLed(but ...*proctest.Member) {
	m.t.Helper()
	m.t.Logf("each group has a leader after %v", m.c.AwaitLed(but...))
}

// chaos causes the fault of the method run in TestClusterChaosMoves. There, the mover changes
// voters while stale is down.
func (m *missed) chaos(mover *proctest.Mover, span time.Duration) {
	m.t.Helper()
	mover.Still(func() { m.c.AwaitVoters(voters) }) // wait until all groups have three voters; otherwise the loss of a disk could lose data
	m.stale.Kill()
	time.Sleep(span)
	mover.Still(func() {
		m.loseDisk()
		m.stale.Start()
		m.mustBeLed(m.lost)
		m.lost.Start()
		m.c.AwaitReady(m.c.Nodes()...)
		m.c.AwaitVoters(voters)
	})
}
