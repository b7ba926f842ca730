package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// This file has the nodes, disks and groups of the model of growth.

// growID is the Raft id of a replica.
type growID struct{ node, number int }

// growConf is a configuration. It has only voters.
type growConf []growID

func (c growConf) has(id growID) bool { return slices.Contains(c, id) }

// growPlacement is the catalog's entry for a group.
type growPlacement struct {
	exists   bool
	initial  []int
	first    int // number of the replica on the first node of initial; the others follow
	target   []int
	numbers  map[int]int // by node
	next     int
	revision int
	begun    bool // for a child
	attempt  int  // for a parent: how often its growth was committed
	made     int  // growTruth.made
}

// growView is the state of the catalog after a command. Nobody changes a growView.
type growView struct {
	groups   []growPlacement
	intended bool
	dropped  bool
}

func (v *growView) clone() *growView {
	next := *v
	next.groups = slices.Clone(v.groups)
	return &next
}

// growSnap is a snapshot on disk. Nobody changes a growSnap.
type growSnap struct {
	index, term, confAt int
	conf                growConf
	shard               growShard
}

// growDisk is a replica on disk. first is the index of log[0].
type growDisk struct {
	group int
	id    growID
	made  int // growTruth.made of its group
	term  int
	first int
	log   []growEntry
	snap  *growSnap
	sets  growSets
	// damaged means that cold rows cannot be read. Split needs these rows, unless each child on
	// this node has a snapshot.
	damaged bool
}

func (d *growDisk) last() (index, term int) {
	if n := len(d.log); n > 0 {
		return d.first + n - 1, d.log[n-1].term
	}
	if d.snap != nil {
		return d.snap.index, d.snap.term
	}
	return 0, 0
}

func (d *growDisk) entry(index int) *growEntry {
	if index < d.first || index >= d.first+len(d.log) {
		return nil
	}
	return &d.log[index-d.first]
}

// termAt returns the term of an entry, and false if the log and the snapshot do not have it.
func (d *growDisk) termAt(index int) (int, bool) {
	switch e := d.entry(index); {
	case e != nil:
		return e.term, true
	case d.snap != nil && d.snap.index == index:
		return d.snap.term, true
	}
	return 0, index == 0
}

// growReplica is an open replica.
type growReplica struct {
	d               *growDisk
	shard           growShard
	applied, commit int
	stuck           bool
	waited          int // how often Adopt has waited for the part
	conf            growConf
	confAt          int

	leads     bool
	term      int // that it leads
	start     int // index of its first entry as leader
	match     map[growID]int
	next      map[growID]int
	proposed  int           // index of the Split or Adopt that the replica proposed in this term
	queued    *growEntry    // a Split in raft's queue, perhaps of an earlier term; nil for none
	dirty     [growIDs]bool // rows that changed since the children were prepared
	preparing bool

	late    [growIDs]uint8 // changes that were not added to the hot lists yet
	spilled [growIDs]bool  // rows whose body is a record of this process
	gone    *bool          // whether the records were removed
	hung    growConf       // a configuration that raft accepted but the disk has not stored; nil for none
}

// state returns the state of the shard, with the waiting changes in its hot lists.
func (r *growReplica) state() growShard {
	s, late := r.shard, r.late
	s.add(&late)
	return s
}

// ready reports whether a leader has applied all entries of earlier terms.
func (r *growReplica) ready() bool { return r.leads && !r.stuck && r.applied >= r.start }

// member reports whether a replica knows that it is a member. In raft, a joining replica is first a
// member without a vote. The model has no such members: a replica with any configuration counts as
// a member.
func (r *growReplica) member() bool { return r.conf != nil }

// findConf sets conf to the newest configuration in the log or snapshot.
func (r *growReplica) findConf() {
	r.conf, r.confAt = nil, 0
	for i := len(r.d.log) - 1; i >= 0; i-- {
		if e := &r.d.log[i]; e.kind == growConfEntry {
			r.conf, r.confAt = e.conf, r.d.first+i
			return
		}
	}
	if r.d.snap != nil {
		r.conf, r.confAt = r.d.snap.conf, r.d.snap.confAt
	}
}

type growNode struct {
	up, lost    bool
	view, saved int // indexes in views: the catalog that the node knows, and the one on its disk
	disk        []*growDisk
	run         []*growReplica
	deleted     []int              // by group: the highest number of a deleted replica
	prepared    map[int]*growShard // by child: the prepared rows on disk
	parked      map[int]*growPart  // by child
	knows       []bool             // by parent: whether the node has learned that the parent has split
}

type growMsgKind uint8

const (
	growAppendMsg growMsgKind = iota
	growInstallMsg
	growSectionMsg
	growAnswerMsg
	growCommandMsg
)

