package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/replica"
)

// newSimWorld creates the world of a seed.
func newSimWorld(seed uint64, rules simRules, shape simShape) *simWorld {
	w := &simWorld{
		rng: rand.New(rand.NewPCG(seed, 0)), rules: rules, shape: shape,
		names: map[raft.ServerID]simName{}, leaders: map[uint64]uint64{}, began: map[raft.ServerID]uint64{},
	}
	w.idents = 1 // the ident of the first configuration
	w.trailing = uint64(w.rng.IntN(4))
	w.caughtUp = []uint64{0, 2, replica.CaughtUpEntries}[w.rng.IntN(3)]
	view := catalog.New().View()
	must := func(c *catalog.Command) {
		next, result := view.After(c)
		if result.Refused != "" {
			panic(result.Refused)
		}
		view = next
	}
	count := 4 + w.rng.IntN(2)
	switch {
	case shape.small:
		count = 4
	case shape.five:
		count = 6
	}
	for i := range count {
		n := simNode{key: string(rune('A' + i)), addr: fmt.Sprint("host", i), up: true, deleted: -1}
		w.nodes = append(w.nodes, n)
		must(&catalog.Command{PutNode: &catalog.PutNodeEntry{Node: w.catalogNode(&n)}})
	}
	sizes := []int{1, 2, 3, 3, 3, 3}
	size := sizes[w.rng.IntN(len(sizes))]
	switch {
	case shape.five:
		size = 5
	case shape.wipes || shape.small || shape.full:
		size = 3
	case shape.single:
		size = 1
	}
	must(&catalog.Command{Create: &catalog.CreateEntry{
		Keyspace: catalog.Keyspace{Name: "k", Kind: codec.KindCounters.String(), Columns: []string{"c"}, Divisor: 1},
		Replicas: [][]string{w.someKeys(view, size)},
	}})
	if p := view.Groups[simGroup]; !rules.numbers {
		p.Replicas, p.NextReplica, p.FirstReplica = nil, 0, 0
		view.Groups[simGroup] = p
	}
	w.views = []*catalog.View{view}
	w.note("%d nodes, target %v, caught up within %d", count, view.Groups[simGroup].Target, w.caughtUp)
	return w
}

func (w *simWorld) catalogNode(n *simNode) catalog.Node {
	return catalog.Node{Key: n.key, Name: n.key, ClusterAddr: n.addr, VersionMax: catalog.ClusterVersionMax, State: catalog.NodeActive}
}

func (w *simWorld) someKeys(view *catalog.View, count int) []string {
	var keys []string
	for _, i := range w.rng.Perm(len(w.nodes)) {
		if node, in := view.Nodes[w.nodes[i].key]; in && node.State == catalog.NodeActive && len(keys) < count {
			keys = append(keys, w.nodes[i].key)
		}
	}
	return keys
}

// run makes the given number of steps with faults, and then calls recover.
func (w *simWorld) run(steps int) {
	for ; w.step < steps && w.failure == nil; w.step++ {
		w.oneStep()
	}
	w.stats.steps += w.step
	if w.failure == nil {
		w.recover()
	}
}

func (w *simWorld) anyNode() int { return w.rng.IntN(len(w.nodes)) }

func (w *simWorld) anyLeader() *simRaft {
	from := w.anyNode()
	for i := range w.nodes {
		if r := w.nodes[(from+i)%len(w.nodes)].replica; r != nil && r.state == simLeader && !r.waits {
			return r
		}
	}
	return nil
}

// simCalls bounds the messages in flight. If there are more, most steps deliver a message.
const simCalls = 6

