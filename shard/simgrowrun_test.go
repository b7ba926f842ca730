package shard

import (
	"math/rand/v2"
	"slices"
)

func newGrowWorld(seed uint64, rules growRule, shape growShape) *growWorld {
	w := &growWorld{
		rng: rand.New(rand.NewPCG(seed, 1)), rules: rules, shape: shape, lives: map[[3]int]int{}, leaper: -1,
	}
	w.parents, w.factor = 1+w.rng.IntN(2), 2+w.rng.IntN(2)
	count, size := 4, 3
	if shape.alone {
		count, size = 1, 1
	} else if shape.wipes {
		count = 5
	} else if shape.single {
		size = 1
	}
	groups := w.groups()
	w.truth = make([]growTruth, groups)
	for g := range w.truth {
		w.truth[g].idents, w.truth[g].digests = []int{0}, []int64{0}
	}
	w.ahead = make([]int, groups)
	for g := range w.ahead {
		w.ahead[g] = w.rng.IntN(6)
		if g >= w.parents {
			w.ahead[g] += w.ahead[w.parentOf(g)]
		}
	}
	if shape.leaps {
		w.leaper = w.rng.IntN(groups)
	}
	for range count {
		w.nodes = append(w.nodes, growNode{
			up: true, disk: make([]*growDisk, groups), run: make([]*growReplica, groups), deleted: make([]int, groups),
			prepared: map[int]*growShard{}, parked: map[int]*growPart{}, knows: make([]bool, w.parents),
		})
	}
	v := &growView{groups: make([]growPlacement, groups)}
	for p := range w.parents {
		v.groups[p] = newGrowPlacement(w.rng.Perm(count)[:size], 1)
	}
	w.views = []*growView{v}
	w.clock, w.epoch = 1, 1
	w.slow, w.trailing = w.chance(2), []int{0, 2, 5, 50}[w.rng.IntN(4)]
	w.horizon = []int{60, 240}[w.rng.IntN(2)]
	for node := range w.nodes {
		w.follow(node)
	}
	return w
}

func (w *growWorld) run(steps int) {
	for ; w.step < steps && w.failure == nil; w.step++ {
		w.oneStep()
	}
	if w.failure == nil {
		w.recover()
	}
	w.stats.Steps += w.step
}

func (w *growWorld) anyNode() int  { return w.rng.IntN(len(w.nodes)) }
func (w *growWorld) anyGroup() int { return w.rng.IntN(w.groups()) }

func (w *growWorld) anyReplica() *growReplica {
	n := &w.nodes[w.anyNode()]
	from := w.anyGroup()
	for i := range w.groups() {
		if r := n.run[(from+i)%w.groups()]; r != nil {
			return r
		}
	}
	return nil
}