type growMsg struct {
	kind       growMsgKind
	group      int
	from, to   growID
	term       int
	prev       int
	prevTerm   int
	entries    []growEntry
	commit     int
	snap       *growSnap
	sets       growSets // with snap
	section    *growSection
	result     growResult
	index      int
	command    func(*growView) bool
	commandFor string
	once       bool // the message is not delivered twice
}

type growStats struct {
	Steps, Worlds, Entries, Splits, Adopts, Begun, Early, Acked, Reads, Crashes, Lost, Moved, Stuck, Repairs, Installs, Snapshots, Misrouted int
}

func (s *growStats) add(o *growStats) {
	s.Steps += o.Steps
	s.Worlds++
	s.Entries += o.Entries
	s.Splits += o.Splits
	s.Adopts += o.Adopts
	s.Begun += o.Begun
	s.Early += o.Early
	s.Acked += o.Acked
	s.Reads += o.Reads
	s.Crashes += o.Crashes
	s.Lost += o.Lost
	s.Moved += o.Moved
	s.Stuck += o.Stuck
	s.Repairs += o.Repairs
	s.Installs += o.Installs
	s.Snapshots += o.Snapshots
	s.Misrouted += o.Misrouted
}

type growFailure struct {
	fault growFault
	text  string
	step  int
}

// growTruth has the effect of a group's log. The first replica that applies an entry records its
// effect.
type growTruth struct {
	idents  []int   // by index
	digests []int64 // by index: digest of the state after the entry
	conf    growConf
	confAt  int
	shard   growShard // the state after the newest entry
	made    int       // how often the group was created; in the product, each creation gets a new group number
}

type growWorld struct {
	rng      *rand.Rand
	rules    growRule
	shape    growShape
	parents  int // N in GROWTH.md
	factor   int // k in GROWTH.md
	nodes    []growNode
	views    []*growView
	truth    []growTruth // by group
	lives    map[[3]int]int
	bag      []growMsg
	ident    int
	clock    int
	horizon  int   // horizon of keys, in ticks of log time
	ahead    []int // by group: its log time minus clock
	leaper   int   // the group whose log time jumps ahead, or -1
	leapt    bool
	trailing int  // number of entries that the log keeps before a snapshot's index
	slow     bool // the first snapshots of children, and of parents after Split, take long
	calm     bool // the faults have stopped
	step     int
	failure  *growFailure
	stats    growStats
	tracing  bool
	trace    []string

	growClients
}

func (w *growWorld) groups() int { return w.parents * w.factor }

// parentOf returns the parent of a child.
func (w *growWorld) parentOf(child int) int { return (child - w.parents) / (w.factor - 1) }

// childOf returns the group that gets part j of a parent. Part 0 stays in the parent.
func (w *growWorld) childOf(parent, j int) int {
	if j == 0 {
		return parent
	}
	return w.parents + parent*(w.factor-1) + j - 1
}

// routeOf returns the route of a group. For a parent, split says whether it has split.
func (w *growWorld) routeOf(group int, split bool) growRoute {
	switch {
	case group >= w.parents:
		p := w.parentOf(group)
		j := (group-w.parents)%(w.factor-1) + 1
		return growRoute{w.parents * w.factor, p + j*w.parents}
	case split:
		return growRoute{w.parents * w.factor, group}
	}
	return growRoute{w.parents, group}
}

func (w *growWorld) note(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%5d ", w.step)+fmt.Sprintf(format, args...))
	}
}

func (w *growWorld) fail(fault growFault, format string, args ...any) {
	if w.failure == nil {
		w.failure = &growFailure{fault, fmt.Sprintf(format, args...), w.step}
		w.note("FAILED: %s", w.failure.text)
	}
}

func (w *growWorld) chance(one int) bool { return w.rng.IntN(one) == 0 }

func (w *growWorld) view(node int) *growView { return w.views[w.nodes[node].view] }

func (w *growWorld) newest() *growView { return w.views[len(w.views)-1] }

// command applies a command to the catalog. The function change returns false if the catalog
// refuses the command.
func (w *growWorld) command(what string, change func(*growView) bool) {
	next := w.newest().clone()
	if next.dropped || !change(next) {
		return
	}
	for g := range next.groups {
		p := &next.groups[g]
		if !p.exists {
			continue
		}
		nodes := p.target
		for node := range w.nodes {
			if w.shape.all && !slices.Contains(nodes, node) {
				nodes = append(slices.Clone(nodes), node)
			}
		}
		for _, node := range nodes {
			if _, has := p.numbers[node]; !has {
				numbers := map[int]int{node: p.next}
				for n, number := range p.numbers {
					numbers[n] = number
				}
				p.numbers = numbers
				p.next++
			}
		}
	}
	w.note("catalog: %s", what)
	w.views = append(w.views, next)
}