func (w *simWorld) oneStep() {
	if w.shape.full && w.rng.IntN(100) == 0 {
		w.fill(w.anyNode(), w.rng.IntN(3) == 0)
	}
	if w.shape.full && w.rng.IntN(8) == 0 {
		w.heartbeats(w.anyNode())
	}
	if w.shape.largeState {
		w.receive(w.anyNode())
	}
	if len(w.bag) > simCalls && w.rng.IntN(4) > 0 {
		w.deliver(w.take(w.rng.IntN(len(w.bag))))
		return
	}
	switch x := w.rng.IntN(1000); {
	case x < 400:
		if len(w.bag) > 0 {
			w.deliver(w.take(w.rng.IntN(len(w.bag))))
		}
	case x < 640:
		if r := w.anyLeader(); r != nil {
			w.leaderTick(r)
		} else {
			w.clock(w.anyNode())
		}
	case x < 680:
		if r := w.anyLeader(); r != nil {
			w.write(r)
		}
	case x < 692:
		w.clock(w.anyNode())
	case x < 720:
		if r := w.nodes[w.anyNode()].replica; r != nil {
			w.startRead(r)
		}
	case x < 770:
		w.reconcile(w.anyNode())
	case x < 840:
		if r := w.anyLeader(); r != nil {
			w.reconcile(r.disk.node)
		}
	case x < 910:
		w.learn(w.anyNode())
	case x < 940:
		if len(w.sent) > 0 {
			i := w.rng.IntN(len(w.sent))
			c := w.sent[i]
			w.sent = slices.Delete(w.sent, i, i+1)
			w.change(c)
		}
	case x < 946:
		w.place()
	case x < 954:
		if r := w.nodes[w.anyNode()].replica; r != nil {
			w.stats.snapshots++
			r.takeSnapshot(w.trailing)
		}
	case x < 960:
		w.network()
	case x < 967:
		w.power(w.anyNode())
	case x < 968:
		if r := w.anyLeader(); r != nil && r.ready() && r.lead.transferTo == "" && len(r.lead.repl) > 0 {
			if f := r.lead.repl[w.rng.IntN(len(r.lead.repl))]; simHasVote(r.latest, f.id) {
				w.transfer(r, f.id)
			}
		}
	case x < 969:
		w.reopen(w.anyNode(), w.anyNode())
	case x < 970:
		if r := w.anyLeader(); r != nil { // the leader's lease has expired
			r.setState(simFollower)
		}
	case x < 972:
		w.administer()
	case x < 976:
		// The disk of a leader hangs, so the leader makes a voter campaign, even if the voter lacks
		// entries. A third replica may time out at the same moment.
		if r := w.anyLeader(); r != nil && len(r.lead.repl) > 0 {
			if f := r.lead.repl[w.rng.IntN(len(r.lead.repl))]; simHasVote(r.latest, f.id) {
				w.send(r, raft.Server{ID: f.id}, simMsg{kind: simTimeoutNow})
				w.clock(w.anyNode())
			}
		}
	}
}

// fill makes the disk of a node full, or frees space on it. With free space, a waiting replica
// continues.
func (w *simWorld) fill(at int, full bool) {
	n := &w.nodes[at]
	if n.full == full || n.lost {
		return
	}
	w.note("the disk of %s is full: %v", n.key, full)
	n.full = full
	if full {
		w.stats.fills++
	} else if r := n.replica; r != nil && r.waits {
		r.waits, r.former = false, nil
		w.stats.waits++
		if conf := r.unstored; conf != nil {
			r.unstored = nil
			r.configure(conf)
		}
	}
}

// heal frees space on all disks except one. The node of that disk is one without which the group
// still has majorities.
func (w *simWorld) heal() {
	kept := false
	for i := range w.nodes {
		if !kept && w.nodes[i].full && w.survives(i) {
			kept = true
			continue
		}
		w.fill(i, false)
	}
}

// shed makes a leader whose disk is full hand the group over or write an entry.
func (w *simWorld) shed(r *simRaft) {
	if f := r.lead.repl; len(f) > 0 && w.rng.IntN(2) == 0 {
		w.transfer(r, f[w.rng.IntN(len(f))].id)
		return
	}
	w.write(r)
}

// heartbeats sends a heartbeat of a former leader whose main loop waits for its disk, because the
// leader's replication still runs.
func (w *simWorld) heartbeats(at int) {
	r := w.nodes[at].replica
	if r == nil || !r.waits || r.former == nil || w.rules.leadersAlone || len(r.former.repl) == 0 {
		return
	}
	f := r.former.repl[w.rng.IntN(len(r.former.repl))]
	w.send(r, raft.Server{ID: f.id}, simMsg{kind: simHeartbeat, term: r.former.term})
}