func (w *growWorld) oneStep() {
	if w.chance(16) {
		w.clock++
	}
	if w.shape.queues && w.chance(20) {
		w.unqueueAll()
	}
	if len(w.bag) > 8 && w.rng.IntN(3) > 0 {
		w.deliver()
		return
	}
	switch x := w.rng.IntN(1000); {
	case x < 200:
		w.deliver()
	case x < 400:
		if r := w.believes(w.anyGroup()); r != nil {
			w.leaderTick(r)
		}
	case x < 430:
		if r := w.believes(w.anyGroup()); r != nil {
			w.reconcile(r.d.id.node, r.d.group)
		}
	case x < 480:
		if r := w.believes(w.anyGroup()); r == nil {
			g := w.anyGroup()
			if r := w.nodes[w.anyNode()].run[g]; r != nil && w.believes(g) == nil {
				w.elect(r)
			}
		} else {
			w.learn(r.d.id.node)
		}
	case x < 680:
		if r := w.anyReplica(); r != nil {
			for range 1 + w.rng.IntN(4) {
				w.apply(r)
			}
		}
	case x < 710:
		g := w.anyGroup()
		if r := w.nodes[w.anyNode()].run[g]; r != nil && (w.believes(g) == nil || w.chance(20)) {
			w.elect(r)
		}
	case x < 735:
		if w.chance(2) || w.newest().intended && w.chance(2) {
			w.request()
		}
	case x < 790:
		if len(w.reqs) > 0 {
			from := w.rng.IntN(len(w.reqs))
			for i := range w.reqs {
				if q := w.reqs[(from+i)%len(w.reqs)]; !q.settled() {
					w.try(q)
					w.impatient(q)
					break
				}
			}
		}
	case x < 805:
		w.startRead()
	case x < 845:
		w.readStep()
	case x < 850:
		w.produce()
	case x < 870:
		w.consume(w.rng.IntN(2))
	case x < 876:
		w.fenceStep()
	case x < 880:
		w.restoreStep()
	case x < 884:
		w.backupStep()
	case x < 888:
		if r := w.anyReplica(); r != nil {
			r.spilled[w.rng.IntN(growIDs)] = true
		}
	case x < 930:
		node := w.anyNode()
		if w.nodes[node].up {
			w.reconcile(node, w.anyGroup())
		}
	case x < 950:
		w.learn(w.anyNode())
	case x < 962:
		if r := w.anyReplica(); r != nil {
			w.takeSnapshot(r, false)
		}
	case x < 964:
		w.prepare(w.anyNode())
	case x < 966:
		w.place(w.anyGroup())
	case x < 974:
		if g := w.anyGroup(); w.shape.moves && (w.chance(4) || w.frozen(w.newest(), g) || w.slow && g >= w.parents) {
			w.place(g)
		}
	case x < 978:
		w.intend()
	case x < 981:
		if w.chance(2) && w.shape.crashes || w.chance(6) {
			w.crash(w.anyNode())
		}
	case x < 991:
		w.start(w.anyNode())
	case x < 993:
		if w.shape.crashes || w.shape.moves {
			w.repair(w.anyNode(), w.anyGroup())
		}
	case x < 995:
		if r := w.anyReplica(); r != nil && (w.shape.crashes || w.chance(4)) {
			w.reopen(r.d.id.node, r.d.group)
		}
	case x < 996:
		if w.shape.wipes && w.newest().intended {
			w.lose(w.anyNode())
		}
	case x < 997:
		if w.leaper >= 0 && !w.leapt && w.truth[w.leaper].shard.splitAt > 0 || w.leaper >= w.parents && !w.leapt && len(w.truth[w.leaper].idents) > 4 {
			w.ahead[w.leaper] += w.horizon + 10
			w.leapt = true
		}
	case x < 999:
		if w.shape.disks {
			w.damage()
		}
		if w.shape.drops && w.step > growWorldSteps/2 && w.chance(3) {
			w.command("drop", func(v *growView) bool { v.dropped = true; return true })
		}
	}
}

// deliver delivers or loses a random message. The message may stay in the bag, and so be delivered
// twice.
func (w *growWorld) deliver() {
	if len(w.bag) == 0 {
		return
	}
	i := w.rng.IntN(len(w.bag))
	m := w.bag[i]
	if m.once || w.calm || !w.chance(6) {
		w.bag[i] = w.bag[len(w.bag)-1]
		w.bag = w.bag[:len(w.bag)-1]
	}
	if !w.calm && w.chance(12) {
		return
	}
	switch m.kind {
	case growAppendMsg, growInstallMsg:
		w.deliverAppend(&m)
	case growSectionMsg:
		w.deliverSection(&m)
	case growAnswerMsg:
		w.deliverAnswer(&m)
	case growCommandMsg:
		w.command(m.commandFor, m.command)
	}
}