func newGrowPlacement(nodes []int, first int) growPlacement {
	p := growPlacement{exists: true, initial: nodes, first: first, target: nodes, numbers: map[int]int{}, next: first}
	for _, n := range nodes {
		p.numbers[n] = p.next
		p.next++
	}
	return p
}

// children returns the groups of a parent's children.
func (w *growWorld) children(parent int) (all []int) {
	for j := 1; j < w.factor; j++ {
		all = append(all, w.childOf(parent, j))
	}
	return all
}

func (w *growWorld) allBegun(v *growView, parent int) bool {
	for _, c := range w.children(parent) {
		if !v.groups[c].begun {
			return false
		}
	}
	return true
}

// frozen reports whether the catalog refuses to change the target of a group.
func (w *growWorld) frozen(v *growView, group int) bool {
	parent := group
	if group >= w.parents {
		parent = w.parentOf(group)
	}
	return v.groups[w.childOf(parent, 1)].exists && !w.allBegun(v, parent)
}

// crash ends a node's process.
func (w *growWorld) crash(node int) {
	n := &w.nodes[node]
	if !n.up {
		return
	}
	w.stats.Crashes++
	w.note("node %d crashes", node)
	n.up = false
	clear(n.run)
	n.parked, n.knows = map[int]*growPart{}, make([]bool, w.parents)
	n.view = n.saved
	if w.rules.has(growVolatile) {
		n.prepared = map[int]*growShard{}
	}
}

// writes is called before each write to a disk. It returns false if the node crashes there.
func (w *growWorld) writes(node int) bool {
	if !w.nodes[node].up {
		return false
	}
	if !w.calm && w.chance(w.crashOdds()) {
		w.crash(node)
		return false
	}
	return true
}

func (w *growWorld) crashOdds() int {
	if w.shape.crashes {
		return 300
	}
	return 2000
}

func (w *growWorld) start(node int) {
	n := &w.nodes[node]
	if n.up || n.lost {
		return
	}
	n.up = true
	w.note("node %d starts with view %d", node, n.view)
	w.follow(node)
}

// open opens a replica from its disk.
func (w *growWorld) open(node, group int) {
	n := &w.nodes[node]
	d := n.disk[group]
	r := &growReplica{d: d, gone: new(bool)}
	if d.snap != nil {
		d.dropSuperseded()
		r.shard, r.applied, r.commit = d.snap.shard, d.snap.index, d.snap.index
	} else {
		r.shard = growShard{route: w.routeOf(group, false), unborn: group >= w.parents}
		if group >= w.parents && !w.rules.has(growHeld) {
			n.prepared[group] = &growShard{}
		}
		if group >= w.parents {
			d.sets = growSets{}
			if stage := w.staged(node, group); stage != nil && !w.rules.has(growStaged) {
				*stage = growSets{index: stage.index} // as if the members were staged under the child's own number
			}
		}
	}
	r.findConf()
	n.run[group] = r
}

// dropSuperseded is the model of the function with that name in package storage.
func (d *growDisk) dropSuperseded() {
	if len(d.log) == 0 {
		return
	}
	if last, _ := d.last(); last >= d.snap.index {
		if d.first > d.snap.index || d.entry(d.snap.index).term == d.snap.term {
			return
		}
	}
	d.log = nil
}

// follow opens the replicas that a node should hold according to its catalog.
func (w *growWorld) follow(node int) {
	n := &w.nodes[node]
	v := w.view(node)
	for g := range v.groups {
		p := &v.groups[g]
		if !n.up || !p.exists || n.run[g] != nil {
			continue
		}
		if v.dropped {
			continue
		}
		if d := n.disk[g]; d != nil && d.id.number >= p.first {
			if w.mayOpen(node, g) {
				w.open(node, g)
			}
			continue
		} else if d != nil {
			continue // wait until the old replica is deleted
		}
		number, has := p.numbers[node]
		if !has || number <= n.deleted[g] && w.rules.has(growNumbers) {
			continue
		}
		at := slices.Index(p.initial, node)
		first := at >= 0 && number == p.first+at
		if !first && !slices.Contains(p.target, node) && !w.shape.all || !w.mayOpen(node, g) {
			continue
		}
		w.begin(node, g, number, p)
	}
}

// mayOpen always returns true in the product. Without the rule growOpens, a child opens only if its
// part is parked or it has a snapshot.
func (w *growWorld) mayOpen(node, group int) bool {
	n := &w.nodes[node]
	return w.rules.has(growOpens) || group < w.parents || n.parked[group] != nil || n.disk[group] != nil && n.disk[group].snap != nil
}