// clock makes the election timeout of a node expire.
func (w *simWorld) clock(at int) {
	r := w.nodes[at].replica
	switch {
	case r == nil || r.waits || r.receives != nil:
		return
	}
	r.former = nil
	switch {
	case r.state == simFollower:
		r.heartbeatTimeout()
	case r.state == simCandidate:
		r.fromTransfer = false
		r.runCandidate()
	}
}

// leaderTick makes a leader do one of the tasks of its goroutines.
func (w *simWorld) leaderTick(r *simRaft) {
	l := r.lead
	r.changeMembers()
	if r.lead != l {
		return
	}
	if len(l.departing) > 0 && w.rng.IntN(4) == 0 {
		f := l.departing[0]
		switch {
		case f.calling == 0 && f.next <= f.upTo && w.rng.IntN(4) > 0:
			r.replicate(f, raft.Server{ID: f.id})
		default:
			l.departing = l.departing[1:]
		}
		return
	}
	if len(l.repl) == 0 {
		return
	}
	f := l.repl[w.rng.IntN(len(l.repl))]
	if w.rng.IntN(10) == 0 {
		w.send(r, raft.Server{ID: f.id}, simMsg{kind: simHeartbeat, term: l.term})
		return
	}
	if f.calling != 0 {
		if w.rng.IntN(12) == 0 && !w.receives(f) {
			f.calling = 0 // the call timed out, but may still arrive
		}
		return
	}
	if l.transferTo != "" && w.rng.IntN(6) == 0 {
		l.transferTo = "" // the leader stops waiting for the transfer
	}
	if f.id == l.transferTo && f.next > max(r.lastLog, r.disk.snap.index) {
		w.send(r, raft.Server{ID: f.id}, simMsg{kind: simTimeoutNow})
		return
	}
	r.replicate(f, raft.Server{ID: f.id})
}

func (w *simWorld) write(r *simRaft) {
	if r.lead.transferTo == "" && !r.lead.stepDown {
		r.dispatch(simEntry{})
	}
}

// learn gives a node a newer view of the catalog.
func (w *simWorld) learn(at int) {
	n := &w.nodes[at]
	if !n.up || n.view == len(w.views)-1 {
		return
	}
	n.view += 1 + w.rng.IntN(len(w.views)-1-n.view)
	if w.rng.IntN(3) == 0 && !w.shape.restarts {
		n.kept = n.view
	}
	w.follow(at)
}

// place changes the target of the group. Mostly it replaces one voter, often by the one that it
// replaced last.
func (w *simWorld) place() {
	view := w.views[len(w.views)-1]
	target := view.Groups[simGroup].Target
	next := slices.Clone(target)
	for _, key := range w.someKeys(view, len(w.nodes)) {
		if !slices.Contains(next, key) {
			next[w.rng.IntN(len(next))] = key
			break
		}
	}
	least := 1
	if w.shape.wipes || w.shape.small || w.shape.full {
		least = 3
	}
	switch x := w.rng.IntN(16); {
	case x == 0:
		if len(next) > least {
			next = next[:len(next)-1]
		}
	case x < 3:
		for _, key := range w.someKeys(view, len(w.nodes)) {
			if len(next) < 3 && !slices.Contains(next, key) && !w.shape.single {
				next = append(next, key)
				if len(target) > 1 || w.rng.IntN(2) == 0 { // a group of one may grow to three at once
					break
				}
			}
		}
	case x < 10 && w.placed != nil && !slices.ContainsFunc(w.placed, func(key string) bool { return view.Nodes[key].State != catalog.NodeActive }):
		next = w.placed
	}
	if !slices.Equal(next, target) {
		w.stats.moves++
		w.placed = target
		w.change(&catalog.Command{Place: &catalog.PlaceEntry{Group: simGroup, Target: next, Was: target}})
	}
}

