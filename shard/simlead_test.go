package shard

import (
	"cmp"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
)

func (w *simWorld) reconcile(at int) {
	n := &w.nodes[at]
	if !n.up {
		return
	}
	w.follow(at)
	r := n.replica
	if r == nil || !r.ready() {
		w.startDrop(at)
		return
	}
	if r.waits || r.lead.change != nil || r.lead.transferTo != "" {
		return
	}
	view := w.viewOf(n)
	p := view.Groups[simGroup]
	target, others, known := wanted(view)
	if !known || w.rules.mindsNumbers && w.isBehind(r, &p) {
		return
	}
	step := replica.NextStep(r.disk.id, r.latest, target, others, func(id raft.ServerID) (uint64, error) { return w.behind(r, id) })
	switch step.Do {
	case replica.StepNone:
		if w.rules.numbers {
			w.numbers(n, r, view, &p)
		}
	case replica.StepHandOver:
		w.transfer(r, step.Member.ID)
	default:
		command := map[replica.StepKind]raft.ConfigurationChangeCommand{
			replica.StepAdd: raft.AddNonvoter, replica.StepPromote: raft.AddVoter, replica.StepDemote: raft.DemoteVoter, replica.StepRemove: raft.RemoveServer,
		}[step.Do]
		r.lead.change = &simChange{command, step.Member.ID, raft.ServerAddress(step.Member.Addr)}
		if w.shape.full && !w.calm && w.rng.IntN(4) == 0 {
			w.fill(at, true) // the disk gets full between the check and the write
		}
		r.changeMembers()
	}
}

// isBehind reports whether the node's catalog is older than the members of the group.
func (w *simWorld) isBehind(r *simRaft, p *catalog.Placement) bool {
	return slices.ContainsFunc(r.latest, func(s raft.Server) bool {
		number := w.nameOf(s.ID).number
		return number > 0 && number >= p.NextReplica
	})
}

func (w *simWorld) transfer(r *simRaft, to raft.ServerID) {
	if slices.ContainsFunc(r.lead.repl, func(f *simRepl) bool { return f.id == to }) {
		w.note("%s hands over to %s", r.disk.id, to)
		r.lead.transferTo = to
	}
}

// wanted is leadership.Wanted, with others in an order that depends on the seed alone.
func wanted(view *catalog.View) (target, others []replica.Member, known bool) {
	target, others, known = leadership.Wanted(view, simGroup)
	slices.SortFunc(others, func(a, b replica.Member) int { return cmp.Compare(a.ID, b.ID) })
	return target, others, known
}

// progress asks a member for its progress, and returns its replica if it answers. It returns nil
// and true if the node answers but does not hold the member. A node whose disk is full refuses
// (serveProgress).
func (w *simWorld) progress(r *simRaft, id raft.ServerID) (member *simRaft, answered bool) {
	at := w.nameOf(id).node
	n := &w.nodes[at]
	if !n.up || n.full || !w.reaches(r.disk.node, at) || !w.reaches(at, r.disk.node) {
		return nil, false
	}
	if n.replica != nil && (!w.rules.named || n.replica.is(id)) {
		member = n.replica
	}
	return member, true
}

// behind is Membership.behind. It may count a member as caught up sooner than CaughtUpEntries does,
// because a world's logs are short.
func (w *simWorld) behind(r *simRaft, id raft.ServerID) (uint64, error) {
	applied := uint64(0)
	switch member, answered := w.progress(r, id); {
	case !answered:
		return 0, leadership.ErrNotMember
	case member != nil:
		applied = member.applied
	}
	if r.rules().inForce && (r.accAt != r.latestAt || applied < r.latestAt) {
		return 0, leadership.ErrNotMember
	}
	last := max(r.lastLog, r.disk.snap.index)
	lag := last - min(last, applied)
	if lag > w.caughtUp {
		lag = replica.CaughtUpEntries + 1
	}
	return lag, nil
}

// numbers retires the numbers of removed replicas in the catalog, like Membership.ReconcileNumbers.
func (w *simWorld) numbers(n *simNode, r *simRaft, view *catalog.View, p *catalog.Placement) {
	for i := range w.nodes {
		key := w.nodes[i].key
		number, has := p.Number(key)
		id := replica.RaftID(key, number)
		if !has || view.MayHold(simGroup, key) || replica.Contains(r.accepted, id) || replica.Contains(r.latest, id) {
			continue
		}
		retire := &catalog.Command{Retire: &catalog.RetireEntry{Group: simGroup, Node: key, Number: number, Revision: p.Revision}}
		if !r.rules().retireProves {
			w.sent = append(w.sent, retire)
			continue
		}
		w.prove(&simOp{r: r, done: func() { w.sent = append(w.sent, retire) }})
	}
}

func (w *simWorld) change(c *catalog.Command) {
	next, result := w.views[len(w.views)-1].After(c)
	if result.Refused != "" || result.Missing {
		return
	}
	w.views = append(w.views, next)
	if c.Retire != nil {
		w.stats.retired++
	}
	if w.tracing {
		p := next.Groups[simGroup]
		w.note("view %d: target %v, replicas %v, next %d, revision %d, version %d", len(w.views)-1, p.Target, p.Replicas, p.NextReplica, p.Revision, next.ClusterVersion)
	}
}