// begin creates a replica.
func (w *growWorld) begin(node, group, number int, p *growPlacement) {
	n := &w.nodes[node]
	if !w.writes(node) {
		return
	}
	id := growID{node, number}
	life := [3]int{group, node, number}
	if w.lives[life]++; w.lives[life] > 1 {
		w.fail(growTwoLives, "replica %v of group %d begins again", id, group)
	}
	d := &growDisk{group: group, id: id, first: 1, made: p.made}
	n.disk[group] = d
	w.note("replica %v of group %d begins", id, group)
	var conf growConf
	for i, node := range p.initial {
		conf = append(conf, growID{node, p.first + i})
	}
	if conf.has(id) {
		if d.term = 1; !w.writes(node) {
			// The next start writes the entry. The model writes it here, because an empty replica
			// of term 1 behaves the same.
			d.log = []growEntry{{term: 1, ident: -1 - group, kind: growConfEntry, conf: conf}}
			return
		}
		d.log = []growEntry{{term: 1, ident: -1 - group, kind: growConfEntry, conf: conf}}
	}
	w.open(node, group)
}

// reach reports whether one node now answers a call of another.
func (w *growWorld) reach(from, to int) bool {
	return w.nodes[to].up && (from == to || w.calm || !w.chance(3))
}

// replica returns the open replica with an id, or nil.
func (w *growWorld) replica(group int, id growID) *growReplica {
	if r := w.nodes[id.node].run[group]; r != nil && r.d.id == id {
		return r
	}
	return nil
}

// proves reports whether a majority of voters confirms a leader.
func (w *growWorld) proves(r *growReplica) bool {
	agree := 0
	for _, id := range r.conf {
		if o := w.replica(r.d.group, id); o != nil && w.reach(r.d.id.node, id.node) && o.d.term <= r.term && o.member() {
			agree++
		}
	}
	return r.leads && 2*agree > len(r.conf)
}

// leader returns a ready leader of a group that a majority confirms, or nil.
func (w *growWorld) leader(group int) *growReplica {
	from := w.rng.IntN(len(w.nodes))
	for i := range w.nodes {
		if r := w.nodes[(from+i)%len(w.nodes)].run[group]; r != nil && r.ready() && r.d.made == w.truth[group].made && w.proves(r) {
			return r
		}
	}
	return nil
}

// believes returns a replica that believes that it leads, or nil.
func (w *growWorld) believes(group int) *growReplica {
	from := w.rng.IntN(len(w.nodes))
	for i := range w.nodes {
		if r := w.nodes[(from+i)%len(w.nodes)].run[group]; r != nil && r.leads && r.d.made == w.truth[group].made {
			return r
		}
	}
	return nil
}

// elect makes a replica campaign once.
func (w *growWorld) elect(r *growReplica) {
	d := r.d
	if !r.conf.has(d.id) || r.leads {
		return
	}
	term := d.term + 1
	for _, id := range r.conf { // a voter refuses a lower term than its own
		if o := w.replica(d.group, id); o != nil && w.reach(d.id.node, id.node) {
			term = max(term, o.d.term+1)
		}
	}
	lastIndex, lastTerm := d.last()
	var voters []*growReplica
	for _, id := range r.conf {
		o := w.replica(d.group, id)
		if o == nil || !w.reach(d.id.node, id.node) || !o.member() || o.d.term >= term {
			continue
		}
		if i, t := o.d.last(); t > lastTerm || t == lastTerm && i > lastIndex {
			continue
		}
		voters = append(voters, o)
	}
	if 2*len(voters) <= len(r.conf) {
		return
	}
	for _, o := range voters {
		o.d.term = term
		o.leads = false
	}
	r.leads, r.term, r.match, r.next, r.proposed, r.hung = true, term, map[growID]int{}, map[growID]int{}, 0, nil
	r.start = lastIndex + 1
	w.note("%v leads group %d in term %d", d.id, d.group, term)
	w.append(r, growEntry{kind: growNoop})
}

// append makes a leader append an entry. It returns the entry's index, or 0 if the node crashes.
func (w *growWorld) append(r *growReplica, e growEntry) int {
	if conf := r.hung; conf != nil {
		r.hung = nil
		w.append(r, growEntry{kind: growConfEntry, conf: conf})
	}
	if !w.writes(r.d.id.node) {
		return 0
	}
	w.ident++
	e.term, e.ident, e.time = r.term, w.ident, w.clock+w.ahead[r.d.group]
	index, _ := r.d.last()
	index++
	w.store(r.d, index, e)
	if e.kind == growConfEntry {
		r.findConf()
	}
	w.count(r)
	return index
}