func (w *simWorld) network() {
	a, b := w.anyNode(), w.anyNode()
	if r := w.anyLeader(); r != nil && w.rng.IntN(2) == 0 {
		a = r.disk.node
	}
	switch w.rng.IntN(8) {
	case 0, 1: // one node alone
		w.note("%s is cut off", w.nodes[a].key)
		for i := range w.nodes {
			w.cut[a][i], w.cut[i][a] = i != a, i != a
		}
	case 2:
		w.note("%s and %s are cut", w.nodes[a].key, w.nodes[b].key)
		w.cut[a][b], w.cut[b][a] = a != b, a != b
	case 3:
		w.note("all cuts heal")
		w.cut = [simNodesMax][simNodesMax]bool{}
	default:
		w.note("%s is connected", w.nodes[a].key)
		for i := range w.nodes {
			w.cut[a][i], w.cut[i][a] = false, false
		}
	}
}

func (w *simWorld) power(at int) {
	n := &w.nodes[at]
	switch {
	case n.lost:
	case w.shape.wipes && w.rng.IntN(6) == 0:
		w.wipe(at)
	case n.up && (w.rng.IntN(5) == 0 || w.shape.restarts):
		w.crash(at)
	case !n.up:
		w.restart(at)
	}
}

func (w *simWorld) administer() {
	view := w.views[len(w.views)-1]
	if w.rng.IntN(4) == 0 && !w.shape.small {
		everywhere := view.EveryNode(simGroup)
		w.change(&catalog.Command{SetEverywhere: &catalog.SetEverywhereEntry{Keyspace: "k", Everywhere: !everywhere}})
	}
}

// survives reports whether the group still has majorities without the given node. This must hold
// for the committed configuration and for each later one in a log or in a call in flight. Otherwise
// a replica with the later configuration could block every election: it cannot be elected itself,
// and it does not vote for a replica with a shorter log.
func (w *simWorld) survives(without int) bool {
	left := func(conf []raft.Server) bool {
		there := 0
		for _, s := range conf {
			at := w.nameOf(s.ID).node
			if s.Suffrage == raft.Voter && at != without && !w.nodes[at].lost {
				there++
			}
		}
		return there >= simQuorum(conf)
	}
	for i := range w.nodes {
		d := w.nodes[i].disk
		if i == without || d == nil {
			continue
		}
		for j, e := range d.log {
			if e.conf != nil && d.first+uint64(j) >= w.confAt && !left(e.conf) {
				return false
			}
		}
	}
	for _, m := range w.bag {
		for j, e := range m.entries {
			if e.conf != nil && m.first+uint64(j) > w.confAt && !left(e.conf) {
				return false
			}
		}
	}
	return w.confAt > 0 && left(w.conf)
}

// wipe loses a node for ever. A new node gets its address and its place in the target.
func (w *simWorld) wipe(at int) {
	n := &w.nodes[at]
	if len(w.nodes) == simNodesMax || n.lost || !w.survives(at) {
		return
	}
	w.stats.wipes++
	if n.up {
		w.crash(at)
	}
	n.lost, n.full, n.disk = true, false, nil
	next := simNode{key: string(rune('A' + len(w.nodes))), addr: n.addr, up: true, deleted: -1, view: len(w.views) - 1}
	next.kept = next.view
	w.note("%s is lost, %s has its address", n.key, next.key)
	old := n.key
	w.nodes = append(w.nodes, next)
	node := w.catalogNode(&next)
	node.Name = w.views[len(w.views)-1].Nodes[old].Name
	w.change(&catalog.Command{PutNode: &catalog.PutNodeEntry{Node: node, Replaces: old}})
	view := w.views[len(w.views)-1]
	target := view.Groups[simGroup].Target
	if i := slices.Index(target, old); i >= 0 {
		to := slices.Clone(target)
		to[i] = next.key
		w.change(&catalog.Command{Place: &catalog.PlaceEntry{Group: simGroup, Target: to, Was: target}})
	}
}

// simRoundsMax bounds the rounds that a group may take to recover after the last fault.
const simRoundsMax = 1500

