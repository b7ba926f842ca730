package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// watched is a clusterWatch with its log lines, and the view of three nodes that a test changes.
type watched struct {
	t *testing.T
	*clusterWatch
	clusterView
	log   bytes.Buffer
	never string // the reason that Replaced returns for not replacing a node
}

// newWatched returns a watch with a first view: three nodes lead the groups in turn.
func newWatched(t *testing.T, groups int) *watched {
	w := &watched{t: t}
	w.clusterWatch = newClusterWatch(slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
	w.At = time.Date(2026, 11, 22, 18, 0, 0, 0, time.UTC)
	w.Replaced = func(key string) (time.Time, string) {
		for _, n := range w.Nodes {
			if n.Key == key {
				return n.DeadSince.Add(10 * time.Minute), w.never
			}
		}
		return time.Time{}, w.never
	}
	keys := []string{"k1", "k2", "k3"}
	for i, key := range keys {
		w.Nodes = append(w.Nodes, viewNode{Key: key, Name: fmt.Sprintf("n%d", i+1), State: "active"})
	}
	for g := range groups {
		w.Groups = append(w.Groups, viewGroup{Name: fmt.Sprintf("posts/%d", g), Here: true, Leader: keys[g%3], Voters: keys})
	}
	w.wants()
	return w
}

// wants passes the next view, half a second later, to the watch, and compares the new log lines
// with the parameter lines.
func (w *watched) wants(lines ...string) {
	w.t.Helper()
	w.At = w.At.Add(500 * time.Millisecond)
	w.Update(w.clusterView)
	got := strings.Split(strings.TrimSuffix(w.log.String(), "\n"), "\n")
	if w.log.Len() == 0 {
		got = nil
	}
	w.log.Reset()
	if strings.Join(got, "\n") != strings.Join(lines, "\n") {
		w.t.Errorf("at %s the log has\n%s\nwant\n%s", w.At.Format(time.TimeOnly), strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

// quiet lets d pass and fails on any line.
func (w *watched) quiet(d time.Duration) {
	w.t.Helper()
	for range d / (500 * time.Millisecond) {
		w.wants()
	}
}

// led makes one node the leader of all groups that another node leads. from and to are the keys of
// the previous and the new leader.
func (w *watched) led(from, to string) {
	for i := range w.Groups {
		if w.Groups[i].Leader == from {
			w.Groups[i].Leader = to
		}
	}
}

func TestNothingChanges(t *testing.T) {
	w := newWatched(t, 24)
	w.quiet(time.Hour)
}

// A node dies and comes back. Other nodes take over its groups before a view shows a group without
// a leader.
func TestNodeDiesAndComesBack(t *testing.T) {
	w := newWatched(t, 24)
	for i := range w.Groups { // the elections end one after the other
		if g := &w.Groups[i]; g.Leader == "k2" {
			g.Leader = []string{"k1", "k3"}[i%2]
			if i%6 == 1 {
				w.wants()
			}
		}
	}
	w.Nodes[1].DeadSince = w.At
	w.wants(`level=WARN msg="node is dead" node=n2 since=2026-11-22T18:00:02Z degraded_groups=24 groups="posts/0, posts/1, posts/2 and 21 more" replaced_at=2026-11-22T18:10:02Z`)
	w.wants()
	w.wants(`level=INFO msg="groups changed their leader" count=8 groups="posts/1, posts/4, posts/7 and 5 more" from="n2 8" to="n1 4, n3 4"`)
	w.quiet(time.Minute)
	w.Nodes[1].DeadSince = time.Time{}
	w.wants(`level=INFO msg="node is back" node=n2 gone_for=1m2s degraded_groups=0`)
	w.quiet(time.Minute)
}

// While most voters are dead, groups have no leader.
func TestGroupsLoseTheirLeader(t *testing.T) {
	w := newWatched(t, 24)
	w.never = "half of the nodes or more are dead"
	w.led("k2", "")
	w.wants()
	w.led("k3", "")
	w.quiet(2 * time.Second)
	w.Nodes[1].DeadSince, w.Nodes[2].DeadSince = w.At, w.At
	w.wants(
		`level=WARN msg="node is dead" node=n2 since=2026-11-22T18:00:03Z degraded_groups=24 groups="posts/0, posts/1, posts/2 and 21 more" without_majority=24 replaced="no: half of the nodes or more are dead"`,
		`level=WARN msg="node is dead" node=n3 since=2026-11-22T18:00:03Z degraded_groups=24 groups="posts/0, posts/1, posts/2 and 21 more" without_majority=24 replaced="no: half of the nodes or more are dead"`)
	w.wants(`level=WARN msg="groups lost their leader and take no writes" count=16 groups="posts/1, posts/2, posts/4 and 13 more" since=2026-11-22T18:00:01Z last_leaders="n2 8, n3 8" dead_voters="n2, n3"`)
	w.led("k1", "") // n1, the last living node, loses its leases
	w.quiet(3 * time.Second)
	w.wants(`level=WARN msg="groups lost their leader and take no writes" count=8 groups="posts/0, posts/3, posts/6 and 5 more" since=2026-11-22T18:00:04Z last_leaders="n1 8" dead_voters="n2, n3"`)
	w.quiet(time.Minute)
	w.Nodes[2].DeadSince = time.Time{}
	w.wants(`level=INFO msg="node is back" node=n3 gone_for=1m5s degraded_groups=24`)
	for i := range w.Groups[:23] {
		w.Groups[i].Leader = "k1"
	}
	w.quiet(3 * time.Second)
	w.wants(`level=INFO msg="groups have a leader again" count=23 groups="posts/0, posts/1, posts/2 and 20 more" leaders="n1 23" after=1m8s without_leader=1`)
	w.Groups[23].Leader = "k3"
	w.wants(`level=INFO msg="groups have a leader again" count=1 groups=posts/23 leaders="n3 1" after=1m11s without_leader=0`)
	w.quiet(time.Minute)
}

// During a handover a group has no leader for a moment. The watch does not report this as a loss.
func TestHandoverIsNoLoss(t *testing.T) {
	w := newWatched(t, 24)
	w.led("k2", "")
	w.quiet(time.Second)
	w.led("", "k3")
	w.quiet(3 * time.Second)
	w.wants(`level=INFO msg="groups changed their leader" count=8 groups="posts/1, posts/4, posts/7 and 5 more" from="n2 8" to="n3 8"`)
	w.quiet(time.Minute)
}

func TestGroupsWithoutAFirstLeader(t *testing.T) {
	w := newWatched(t, 0)
	for g := range 24 {
		w.Groups = append(w.Groups, viewGroup{Name: fmt.Sprintf("posts/%d", g), Here: true, Voters: []string{"k1", "k2", "k3"}})
	}
	w.quiet(29 * time.Second)
	for g := range w.Groups[:20] {
		w.Groups[g].Leader = "k1"
	}
	w.quiet(time.Second)
	w.wants(`level=WARN msg="groups have no leader yet and take no writes" count=4 groups="posts/20, posts/21, posts/22, posts/23" since=2026-11-22T18:00:01Z`)
	for g := range w.Groups {
		w.Groups[g].Leader = "k1"
	}
	w.wants(`level=INFO msg="groups have a leader again" count=4 groups="posts/20, posts/21, posts/22, posts/23" leaders="n1 4" after=31s without_leader=0`)
	w.quiet(time.Minute)
}

// New groups, deleted groups, and groups without a replica on this node are not reported as without
// a leader.
func TestGroupsComeAndGo(t *testing.T) {
	w := newWatched(t, 3)
	w.Groups = append(w.Groups, viewGroup{Name: "shop/0", Here: true}, viewGroup{Name: "shop/1"})
	w.wants()
	w.Groups[3].Leader = "k1" // its first leader
	w.quiet(time.Minute)
	w.Groups = w.Groups[:2]
	w.quiet(time.Minute)
	w.Groups[1].Here, w.Groups[1].Leader = false, ""
	w.quiet(time.Minute)
}

// The watch reports joins, removals and changes of a node's state. A new watch reports the nodes
// that are already dead.
func TestNodesComeAndGo(t *testing.T) {
	w := newWatched(t, 3)
	w.Nodes = append(w.Nodes, viewNode{Key: "k4", Name: "n4", State: "active"})
	w.wants(`level=INFO msg="node joined the cluster" node=n4 key=k4`)
	w.Nodes[3].State = "leaving"
	w.wants(`level=INFO msg="node changed its state" node=n4 state=leaving was=active`)
	w.Nodes = w.Nodes[:3]
	w.wants(`level=INFO msg="node was removed from the cluster" node=n4 key=k4`)
	w.Nodes[2].DeadSince, w.Nodes[2].Stopped = w.At, true
	w.wants(`level=INFO msg="node was stopped" node=n3 since=2026-11-22T18:00:02Z degraded_groups=3 groups="posts/0, posts/1, posts/2" replaced_at=2026-11-22T18:10:02Z`)

	w.clusterWatch = newClusterWatch(w.logger)
	w.wants(`level=INFO msg="node was stopped" node=n3 since=2026-11-22T18:00:02Z degraded_groups=3 groups="posts/0, posts/1, posts/2" replaced_at=2026-11-22T18:10:02Z`)
}

func TestWritesStopAndResume(t *testing.T) {
	w := newWatched(t, 3)
	w.Disk = viewSpace{Full: true, NeededBytes: 200, HasBytes: 100}
	w.wants(`level=WARN msg="writes stopped" why="the disk of this node is at its reserve" needed_bytes=200 has_bytes=100`)
	w.Disk.HasBytes = 90
	w.quiet(10 * time.Second)
	w.VotersFull = []string{"posts/0"}
	w.wants()
	w.VotersFull = []string{"posts/0", "posts/1"} // the node had not yet checked its other groups
	w.wants()
	w.wants(`level=WARN msg="writes to groups led here stopped" why="the disks of most voters are full" count=2 groups="posts/0, posts/1"`)
	w.Disk = viewSpace{NeededBytes: 200, HasBytes: 300}
	w.wants(`level=INFO msg="writes resumed" why="the disk of this node has room" stopped_for=12s needed_bytes=200 has_bytes=300`)
	w.VotersFull = nil
	w.wants()
	w.wants(`level=INFO msg="writes to groups led here resumed" why="the disks of most voters have room" stopped_for=1.5s`)
	w.Memory = viewSpace{Full: true, NeededBytes: 1000, HasBytes: 900}
	w.wants(`level=WARN msg="writes of new rows stopped" why="this node is at its memory limit" needed_bytes=1000 has_bytes=900`)
	w.Memory.Full = false
	w.wants(`level=INFO msg="writes of new rows resumed" why="this node has memory" stopped_for=500ms needed_bytes=1000 has_bytes=900`)
	w.quiet(time.Minute)
}