func (w *growWorld) store(d *growDisk, index int, e growEntry) {
	if len(d.log) == 0 {
		d.first = index
	}
	if index != d.first+len(d.log) {
		w.fail(growDamage, "%v of group %d stores entry %d behind %d", d.id, d.group, index, d.first+len(d.log)-1)
		return
	}
	d.log = append(d.log[:len(d.log):len(d.log)], e)
}

// count raises the commit index of a leader.
func (w *growWorld) count(r *growReplica) {
	last, _ := r.d.last()
	indexes := make([]int, 0, 8)
	for _, id := range r.conf {
		if id == r.d.id {
			indexes = append(indexes, last)
		} else {
			indexes = append(indexes, r.match[id])
		}
	}
	slices.Sort(indexes)
	if len(indexes) == 0 {
		return
	}
	if index := indexes[(len(indexes)-1)/2]; index > r.commit && index >= r.start {
		r.commit = index
	}
}

// replicate makes a leader send entries or a snapshot to a replica.
func (w *growWorld) replicate(r *growReplica, to growID) {
	d := r.d
	last, _ := d.last()
	next := r.next[to]
	if next == 0 {
		next = last + 1
	}
	m := growMsg{kind: growAppendMsg, group: d.group, from: d.id, to: to, term: r.term, prev: next - 1, commit: r.commit}
	var known bool
	if m.prevTerm, known = d.termAt(next - 1); !known || next <= last && d.entry(next) == nil {
		if d.snap == nil {
			w.fail(growDamage, "%v of group %d has neither entry %d nor a snapshot", d.id, d.group, next)
			return
		}
		m.kind, m.snap, m.sets = growInstallMsg, d.snap, w.carried(r)
		w.send(m)
		return
	}
	upTo := last
	if !r.conf.has(to) {
		upTo = r.commit
	}
	for i := next; i <= min(upTo, next+3); i++ {
		m.entries = append(m.entries, *d.entry(i))
	}
	w.send(m)
}

const growBagMax = 80

func (w *growWorld) send(m growMsg) {
	if len(w.bag) < growBagMax {
		w.bag = append(w.bag, m)
	}
}

// deliverAppend is AppendEntries.
func (w *growWorld) deliverAppend(m *growMsg) {
	f := w.replica(m.group, m.to)
	if f == nil {
		return
	}
	l := w.replica(m.group, m.from)
	if l != nil && (!l.leads || l.term != m.term) || !w.calm && w.chance(8) {
		l = nil // the leader gets no answer, or has stopped leading
	}
	d := f.d
	if m.term < d.term {
		if l != nil {
			l.leads = false
			l.d.term = max(l.d.term, d.term)
		}
		return
	}
	if m.term > d.term || f.leads {
		if m.term == d.term && f.leads {
			w.fail(growDamage, "two leaders of group %d in term %d", m.group, m.term)
			return
		}
		if !w.writes(d.id.node) {
			return
		}
		d.term, f.leads = m.term, false
	}
	last, _ := d.last()
	if m.kind == growInstallMsg {
		w.install(f, m.snap, &m.sets)
		if l != nil {
			l.match[m.to] = max(l.match[m.to], m.snap.index)
			l.next[m.to] = max(l.next[m.to], m.snap.index+1)
			w.count(l)
		}
		return
	}
	base := 0
	if d.snap != nil {
		base = d.snap.index
	}
	if m.prev > base || len(d.log) > 0 && m.prev >= d.first {
		if term, known := d.termAt(m.prev); !known || term != m.prevTerm {
			if l != nil {
				l.next[m.to] = max(1, min(m.prev, last+1))
			}
			return
		}
	}
	for i := range m.entries {
		index := m.prev + 1 + i
		if index <= f.applied || index <= base {
			continue
		}
		if e := d.entry(index); e != nil {
			if e.term == m.entries[i].term {
				continue
			}
			if !w.writes(d.id.node) {
				return
			}
			d.log = slices.Clone(d.log[:index-d.first])
		}
		if !w.writes(d.id.node) {
			return
		}
		if n, _ := d.last(); n != index-1 {
			return // a late message from before an installed snapshot
		}
		w.store(d, index, m.entries[i])
	}
	f.findConf()
	f.commit = max(f.commit, min(m.commit, m.prev+len(m.entries)))
	if l != nil {
		match := m.prev + len(m.entries)
		l.match[m.to] = max(l.match[m.to], match)
		l.next[m.to] = max(l.next[m.to], match+1)
		w.count(l)
	}
}