// recover stops all faults. Then it runs all nodes in rounds until recovered returns true.
func (w *simWorld) recover() {
	w.calm = true
	w.note("all is well from here on")
	w.cut = [simNodesMax][simNodesMax]bool{}
	for i := range w.nodes {
		if !w.nodes[i].up && !w.nodes[i].lost {
			w.restart(i)
		}
	}
	w.heal()
	for round := range simRoundsMax {
		w.step++
		if w.failure != nil {
			return
		}
		for range 60 {
			if len(w.bag) == 0 {
				break
			}
			w.deliver(w.take(w.rng.IntN(len(w.bag))))
		}
		for len(w.sent) > 0 {
			c := w.sent[0]
			w.sent = w.sent[1:]
			w.change(c)
		}
		led := false
		for i := range w.nodes {
			n := &w.nodes[i]
			if n.up && n.view < len(w.views)-1 {
				n.view = len(w.views) - 1
			}
			w.follow(i)
			w.reconcile(i)
			w.heartbeats(i)
			w.receive(i)
			if r := n.replica; r != nil && r.state == simLeader && !r.waits {
				led = w.leadCalmly(r) || led
				if n.full && r.lead != nil {
					w.shed(r)
				}
			}
		}
		if at := w.anyNode(); round%8 == 7 && (!led || w.nodes[at].replica != nil && w.nodes[at].replica.state == simCandidate) {
			w.clock(at)
		}
		if round%16 == 15 && w.recovered() {
			return
		}
	}
	w.fail(simWedged, "after %d rounds without faults:\n%s", simRoundsMax, w.describe())
}

// simLeaseRounds is the number of rounds after which a leader without a majority's answers steps
// down.
const simLeaseRounds = 20

// leadCalmly ticks a leader without faults. It reports whether the leader still leads.
func (w *simWorld) leadCalmly(r *simRaft) bool {
	l := r.lead
	heard := 0
	if simHasVote(r.latest, r.disk.id) {
		heard++
	}
	for range 3 * len(l.repl) {
		if r.lead != l {
			return false
		}
		w.leaderTick(r)
	}
	if r.lead != l {
		return false
	}
	r.changeMembers()
	if r.lead != l {
		return false
	}
	for _, f := range l.repl {
		if f.heard && simHasVote(r.latest, f.id) {
			heard++
		}
	}
	l.silent++
	if heard >= simQuorum(r.latest) {
		l.silent = 0
		for _, f := range l.repl {
			f.heard = false
		}
	} else if l.silent > simLeaseRounds {
		r.setState(simFollower)
		return false
	}
	return true
}

// recovered reports whether the group has one leader, all acknowledged entries, and the members
// that the catalog wants.
func (w *simWorld) recovered() bool {
	view := w.views[len(w.views)-1]
	p := view.Groups[simGroup]
	var lead *simRaft
	for i := range w.nodes {
		if r := w.nodes[i].replica; r != nil && r.ready() && !r.waits {
			if lead != nil {
				return false
			}
			lead = r
		}
	}
	if lead == nil || w.rules.numbers && !p.Numbered() || len(w.sent) > 0 {
		return false
	}
	for i := range w.nodes {
		if w.nodes[i].full { // a change of members may need this disk, so only the leader is checked
			return lead.lead.silent == 0 && lead.commit >= w.acked && !lead.full()
		}
	}
	target, others, known := wanted(view)
	if !known || lead.latestAt != lead.accAt {
		return false
	}
	for _, s := range lead.latest {
		wish := replica.Member{ID: s.ID, Addr: string(s.Address)}
		if s.Suffrage == raft.Voter && !slices.Contains(target, wish) || s.Suffrage != raft.Voter && !slices.Contains(others, wish) {
			return false
		}
	}
	for _, m := range slices.Concat(target, others) {
		n := &w.nodes[w.nameOf(m.ID).node]
		if n.lost {
			continue
		}
		if n.replica == nil || !n.replica.is(m.ID) || n.replica.applied < w.acked || !replica.Contains(lead.latest, m.ID) {
			return false
		}
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		if n.disk != nil && !slices.ContainsFunc(slices.Concat(target, others), func(m replica.Member) bool { return m.ID == n.disk.id }) {
			return false // a replica that the catalog does not want must be deleted
		}
	}
	if lead.lead.silent > 0 {
		return false
	}
	was := w.acked
	if lead.commit < was {
		w.fail(simIncomplete, "life %d leads a recovered group and has committed %d entries, %d were acknowledged", lead.disk.life, lead.commit, was)
	}
	return true
}