// leaderTick makes a leader send entries to some of the other replicas.
func (w *growWorld) leaderTick(r *growReplica) {
	ids := slices.Clone(r.conf)
	p := &w.view(r.d.id.node).groups[r.d.group]
	for _, node := range p.target {
		if id := (growID{node, p.numbers[node]}); !ids.has(id) && p.made == r.d.made {
			ids = append(ids, id)
		}
	}
	for node := range w.nodes {
		if id := (growID{node, p.numbers[node]}); w.shape.all && id.number > 0 && !ids.has(id) && p.made == r.d.made {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		if id != r.d.id && !w.chance(3) {
			w.replicate(r, id)
		}
	}
}

// propose sends a command to the catalog. The command arrives at once, late, twice, or never.
func (w *growWorld) propose(what string, change func(*growView) bool) {
	if w.calm || w.chance(3) {
		w.command(what, change)
		return
	}
	w.send(growMsg{kind: growCommandMsg, command: change, commandFor: what})
}

func (w *growWorld) learn(node int) {
	n := &w.nodes[node]
	if !n.up {
		return
	}
	if last := len(w.views) - 1; n.view < last {
		n.view = min(last, n.view+1+w.rng.IntN(3))
	}
	if w.chance(3) {
		n.saved = n.view
	}
	w.follow(node)
}

// readStep continues a random read.
func (w *growWorld) readStep() {
	if len(w.reads) == 0 {
		return
	}
	i := w.rng.IntN(len(w.reads))
	if w.read(w.reads[i]) {
		w.reads = slices.Delete(w.reads, i, i+1)
	}
}

func (w *growWorld) intend() {
	if w.step > 150 {
		w.command("intend", func(v *growView) bool {
			was := v.intended
			v.intended = true
			return !was
		})
	}
}

// place makes the planner replace one node in the target of a group.
func (w *growWorld) place(group int) {
	v := w.newest()
	p := &v.groups[group]
	if !p.exists || w.shape.alone {
		return
	}
	was := p.target
	var spare []int
	for node := range w.nodes {
		if !slices.Contains(was, node) && !w.nodes[node].lost {
			spare = append(spare, node)
		}
	}
	if len(spare) == 0 {
		return
	}
	from := w.rng.IntN(len(was))
	for i, node := range was {
		if w.nodes[node].lost {
			from = i
		}
	}
	target := slices.Clone(was)
	target[from] = spare[w.rng.IntN(len(spare))]
	w.propose("place", func(v *growView) bool {
		p := &v.groups[group]
		if !slices.Equal(p.target, was) || w.rules.has(growFrozen) && w.frozen(v, group) {
			return false
		}
		w.stats.Moved++
		p.target = target
		p.revision++
		return true
	})
}

// prepare copies the rows of the children from each parent on a node. From then on, the replica of
// the parent records which rows change.
func (w *growWorld) prepare(node int) {
	n := &w.nodes[node]
	for p := range w.parents {
		r := n.run[p]
		if r == nil || r.shard.splitAt > 0 {
			continue
		}
		for j := 1; j < w.factor; j++ {
			part := r.shard
			n.prepared[w.childOf(p, j)] = &part
		}
		r.dirty, r.preparing = [growIDs]bool{}, true
	}
}

// lose removes a node for ever, if each group keeps a majority of its committed configuration and
// of every later one.
func (w *growWorld) lose(node int) {
	lost := 0
	for i := range w.nodes {
		if w.nodes[i].lost {
			lost++
		}
	}
	if w.nodes[node].lost || lost == len(w.nodes)-3 || !w.mayLose(node) {
		return
	}
	w.crash(node)
	w.nodes[node].up, w.nodes[node].lost = false, true
	w.stats.Lost++
	w.note("node %d is lost", node)
	clear(w.nodes[node].disk)
}

func (w *growWorld) mayLose(node int) bool {
	lives := func(group int, conf growConf) bool {
		left := 0
		for _, id := range conf {
			if d := w.nodes[id.node].disk[group]; id.node != node && d != nil && d.id == id {
				left++
			}
		}
		return 2*left > len(conf)
	}
	for g := range w.truth {
		p := &w.newest().groups[g]
		if !p.exists {
			continue
		}
		conf := w.truth[g].conf
		if conf == nil {
			for i, n := range p.initial {
				conf = append(conf, growID{n, p.first + i})
			}
			for _, id := range conf { // do not lose a node before all first voters have begun
				if w.nodes[id.node].disk[g] == nil {
					return false
				}
			}
		}
		if !lives(g, conf) {
			return false
		}
		for i := range w.nodes {
			if r := w.nodes[i].run[g]; r != nil && r.hung != nil && !lives(g, r.hung) {
				return false
			}
			if d := w.nodes[i].disk[g]; d != nil && i != node {
				for j := range d.log {
					if e := &d.log[j]; e.kind == growConfEntry && d.first+j > w.truth[g].confAt && !lives(g, e.conf) {
						return false
					}
				}
			}
		}
	}
	return true
}

// reconcile is replicas.reconcile for one group. It does what a node does with its replica, and a
// leader with its group.
func (w *growWorld) reconcile(node, group int) {
	n := &w.nodes[node]
	v := w.view(node)
	w.follow(node)
	if v.dropped {
		if d := n.disk[group]; d != nil {
			n.deleted[group] = max(n.deleted[group], d.id.number)
		}
		n.run[group], n.disk[group] = nil, nil
		delete(n.parked, group)
		return
	}
	if d := n.disk[group]; d != nil && group >= w.parents && d.id.number < v.groups[group].next && (!v.groups[group].exists || d.id.number < v.groups[group].first) {
		w.deleteIfRemoved(node, group)
		return
	}
	r := n.run[group]
	if r == nil {
		return
	}
	if r.stuck {
		w.mend(node, group)
		return
	}
	if r.d.damaged && w.chance(2) && !w.shape.alone {
		w.mend(node, group)
	}
	if r = n.run[group]; r == nil {
		return
	}
	if !r.ready() {
		if !r.leads {
			w.deleteIfRemoved(node, group)
		}
		return
	}
	w.retire(r, v)
	if group < w.parents {
		if w.grow(r, v) {
			return
		}
	} else if w.childStep(r, v) {
		return
	}
	w.members(r, v)
}

// mend does one step to repair a stuck replica, or a parent's replica with damaged rows.
func (w *growWorld) mend(node, group int) {
	n := &w.nodes[node]
	r := n.run[group]
	switch {
	case n.parked[group] != nil && !w.chance(3):
		w.reopen(node, group)
	case r.leads:
		for _, id := range r.conf { // it hands over
			if o := w.replica(group, id); o != nil && id != r.d.id && !o.stuck && o.applied >= r.commit {
				w.elect(o)
				return
			}
		}
		if w.calm {
			r.leads = false
		}
	case w.rules.has(growRepairs) && w.chance(2):
		w.repair(node, group)
	case group >= w.parents:
		w.reopen(node, group)
	}
}

// caughtUp reports whether a replica answers and has caught up. A stuck or unborn replica has not,
// unless the leader is unborn too.
func (w *growWorld) caughtUp(r *growReplica, id growID) bool {
	o := w.replica(r.d.group, id)
	if o == nil || !w.reach(r.d.id.node, id.node) {
		return false
	}
	if (o.stuck || o.shard.unborn) && !r.shard.unborn {
		last, _ := o.d.last()
		return !w.rules.has(growCounts) && last >= r.commit
	}
	return o.applied >= r.commit-1
}

// members makes a group's leader change the members by one step towards the target.
func (w *growWorld) members(r *growReplica, v *growView) {
	p := &v.groups[r.d.group]
	if !p.exists || p.made != r.d.made || r.hung != nil || r.confAt > r.commit || r.commit < r.start {
		return
	}
	if w.rules.has(growGated) && r.d.group < w.parents && (r.shard.splitAt > 0 && !w.allBegun(v, r.d.group) || r.proposed > r.applied || r.queued != nil && r.queued.checked == r.term) {
		return
	}
	for _, node := range p.target {
		id := growID{node, p.numbers[node]}
		if r.conf.has(id) {
			continue
		}
		for _, old := range r.conf {
			if old.node == node && old.number > id.number {
				return // the catalog of this node is behind
			}
			if old.node == node && old != r.d.id && w.canLose(r, old) {
				w.configure(r, slices.DeleteFunc(slices.Clone(r.conf), func(o growID) bool { return o == old }))
				return
			}
		}
		if slices.Contains(r.conf, r.d.id) && r.d.id.node == node { // the leader hands over, because the new replica needs the leader's address
			for _, to := range r.conf {
				if to != r.d.id && w.caughtUp(r, to) {
					w.elect(w.replica(r.d.group, to))
					return
				}
			}
		}
		if w.caughtUp(r, id) {
			w.configure(r, append(slices.Clone(r.conf), id))
		}
		return
	}
	for _, id := range r.conf {
		if slices.Contains(p.target, id.node) && p.numbers[id.node] == id.number {
			continue
		}
		if p.numbers[id.node] > id.number || p.next <= id.number {
			return
		}
		if id == r.d.id {
			for _, to := range r.conf {
				if o := w.replica(r.d.group, to); o != nil && to != id && slices.Contains(p.target, to.node) && w.caughtUp(r, to) {
					w.elect(o)
					return
				}
			}
			continue
		}
		if w.canLose(r, id) {
			w.configure(r, slices.DeleteFunc(slices.Clone(r.conf), func(o growID) bool { return o == id }))
			return
		}
	}
}

func (w *growWorld) configure(r *growReplica, conf growConf) {
	w.note("%v of group %d changes %v to %v", r.d.id, r.d.group, r.conf, conf)
	if !w.calm && w.chance(4) { // the disk hangs, but the leader's loop continues
		r.hung = conf
		return
	}
	w.append(r, growEntry{kind: growConfEntry, conf: conf})
}

// canLose is replica.canLose.
func (w *growWorld) canLose(r *growReplica, lost growID) bool {
	others, there := 0, 0
	for _, id := range r.conf {
		if id != lost {
			others++
			if id == r.d.id || w.caughtUp(r, id) {
				there++
			}
		}
	}
	return 2*there > others
}

// retire makes a leader retire the number of a replica that has left.
func (w *growWorld) retire(r *growReplica, v *growView) {
	p := &v.groups[r.d.group]
	for node, number := range p.numbers {
		id := growID{node, number}
		if slices.Contains(p.target, node) || w.shape.all || r.conf.has(id) || r.hung != nil || r.confAt > r.commit || !w.proves(r) {
			continue
		}
		group, revision := r.d.group, p.revision
		w.propose("retire", func(v *growView) bool {
			p := &v.groups[group]
			if p.numbers[node] != number || p.revision != revision || slices.Contains(p.target, node) {
				return false
			}
			numbers := map[int]int{}
			for n, number := range p.numbers {
				if n != node {
					numbers[n] = number
				}
			}
			p.numbers = numbers
			return true
		})
		return
	}
}

// deleteIfRemoved deletes a replica whose number is retired, once the leader confirms that the
// replica is no member.
func (w *growWorld) deleteIfRemoved(node, group int) {
	n := &w.nodes[node]
	d := n.disk[group]
	p := &w.view(node).groups[group]
	if group >= w.parents && d.id.number < p.next && (!p.exists || d.id.number < p.first) { // a dropped group
		if w.writes(node) {
			n.run[group], n.disk[group] = nil, nil
			n.deleted[group] = max(n.deleted[group], d.id.number)
		}
		return
	}
	if number, has := p.numbers[node]; !p.exists || has && number == d.id.number || d.id.number >= p.next {
		return
	}
	l := w.leader(group)
	if l == nil || l.conf.has(d.id) || l.confAt > l.commit || !w.writes(node) {
		return
	}
	w.note("node %d deletes %v of group %d", node, d.id, group)
	n.run[group] = nil
	n.deleted[group] = max(n.deleted[group], d.id.number)
	n.disk[group] = nil // the directory was moved aside; the next start deletes it
	w.writes(node)
}

// grow makes the leader of a parent take the next step of the growth: commit, and then Split. It
// reports whether the members must not change now.
func (w *growWorld) grow(r *growReplica, v *growView) bool {
	group := r.d.group
	p := &v.groups[group]
	if !v.intended || r.shard.splitAt > 0 {
		return false
	}
	if w.rules.has(growBarrier) && r.hung != nil {
		w.append(r, growEntry{kind: growNoop})
		return true
	}
	stable := r.confAt <= r.commit && r.commit >= r.start
	first := w.childOf(group, 1)
	if !v.groups[first].exists {
		if !stable || len(r.conf) != len(p.target) {
			return false
		}
		for _, node := range p.target {
			if !r.conf.has(growID{node, p.numbers[node]}) {
				return false
			}
		}
		target := p.target
		w.propose("commit", func(v *growView) bool {
			if v.groups[first].exists || !slices.Equal(v.groups[group].target, target) {
				return false
			}
			v.groups[group].attempt++
			for _, c := range w.children(group) {
				v.groups[c] = newGrowPlacement(target, max(1, v.groups[c].next))
				v.groups[c].made = w.truth[c].made
			}
			return true
		})
		return true
	}
	attempt := p.attempt
	if attempt <= r.shard.abandoned {
		w.propose("abandoned", func(v *growView) bool {
			if v.groups[group].attempt != attempt || !v.groups[first].exists {
				return false
			}
			for _, c := range w.children(group) {
				v.groups[c] = growPlacement{next: v.groups[c].next}
				w.truth[c] = growTruth{idents: []int{0}, digests: []int64{0}, made: w.truth[c].made + 1}
			}
			return true
		})
		return true
	}
	if !w.calm && w.chance(30) { // an operator, or a leader that has waited too long, abandons the growth
		w.append(r, growEntry{kind: growAbandonEntry, attempt: attempt})
		return true
	}
	equal := stable && len(r.conf) == len(v.groups[first].initial)
	for _, id := range r.conf {
		equal = equal && slices.Contains(v.groups[first].initial, id.node)
	}
	if w.shape.all && !w.rules.has(growVoters) && len(p.numbers) > len(r.conf) {
		equal = false
	}
	if !equal && w.rules.has(growOverlap) {
		return false
	}
	for _, id := range r.conf {
		if o := w.replica(group, id); o != nil && o.d.damaged && w.rules.has(growReadable) && (id == r.d.id || w.reach(r.d.id.node, id.node)) {
			return false
		}
	}
	for _, c := range w.children(group) {
		if w.leader(c) == nil {
			return false
		}
	}
	if r.proposed > r.applied && !w.chance(4) {
		return true
	}
	if !w.calm && w.chance(2) { // many faults need requests in flight at Split
		for range 3 {
			if q := w.request(); q != nil {
				w.try(q)
			}
		}
		return true
	}
	e := growEntry{kind: growSplitEntry, mod: w.parents, attempt: attempt, checked: r.term}
	if w.shape.queues && !w.calm && r.queued == nil && !w.chance(3) {
		r.queued = &e
		return true
	}
	r.proposed = max(r.proposed, w.append(r, e))
	return true
}

// unqueue makes raft take a Split from its queue. A leader appends it, even if it leads a later term than that of the
// call. A follower refuses it, unless it leads again before it looks. Random elections seldom do that in time, so
// unqueue also makes replicas campaign.
func (w *growWorld) unqueue(r *growReplica) {
	switch e := r.queued; {
	case e == nil:
	case w.calm || r.leads && (r.term != e.checked || w.chance(4)):
		r.queued = nil
		if !r.leads {
			return
		}
		if !w.rules.has(growCatalogRoute) {
			e.mod = r.shard.route.mod
		}
		r.proposed = max(r.proposed, w.append(r, *e))
	case r.leads:
		if o := w.nodes[w.anyNode()].run[r.d.group]; o != nil {
			w.elect(o)
		}
	case w.chance(8):
		w.elect(r)
	case w.chance(40):
		r.queued = nil
	}
}

func (w *growWorld) unqueueAll() {
	for node := range w.nodes {
		for _, r := range w.nodes[node].run {
			if r != nil {
				w.unqueue(r)
			}
		}
	}
}

// childStep makes the leader of a child take the next step: propose Adopt, and then report Begun to
// the catalog. It reports whether it did something.
func (w *growWorld) childStep(r *growReplica, v *growView) bool {
	group := r.d.group
	if r.shard.unborn {
		part := w.nodes[r.d.id.node].parked[group]
		if part == nil {
			for _, id := range r.conf { // the leader hands over to a voter whose node has the part
				if o := w.replica(group, id); o != nil && w.nodes[id.node].parked[group] != nil {
					w.elect(o)
					return true
				}
			}
		}
		if part == nil || r.proposed > r.applied && !w.chance(4) {
			return false
		}
		r.proposed = max(r.proposed, w.append(r, growEntry{kind: growAdoptEntry, split: part.split, sum: part.shard.digest()}))
		return true
	}
	if v.groups[group].begun {
		return false
	}
	saved, number := 0, v.groups[group].first
	for _, id := range r.conf {
		o := w.replica(group, id)
		if o != nil && w.reach(r.d.id.node, id.node) && (o.d.snap != nil || !w.rules.has(growSaved) && !o.shard.unborn) {
			saved++
		}
	}
	if 2*saved <= len(r.conf) {
		return false
	}
	w.propose("begun", func(v *growView) bool {
		if was := v.groups[group]; was.begun || !was.exists || was.first != number {
			return false
		}
		v.groups[group].begun = true
		return true
	})
	return true
}

// growRounds bounds the rounds of recover.
const growRounds = 400

// recover stops all faults, and waits until the growth is complete and all requests are answered.
func (w *growWorld) recover() {
	w.calm = true
	for _, c := range w.newest().groups[w.parents:] {
		if c.begun {
			w.stats.Early++
		}
	}
	w.note("nothing fails any more")
	for node := range w.nodes {
		w.start(node)
	}
	w.unqueueAll()
	for round := range growRounds {
		if w.failure != nil {
			return
		}
		if round > 5 && w.complete() == "" {
			w.final()
			return
		}
		w.round(round)
	}
	for g := range w.groups() {
		for node := range w.nodes {
			if r := w.nodes[node].run[g]; r != nil {
				last, _ := r.d.last()
				w.note("group %d: %v term %d leads %v %d stuck %v applied %d commit %d start %d last %d snap %v conf %v at %d unborn %v", g, r.d.id, r.d.term, r.leads, r.term, r.stuck, r.applied, r.commit, r.start, last, r.d.snap != nil, r.conf, r.confAt, r.shard.unborn)
			} else if d := w.nodes[node].disk[g]; d != nil {
				w.note("group %d: %v is closed", g, d.id)
			}
		}
	}
	w.fail(growWedged, "%s", w.complete())
}

// led reports whether a group has a leader that a majority confirms. The leader need not be ready:
// a stuck leader hands over by itself.
func (w *growWorld) led(group int) bool {
	for node := range w.nodes {
		if r := w.nodes[node].run[group]; r != nil && r.leads && r.d.made == w.truth[group].made && w.proves(r) {
			return true
		}
	}
	return false
}

func (w *growWorld) round(round int) {
	w.clock++
	for node := range w.nodes {
		if w.nodes[node].up {
			w.learnAll(node)
			w.follow(node)
		}
	}
	for g := range w.groups() {
		if w.newest().groups[g].exists && round%5 == 0 && !w.led(g) {
			for _, node := range w.rng.Perm(len(w.nodes)) {
				if r := w.nodes[node].run[g]; r != nil && !w.led(g) {
					r.leads = false
					w.elect(r)
					for w.apply(r) {
					}
				}
			}
		}
		for node := range w.nodes {
			r := w.nodes[node].run[g]
			if r == nil {
				if w.nodes[node].up {
					w.reconcile(node, g)
				}
				continue
			}
			for range 3 {
				if r.leads {
					for _, to := range r.conf {
						if to != r.d.id {
							w.replicate(r, to)
						}
					}
					w.leaderTick(r)
				}
				w.drain()
			}
			for w.nodes[node].run[g] == r && w.apply(r) {
			}
			if w.nodes[node].up {
				w.reconcile(node, g)
			}
			if r := w.nodes[node].run[g]; r != nil && round%3 == 0 {
				w.takeSnapshot(r, false)
			}
		}
		p := &w.newest().groups[g]
		for _, node := range p.target {
			if w.nodes[node].lost {
				w.place(g)
				break
			}
		}
	}
	for _, q := range w.reqs {
		w.try(q)
		w.impatient(q)
	}
	w.produce()
	w.consume(0)
	w.consume(0)
	if w.fence.epoch > w.fenced {
		w.fenceStep()
	}
	if w.readers[0].epoch < w.epoch {
		w.readers[0] = growReader{}
	}
	w.restoreStep()
	w.backupStep()
	for range 4 {
		w.startRead()
		w.readStep()
	}
	w.drain()
	if w.restore.phase == 0 {
		w.intend()
	}
}

// drain delivers all messages.
func (w *growWorld) drain() {
	for i := 0; len(w.bag) > 0 && i < 200; i++ {
		w.deliver()
	}
}

// complete returns what the recovery still lacks, or "".
func (w *growWorld) complete() string {
	v := w.newest()
	if v.dropped {
		for node := range w.nodes {
			for g := range w.groups() {
				if w.nodes[node].disk[g] != nil && !w.nodes[node].lost {
					return "a replica of a dropped group is left"
				}
			}
		}
		return ""
	}
	if d := w.nodes[0].disk[0]; w.shape.alone && (d.damaged || w.nodes[0].disk[w.parents-1].damaged) { // there is no other replica
		for p := range w.parents {
			if w.leader(p) == nil {
				return "no leader of a parent with damaged rows"
			}
		}
		return ""
	}
	for g := range w.groups() {
		p := &v.groups[g]
		if !p.exists {
			return "a child does not exist"
		}
		l := w.leader(g)
		switch {
		case l == nil:
			return "no leader"
		case g < w.parents && l.shard.splitAt == 0:
			return "a parent has not split"
		case g >= w.parents && l.shard.unborn:
			return "a child is unborn"
		case w.frozen(v, g):
			return "a group is frozen"
		case len(l.conf) != len(p.target):
			return "members are not as the catalog wants"
		}
		for _, node := range p.target {
			r := w.nodes[node].run[g]
			if r == nil || !l.conf.has(r.d.id) || r.stuck || r.applied < l.applied || r.state() != l.state() {
				return "a replica has not caught up"
			}
		}
		for node := range p.numbers {
			if r := w.nodes[node].run[g]; w.shape.all && !w.nodes[node].lost && (r == nil || r.stuck || r.applied < l.applied || r.state() != l.state()) {
				return "a replica without a vote has not caught up"
			}
		}
	}
	for _, q := range w.reqs {
		if !q.settled() {
			return "a request has no answer"
		}
	}
	for g := range w.groups() {
		if s := &w.leader(g).shard; !s.mem.known || s.mem.at < len(w.messages) {
			return "the source is not read"
		}
	}
	return ""
}

// final checks that each acknowledged op is in its row.
func (w *growWorld) final() {
	if w.newest().dropped {
		return
	}
	if w.shape.alone && (w.nodes[0].disk[0].damaged || w.nodes[0].disk[w.parents-1].damaged) {
		return
	}
	for id := range growIDs {
		group := w.childOf(id%w.parents, id%w.groups()/w.parents)
		want := w.acked[id]
		for _, op := range w.messages {
			if w.opID[op] == id {
				want.add(op)
			}
		}
		l := w.leader(group)
		if op := max(l.shard.rows[id].lacks(&want), l.d.sets.rows[id].lacks(&want)); op >= 0 {
			w.fail(growLost, "op %d on %d is not in group %d", op, id, group)
		}
	}
	for _, c := range w.newest().groups[w.parents:] {
		if c.begun {
			w.stats.Begun++
		}
	}
}