// install is InstallSnapshot, after the checks of rpcFilter.
func (w *growWorld) install(f *growReplica, snap *growSnap, sets *growSets) {
	d := f.d
	if term, known := d.termAt(snap.index); snap.index <= f.applied || known && term == snap.term {
		return
	}
	if !w.writes(d.id.node) {
		return
	}
	w.stats.Installs++
	d.snap, d.sets = snap, sets.clone()
	if !w.writes(d.id.node) {
		return // the next start deletes the log
	}
	d.log = nil
	f.shard, f.applied, f.commit, f.stuck = snap.shard, snap.index, max(f.commit, snap.index), false
	*f.gone, f.gone, f.late, d.damaged = true, new(bool), [growIDs]uint8{}, false
	f.preparing = f.preparing && !w.rules.has(growVolatile)
	f.findConf()
}

// carried returns the sets that a replica sends with its snapshot.
func (w *growWorld) carried(r *growReplica) growSets {
	sets := r.d.sets.clone()
	if !w.rules.has(growCarries) {
		sets.staged = nil
	}
	return sets
}

// takeSnapshot makes a replica take a snapshot. sent means that another node needs the snapshot.
func (w *growWorld) takeSnapshot(r *growReplica, sent bool) {
	d := r.d
	node, group := d.id.node, d.group
	if r.stuck || r.applied == 0 || d.snap != nil && d.snap.index >= r.applied {
		return
	}
	if r.shard.unborn && w.rules.has(growUnsaved) {
		return
	}
	if first := group >= w.parents && d.snap == nil || r.shard.splitAt > 0 && d.snap != nil && d.snap.index < r.shard.splitAt; first && w.slow && !sent && !w.calm && !w.chance(25) {
		return
	}
	if r.shard.splitAt > 0 && !w.allBegun(w.view(node), group) {
		if bar := growBar; w.rules.has(bar) && !(sent && !w.rules.has(growBarSent)) {
			return
		}
	}
	conf, confAt := growConf(nil), 0
	if d.snap != nil {
		conf, confAt = d.snap.conf, d.snap.confAt
	}
	for i := range d.log {
		if e := &d.log[i]; e.kind == growConfEntry && d.first+i <= r.applied {
			conf, confAt = e.conf, d.first+i
		}
	}
	term, _ := d.termAt(r.applied)
	r.shard.add(&r.late)
	snap := &growSnap{r.applied, term, confAt, conf, r.shard}
	if !w.writes(node) {
		if !w.rules.has(growWhole) { // the next start uses the unfinished file
			part := *snap
			part.shard.rows[w.rng.IntN(growIDs)] = growSet{}
			d.snap = &part
		}
		return
	}
	first := d.snap == nil
	d.snap = snap
	w.stats.Snapshots++
	if group >= w.parents {
		delete(w.nodes[node].parked, group)
	} else if r.shard.splitAt > 0 {
		d.sets.staged = nil
	}
	if !w.writes(node) {
		return
	}
	cut := snap.index - w.trailing
	if first && group >= w.parents && !w.chance(2) {
		for i := range d.log {
			if d.log[i].kind == growAdoptEntry && d.first+i <= snap.index {
				cut = max(cut, d.first+i)
			}
		}
	}
	if n := cut - d.first + 1; n > 0 && n <= len(d.log) {
		d.log = slices.Clone(d.log[n:])
		d.first = cut + 1
	}
}

// reopen closes a replica and opens it again.
func (w *growWorld) reopen(node, group int) {
	n := &w.nodes[node]
	if n.disk[group] == nil || n.run[group] == nil {
		return
	}
	*n.run[group].gone = true
	n.run[group] = nil
	w.open(node, group)
	if group >= w.parents && n.disk[group].snap == nil && n.parked[group] == nil && w.rules.has(growReplays) {
		if p := w.parentOf(group); n.run[p] != nil {
			w.reopen(node, p)
		}
	}
}

// repair replaces the state of a replica by the snapshot of another, like Snapshotter.Receive.
func (w *growWorld) repair(node, group int) {
	n := &w.nodes[node]
	r := n.run[group]
	if r == nil || r.leads {
		return
	}
	for _, i := range w.rng.Perm(len(w.nodes)) {
		o := w.nodes[i].run[group]
		if i == node || o == nil || o.stuck || o.d.damaged || !w.reach(node, i) {
			continue
		}
		own := 0
		if r.d.snap != nil {
			own = r.d.snap.index
		}
		if o.d.snap == nil || o.d.snap.index < own || w.chance(2) {
			w.takeSnapshot(o, true)
		}
		if !w.nodes[i].up || o.d.snap == nil || o.d.snap.index < own || o.d.snap.term > r.d.term {
			continue
		}
		if !w.writes(node) {
			return
		}
		w.stats.Repairs++
		r.d.snap, r.d.sets, r.d.damaged = o.d.snap, w.carried(o), false
		w.reopen(node, group)
		return
	}
}

