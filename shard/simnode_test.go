package shard

import (
	"maps"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
)

func (w *simWorld) viewOf(n *simNode) *catalog.View { return w.views[n.view] }

// follow opens the node's replica, or creates one if the catalog wants it.
func (w *simWorld) follow(at int) {
	n := &w.nodes[at]
	if !n.up || n.replica != nil || n.drop != nil {
		return
	}
	view := w.viewOf(n)
	p := view.Groups[simGroup]
	if n.disk != nil {
		w.open(n, nil)
		return
	}
	rules, number := &w.rules, uint64(0)
	if rules.numbers && p.Numbered() {
		var has bool
		if number, has = p.Number(n.key); !has {
			return
		}
	}
	initial := rules.initialBegins && leadership.InitialMembers(view, simGroup, replica.RaftID(n.key, number)) != nil
	if !initial && !view.MayHold(simGroup, n.key) {
		return
	}
	if rules.neverTwice && int64(number) <= n.deleted {
		return
	}
	w.begin(at, view, number)
}

func (w *simWorld) begin(at int, view *catalog.View, number uint64) {
	n := &w.nodes[at]
	w.lives++
	w.stats.blanks++
	id := replica.RaftID(n.key, number)
	n.disk = &simDisk{life: w.lives, node: at, number: int(number), id: id}
	if other, before := w.began[id]; before {
		w.fail(simTwoLives, "life %d begins as %s, which life %d was", w.lives, id, other)
	}
	w.began[id] = w.lives
	var initial []raft.Server
	if n.deleted < 0 {
		for _, m := range leadership.InitialMembers(view, simGroup, id) {
			initial = append(initial, raft.Server{Suffrage: raft.Voter, ID: m.ID, Address: raft.ServerAddress(w.views[0].Nodes[replica.NodeOf(m.ID)].ClusterAddr)})
		}
	}
	w.open(n, initial)
	if w.tracing {
		w.note("%s begins life %d as %s, %s", n.key, w.lives, id, simConf(initial))
	}
}

func (w *simWorld) open(n *simNode, initial []raft.Server) {
	n.replica = startRaft(w, n.disk, initial)
	if simHasVote(n.replica.latest, n.disk.id) && simQuorum(n.replica.latest) == 1 {
		n.replica.heartbeatTimeout()
	}
}

func (w *simWorld) crash(at int) {
	n := &w.nodes[at]
	w.stats.crashes++
	w.note("%s crashes", n.key)
	n.up, n.replica, n.drop = false, nil, nil
}

func (w *simWorld) restart(at int) {
	n := &w.nodes[at]
	n.up = true
	n.view = n.kept
	if w.rng.IntN(2) == 0 {
		n.view += w.rng.IntN(len(w.views) - n.kept)
	}
	w.note("%s starts, with view %d of %d", n.key, n.view, len(w.views)-1)
	if n.disk != nil {
		w.open(n, nil)
	}
}

// retired reports whether the node must delete its replica, according to its catalog.
func (w *simWorld) retired(n *simNode) bool {
	view := w.viewOf(n)
	p := view.Groups[simGroup]
	if w.rules.numbers {
		return p.Retired(n.key, uint64(n.disk.number))
	}
	return !view.EveryNode(simGroup) && !slices.Contains(p.Target, n.key)
}

// startDrop begins dropIfRemoved.
func (w *simWorld) startDrop(at int) {
	n := &w.nodes[at]
	if n.drop != nil {
		if w.rng.IntN(8) == 0 || w.calm { // nobody answers
			if n.drop.closed {
				w.open(n, nil)
			}
			n.drop = nil
		}
		return
	}
	r := n.replica
	if r == nil || r.ready() || !w.retired(n) {
		return
	}
	if w.rules.numbers && !w.rules.deleteAsks {
		w.delete(at)
		return
	}
	n.drop = &simDrop{}
	w.askMember(at)
}

func (w *simWorld) askMember(at int) {
	n := &w.nodes[at]
	n.drop.call = w.nextCall()
	view := w.viewOf(n)
	asked := slices.Clone(view.Groups[simGroup].Target)
	if w.rules.asksAll {
		asked = slices.Sorted(maps.Keys(view.Nodes))
	}
	if r := n.replica; r != nil && r.leader != "" {
		asked = append(asked, w.nodes[w.nameOf(r.leaderID).node].key)
	}
	for _, key := range asked {
		to := w.nodeOf(key)
		if to != at {
			w.post(simMsg{kind: simMember, from: at, to: to, fromID: n.disk.id, call: n.drop.call})
		}
	}
}

func (w *simWorld) nodeOf(key string) int {
	return slices.IndexFunc(w.nodes, func(n simNode) bool { return n.key == key })
}

func (w *simWorld) serveMember(r *simRaft, m *simMsg) {
	if r == nil || !r.ready() {
		return
	}
	in := replica.Contains(r.accepted, m.fromID) || replica.Contains(r.latest, m.fromID)
	asked := *m
	w.prove(&simOp{r: r, done: func() {
		w.post(simMsg{kind: simMemberAnswer, from: asked.to, to: asked.from, call: asked.call, ok: in})
	}})
}

func (w *simWorld) dropAnswered(at int, m *simMsg) {
	n := &w.nodes[at]
	if n.drop == nil || m.call != n.drop.call {
		return
	}
	switch {
	case !m.ok && !n.drop.closed:
		n.drop.closed = true
		w.note("%s closes %s, to delete it", n.key, n.disk.id)
		if !w.retired(n) {
			n.drop = nil
			w.open(n, nil)
			return
		}
		w.askMember(at)
		n.replica = nil
	case !m.ok:
		w.delete(at)
	default:
		if n.drop.closed {
			w.open(n, nil)
		}
		n.drop = nil
	}
}

func (w *simWorld) delete(at int) {
	n := &w.nodes[at]
	w.stats.deletions++
	w.note("%s deletes life %d, %s", n.key, n.disk.life, n.disk.id)
	n.deleted = max(n.deleted, int64(n.disk.number))
	n.disk, n.replica, n.drop = nil, nil, nil
}

// reopen repairs a replica: it stores another replica's snapshot beside the replica's own log and
// vote.
func (w *simWorld) reopen(at, from int) {
	n, other := &w.nodes[at], &w.nodes[from]
	r, o := n.replica, other.replica
	if r == nil || o == nil || r.state == simLeader || !w.reaches(at, from) || !w.reaches(from, at) {
		return
	}
	o.takeSnapshot(w.trailing)
	if s := o.disk.snap; s.index >= max(r.disk.snap.index, 1) && s.term <= r.disk.term {
		w.note("%s is repaired by the snapshot of entry %d that %s has", r.disk.id, s.index, o.disk.id)
		r.disk.snap = s
		w.open(n, nil)
	}
}
