package e2e

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// linesOf returns the lines of a node's log that contain all of these texts.
func linesOf(n *proctest.Member, texts ...string) (found []string) {
	for line := range strings.Lines(n.Log()) {
		has := true
		for _, text := range texts {
			has = has && strings.Contains(line, text)
		}
		if has {
			found = append(found, line)
		}
	}
	return found
}

// groupsIn returns the sum of the counts of groups in the lines.
func groupsIn(t *testing.T, lines []string) (groups int) {
	t.Helper()
	for _, line := range lines {
		m := regexp.MustCompile(` count=(\d+) `).FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no count in %s", line)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		groups += n
	}
	return groups
}

// TestLogTellsOfDeadNodes kills two of three nodes and starts them again. The log of the
// third node reports
//
//  1. the death and the return of each node, in one line each;
//  2. that groups lost and regained their leaders, in fewer lines than there are groups;
//  3. little else, because the node limits how often it logs messages of raft.
func TestLogTellsOfDeadNodes(t *testing.T) {
	long(t)
	beside(t)
	c := proctest.NewCluster(t, bin, proctest.Options{LogStore: "boltdb"}) // not newCluster, because the test needs many groups
	n1, n2, n3 := c.Nodes()[0], c.Nodes()[1], c.Nodes()[2]
	n2.Kill()
	n3.Kill()
	lost := func() []string { return linesOf(n1, `msg="groups lost their leader and take no writes"`) }
	regained := func() []string { return linesOf(n1, `msg="groups have a leader again"`) }
	for _, name := range []string{"n2", "n3"} {
		eventually(t, "n1 logs that "+name+" is dead", func() bool { return len(linesOf(n1, `msg="node is dead"`, "node="+name)) > 0 })
	}
	all := linesOf(n1, `msg="node is dead"`)
	line := all[len(all)-1]
	for _, text := range []string{"since=", "degraded_groups=", "without_majority=", `replaced="no: half of the nodes or more are dead"`} {
		if !strings.Contains(line, text) {
			t.Errorf("no %s in %s", text, line)
		}
	}
	m := regexp.MustCompile(`without_majority=(\d+)`).FindStringSubmatch(line)
	if m == nil {
		t.FailNow()
	}
	groups, err := strconv.Atoi(m[1])
	if err != nil || groups < c.Shards("posts") {
		t.Fatalf("%d groups, %v", groups, err)
	}
	eventually(t, "n1 logs that all groups lost their leader", func() bool { return groupsIn(t, lost())-groupsIn(t, regained()) == groups })
	n2.Start()
	n3.Start()
	c.AwaitReady(c.Nodes()...)
	eventually(t, "n1 logs that all groups have a leader again", func() bool { return groupsIn(t, lost()) == groupsIn(t, regained()) })
	for _, name := range []string{"n2", "n3"} {
		eventually(t, "n1 logs that "+name+" is back", func() bool {
			dead, back := linesOf(n1, `msg="node is dead"`, "node="+name), linesOf(n1, `msg="node is back"`, "node="+name)
			return len(dead) == len(back) // more than one if gossip was late
		})
	}
	if about := len(lost()) + len(regained()); about >= groups {
		t.Errorf("%d lines about %d groups", about, groups)
	}
	if raft := linesOf(n1, `msg="failed to contact"`); len(raft) >= groups {
		t.Errorf("%d lines of raft about peers that it cannot reach", len(raft))
	}
}