// apply applies the next committed entry of a replica. It returns false if there is none, or if the
// replica cannot apply the entry.
func (w *growWorld) apply(r *growReplica) bool {
	last, _ := r.d.last()
	if r.stuck || r.applied >= min(r.commit, last) {
		return false
	}
	index := r.applied + 1
	e := r.d.entry(index)
	if e == nil {
		w.fail(growDamage, "%v of group %d has no entry %d to apply", r.d.id, r.d.group, index)
		return false
	}
	var result growResult
	switch e.kind {
	case growSectionEntry:
		was := r.shard.rows
		result = w.applySection(&r.shard, &r.d.sets, e, index)
		for id := range growIDs {
			if r.shard.rows[id] != was[id] {
				r.dirty[id], r.spilled[id] = true, false
				r.late[id]++
			}
		}
		if w.chance(2) {
			r.shard.add(&r.late)
		}
	case growSplitEntry:
		if !w.mayRead(r) {
			r.stuck = true
			w.note("%v of group %d is stuck at Split", r.d.id, r.d.group)
			return false
		}
		w.split(r, e, index)
	case growAdoptEntry:
		if !w.adopt(r, e) {
			return false
		}
	case growAbandonEntry:
		if r.shard.splitAt == 0 || !w.rules.has(growFirstWins) {
			r.shard.abandoned = max(r.shard.abandoned, e.attempt)
		}
	}
	r.applied = index
	w.check(r, e, index, result)
	if e.kind == growSectionEntry && r.leads && r.term == e.term {
		w.answer(r, e, index, result)
	}
	return true
}

// split applies Split.
func (w *growWorld) split(r *growReplica, e *growEntry, index int) {
	node, group := r.d.id.node, r.d.group
	n := &w.nodes[node]
	if w.rules.has(growAdded) {
		r.shard.add(&r.late)
	}
	parts := w.applySplit(&r.shard, e, index, func(j, id int) (growSet, bool) {
		p := n.prepared[w.childOf(group, j)]
		if p == nil || r.preparing && r.dirty[id] || !r.preparing && w.rules.has(growVolatile) {
			return growSet{}, false
		}
		return p.rows[id], true
	})
	if parts == nil {
		return
	}
	w.stats.Splits++
	if r.shard.route.mod > w.groups() {
		w.fail(growLost, "group %d has split twice: its modulus is %d", group, r.shard.route.mod)
	}
	n.knows[group] = true
	if r.leads && !w.calm && w.chance(2) {
		w.bag = slices.DeleteFunc(w.bag, func(m growMsg) bool { return m.kind == growAnswerMsg })
	}
	// One batch stages the members of the parts and removes them from P's sets. A replay finds them
	// staged.
	if sets := &r.d.sets; index > sets.index {
		staged := map[int]*growSets{}
		for j, part := range parts {
			stage := growSets{index: index}
			for id := range growIDs {
				if id%part.shard.route.mod == part.shard.route.res {
					stage.rows[id] = sets.rows[id]
					sets.rows[id] = growSet{}
				}
			}
			staged[w.childOf(group, j+1)] = &stage
		}
		sets.note(index, nil)
		sets.staged = staged
	}
	w.note("%v of group %d splits at %d", r.d.id, group, index)
	for j, part := range parts {
		c := w.childOf(group, j+1)
		v := w.view(node)
		switch p := &v.groups[c]; {
		case n.disk[c] != nil && n.disk[c].snap != nil:
		case p.exists && n.disk[c] == nil && !slices.Contains(p.target, node) && !slices.Contains(p.initial, node):
		default:
			if !w.rules.has(growReadsBack) {
				part.marked, part.gone = r.spilled, r.gone
			}
			n.parked[c] = &part
		}
		if p := &w.newest().groups[c]; !w.rules.has(growOpensNone) && n.disk[c] == nil && p.exists {
			if at := slices.Index(p.initial, node); at >= 0 {
				w.begin(node, c, p.first+at, p)
			}
		}
	}
}

// mayRead reports whether a replica of P can read the rows that Split must copy.
func (w *growWorld) mayRead(r *growReplica) bool {
	if !r.d.damaged {
		return true
	}
	for _, c := range w.children(r.d.group) {
		if d := w.nodes[r.d.id.node].disk[c]; d == nil || d.snap == nil {
			return false
		}
	}
	return true
}

// damage makes cold rows of a parent unreadable on one node. With a single node, the replica cannot
// be repaired from another, so damage does nothing once Split is in the log.
func (w *growWorld) damage() {
	node, group := w.anyNode(), w.rng.IntN(w.parents)
	d := w.nodes[node].disk[group]
	for i := range w.nodes {
		if o := w.nodes[i].disk[group]; o != nil && o.damaged {
			return
		}
	}
	if d == nil || w.shape.alone && slices.ContainsFunc(d.log, func(e growEntry) bool { return e.kind == growSplitEntry }) {
		return
	}
	d.damaged = true
	w.note("cold rows of %v of group %d are damaged", d.id, group)
}

// staged returns the members of the part of a child on a node, or nil.
func (w *growWorld) staged(node, child int) *growSets {
	if d := w.nodes[node].disk[w.parentOf(child)]; d != nil {
		return d.sets.staged[child]
	}
	return nil
}

// adopt applies Adopt. It returns false while the part is not parked on the node.
func (w *growWorld) adopt(r *growReplica, e *growEntry) bool {
	n := &w.nodes[r.d.id.node]
	group := r.d.group
	if !r.shard.unborn && w.rules.has(growAdoptOnce) {
		return true
	}
	part := n.parked[group]
	stage := w.staged(r.d.id.node, group)
	if part == nil || part.split != e.split || stage == nil {
		if !r.shard.unborn {
			return true
		}
		if !w.rules.has(growLogged) && r.d.first == 1 && !r.leads {
			return true // as if bootstrap had written the part
		}
		if r.waited++; r.waited > 3 {
			r.stuck = true
			w.stats.Stuck++
			w.note("%v of group %d is stuck at Adopt", r.d.id, group)
		}
		return false
	}
	if part.gone != nil && *part.gone {
		for id := range growIDs {
			if part.marked[id] {
				part.shard.rows[id] = growSet{}
			}
		}
	}
	if sum := part.shard.digest(); sum != e.sum {
		w.fail(growDiffers, "%v of group %d gets a part that differs from the leader's", r.d.id, group)
	}
	r.d.sets = growSets{rows: stage.rows}
	if r.d.sets.note(r.applied+1, nil); !w.rules.has(growSetsIndex) {
		r.d.sets.index = stage.index + 100
	}
	r.shard = part.shard
	delete(n.parked, group)
	w.stats.Adopts++
	w.note("%v of group %d adopts", r.d.id, group)
	return true
}

// check compares a replica that has applied an entry with the first replica that applied it.
func (w *growWorld) check(r *growReplica, e *growEntry, index int, result growResult) {
	t := &w.truth[r.d.group]
	if r.d.made != t.made { // the replica belongs to an abandoned growth
		if !r.shard.unborn {
			w.fail(growTwice, "group %d of an abandoned growth has adopted", r.d.group)
		}
		return
	}
	state := r.state()
	sum := state.digest()
	if index < len(t.idents) {
		if t.idents[index] != e.ident {
			w.fail(growDiffers, "two entries at %d of group %d: %+v of %v made %d, truth %v", index, r.d.group, *e, r.d.id, r.d.made, t.idents)
		} else if t.digests[index] != sum {
			w.fail(growDiffers, "%v differs at %d of group %d: %+v, %+v", r.d.id, index, r.d.group, r.shard, t.shard)
		}
		return
	}
	if index != len(t.idents) {
		w.fail(growDamage, "%v applies %d of group %d, the first behind %d", r.d.id, index, r.d.group, len(t.idents)-1)
		return
	}
	if sets := &r.d.sets; sets.index == index || e.kind != growSectionEntry {
		for id := range growIDs {
			if sets.index <= index && sets.rows[id] != r.shard.rows[id] {
				w.fail(growDiffers, "%v of group %d at %d has other members than rows of %d", r.d.id, r.d.group, index, id)
			}
		}
	}
	w.stats.Entries++
	t.idents, t.digests, t.shard = append(t.idents, e.ident), append(t.digests, sum), state
	if e.kind == growConfEntry {
		t.conf, t.confAt = e.conf, index
	}
	if w.shape.queues && e.kind == growSplitEntry && t.shard.splitAt == index {
		w.together(r.d.group, t.conf)
	}
	if e.kind == growSectionEntry {
		if c := e.section; w.tracing {
			n := -1
			if c.req != nil {
				n = c.req.n
			}
			w.note("group %d at %d applies mode %d of request %d key %d judge %d met %d route %v ops %v: %+v now %d", r.d.group, index, c.mode, n, c.key, c.judges[0], c.met, c.route, c.ops, result, r.shard.mem.now)
		}
		w.applied(r.d.group, e, result)
	}
}

// together checks that a Split has an effect only if each voter of the parent has a first voter of the children beside
// it, on which the proof of G1 depends. A loss of rows follows only from several such voters, and is too rare for a test.
func (w *growWorld) together(parent int, voters growConf) {
	initial := w.newest().groups[w.childOf(parent, 1)].initial
	for _, id := range voters {
		if !slices.Contains(initial, id.node) {
			w.fail(growApart, "group %d splits with the voters %v, the first voters of its children are on %v", parent, voters, initial)
		}
	}
}
