package shard

import (
	"math/bits"
	"slices"
)

// This file has the clients of the model of growth: requests with all kinds of identity, reads, a
// source with two readers and fences, a backup, and a restore.

const (
	growReqs     = 44
	growMessages = 24 // messages in the queue of the source
	growOpsMax   = 3*growReqs + growMessages
)

type growClients struct {
	opID     []int // by op
	reqs     []*growReq
	reads    []*growRead
	acked    [growIDs]growSet
	tokens   []growToken
	counted  [growOpsMax]int
	bornOf   [growTimed + 2]int
	accepted [growKeys]struct {
		there bool
		body  int8
		time  int
	}

	messages []int // ops
	readers  [2]growReader
	epoch    int // the source's epoch in the catalog
	fenced   int
	fence    growFence
	restore  growRestore
	backup   growBackup
}

type growReq struct {
	n        int
	producer bool
	atomic   bool // an EXEC, whose ops must be in one section
	unsure   bool // some try had an unknown outcome
	key      int
	body     int8
	ops      []int
	state    []growOpState
	flight   []*growSection // by op: the section in flight; nil for none
	judging  *growSection
	judged   bool
	met      int
	floor    int
	judges   [2]growName
	node     int
	born     int
}

type growOpState uint8

const (
	growUnsettled growOpState = iota
	growAcked
	growUnknown
	growRefusedOp
)

func (q *growReq) identity() bool { return q.producer || q.key >= 0 }

func (q *growReq) settled() bool { return !slices.Contains(q.state, growUnsettled) }

type growToken struct{ op, group, index int }

type growRead struct {
	node, id int
	want     growSet
	token    growToken // if its group is -1, the read is linearizable
	group    int
	route    growRoute
	index    int
	confirms bool
	tries    int
	table    *growReplica // the replica whose table the read uses; nil before the read finds one
	held     growSet      // the row in that table
	looked   growRoute    // the replica's route when the read found the table
}

type growReader struct {
	node, epoch int
	at          map[int]int // by group
	flight      *growSection
}

type growFence struct {
	epoch, node int
	done        map[growAnswered]bool
	since       int
}

// growAnswered is a shard that has applied a fence. If P applied the fence under its old route, its
// children's copies contain the fence. If P applied it under the new route, they do not. So
// growAnswered includes the route.
type growAnswered struct {
	group int
	route growRoute
}

func (w *growWorld) answered(group int, route growRoute) growAnswered {
	return growAnswered{group, route}
}

type growRestore struct {
	parent, phase, since, number int
	opened                       int // bit set of the parts that were opened
}

// hash returns the hash of a key.
func (w *growWorld) hash(key int) int {
	h := key*7 + 3
	if w.leaper >= 0 && h%w.groups() == w.routeOf(w.leaper, true).res {
		h++ // choose a judge whose log time does not jump: after a jump, a repeat would count as a new use (dedup/DESIGN.md)
	}
	return h
}

// routed returns the group that serves an id according to a node, and the group's route.
func (w *growWorld) routed(node, id int) (group int, route growRoute) {
	p := id % w.parents
	if !w.splitKnown(node, p) {
		return p, w.routeOf(p, false)
	}
	group = w.childOf(p, id%w.groups()/w.parents)
	if !w.view(node).groups[group].exists {
		w.learnAll(node)
	}
	return group, w.routeOf(group, true)
}

func (w *growWorld) splitKnown(node, parent int) bool {
	n := &w.nodes[node]
	r := n.run[parent]
	return n.knows[parent] || r != nil && r.shard.splitAt > 0 || w.allBegun(w.view(node), parent)
}

func (w *growWorld) learnAll(node int) { w.nodes[node].view = len(w.views) - 1 }

// served returns all groups of the keyspace that a node knows.
func (w *growWorld) served(node int) (all []int) {
	for p := range w.parents {
		all = append(all, p)
		if w.splitKnown(node, p) {
			all = append(all, w.children(p)...)
		}
	}
	return all
}

func (w *growWorld) anyUp() int {
	from := w.rng.IntN(len(w.nodes))
	for i := range w.nodes {
		if node := (from + i) % len(w.nodes); w.nodes[node].up {
			return node
		}
	}
	return -1
}

func (w *growWorld) newOp(id int) int {
	w.opID = append(w.opID, id)
	return len(w.opID) - 1
}

// request creates a request, or returns nil if there are too many.
func (w *growWorld) request() *growReq {
	node := w.anyUp()
	if len(w.reqs) >= growReqs || node < 0 {
		return nil
	}
	q := &growReq{n: len(w.reqs), key: -1, node: node, born: w.clock}
	x := w.rng.IntN(4)
	switch {
	case w.shape.keys && x > 0 || x == 3:
		q.key, q.body = w.rng.IntN(growKeys), int8(q.n)
	case x > 0:
		q.producer = true
	}
	if q.key >= growTimed {
		if b := &w.bornOf[q.key]; *b == 0 {
			*b = w.clock
		}
	}
	q.atomic = q.key < 0 && w.chance(3)
	ids := w.rng.Perm(growIDs)[:1+w.rng.IntN(3)]
	for _, id := range ids {
		if !q.atomic || id%w.parents == ids[0]%w.parents {
			q.ops = append(q.ops, w.newOp(id))
		}
	}
	q.state, q.flight = make([]growOpState, len(q.ops)), make([]*growSection, len(q.ops))
	w.reqs = append(w.reqs, q)
	return q
}

// try sends the sections of a request that are neither answered nor in flight.
func (w *growWorld) try(q *growReq) {
	if w.clock-q.born > w.horizon/3 && q.key >= 0 { // the client gives up in time, as dedup/DESIGN.md requires
		for i := range q.state {
			if q.state[i] == growUnsettled {
				q.state[i] = growUnknown
			}
		}
	}
	if q.settled() {
		return
	}
	if !w.nodes[q.node].up {
		if q.node = w.anyUp(); q.node < 0 {
			q.node = 0
			return
		}
	}
	if q.key >= 0 && !q.judged {
		if q.judging == nil {
			group, route := w.routed(q.node, w.hash(q.key))
			if !w.rules.has(growOwnKeys) && w.chance(2) && route.mod > w.parents { // the node chooses the old judge
				group = w.hash(q.key) % w.parents
				route = w.routeOf(group, true)
			}
			q.judging = w.sendPart(q, group, route, [2]growName{})
		}
		return
	}
	if q.atomic && w.rules.has(growOneSection) && q.flight[0] != nil {
		return
	}
	if q.atomic && w.rules.has(growOneSection) && w.crosses(q) {
		for i, op := range q.ops {
			q.state[i] = growRefusedOp
			if q.unsure && w.rules.has(growFate) {
				q.state[i] = growUnknown
			} else if w.counted[op] > 0 {
				w.fail(growFalse, "op %d of request %d", op, q.n)
			}
		}
		return
	}
	for i, op := range q.ops {
		if q.state[i] == growUnsettled && q.flight[i] == nil {
			group, route := w.routed(q.node, w.opID[op])
			judges := q.judges
			if q.key >= growTimed {
				judges = [2]growName{}
			}
			w.sendPart(q, group, route, judges)
		}
	}
}

// crosses reports whether the ops of a request belong to several shards.
func (w *growWorld) crosses(q *growReq) bool {
	first, _ := w.routed(q.node, w.opID[q.ops[0]])
	return slices.ContainsFunc(q.ops, func(op int) bool {
		group, _ := w.routed(q.node, w.opID[op])
		return group != first
	})
}

// sendPart sends the unanswered ops that a request has for a group to the group's leader. It
// returns the section, or nil if there is no leader.
func (w *growWorld) sendPart(q *growReq, group int, route growRoute, judges [2]growName) *growSection {
	c := &growSection{group: group, route: route, req: q, key: q.key, body: q.body, judges: judges, tried: w.clock}
	if q.key >= growTimed {
		c.born = w.bornOf[q.key]
	}
	if judges[0] != 0 {
		c.met, c.floor = q.met, q.floor
	}
	l := w.believes(group)
	if l == nil {
		return nil
	}
	for i, op := range q.ops {
		if g, _ := w.routed(q.node, w.opID[op]); g == group && q.state[i] == growUnsettled && q.flight[i] == nil {
			c.ops = append(c.ops, op)
			q.flight[i] = c
		}
	}
	w.send(growMsg{kind: growSectionMsg, group: group, to: l.d.id, section: c, once: !q.identity() || q.atomic})
	return c
}

// impatient abandons the sections of a request that have been in flight for long.
func (w *growWorld) impatient(q *growReq) {
	if j := q.judging; j != nil && !q.judged && w.clock-j.tried > 6 {
		w.giveUp(q, j)
		q.judging = nil
	}
	for i := range q.ops {
		if c := q.flight[i]; c != nil && w.clock-c.tried > 6 {
			w.giveUp(q, c)
		}
	}
}

func (w *growWorld) giveUp(q *growReq, c *growSection) {
	for i := range q.ops {
		if q.flight[i] == c {
			q.flight[i], q.unsure = nil, true
			if !q.identity() && q.state[i] == growUnsettled {
				q.state[i] = growUnknown
			}
		}
	}
}

// deliverSection makes a leader propose a section.
func (w *growWorld) deliverSection(m *growMsg) {
	r := w.replica(m.group, m.to)
	c := m.section
	if c.key >= 0 && c.key < growTimed && c.judges[0] == 0 && w.clock-c.tried > w.horizon/3 {
		return // the call of this section has ended
	}
	if r == nil || !r.ready() || r.hung != nil && !w.calm && !w.chance(6) {
		return
	}
	w.append(r, growEntry{kind: growSectionEntry, section: c})
}

// answer sends a leader's answer.
func (w *growWorld) answer(r *growReplica, e *growEntry, index int, result growResult) {
	if w.calm || !w.chance(8) && !(w.shape.keys && e.section.key >= 0 && w.chance(3)) {
		w.send(growMsg{kind: growAnswerMsg, section: e.section, result: result, index: index})
	}
}

func (w *growWorld) deliverAnswer(m *growMsg) {
	c, a := m.section, m.result
	q := c.req
	if q == nil {
		w.deliverSource(c, a)
		return
	}
	if a.outcome == growMisrouted {
		w.stats.Misrouted++
		w.noteSplit(q.node, c, a)
		if q.judging == c {
			q.judging = nil
		}
		for i := range q.ops {
			if q.flight[i] == c {
				q.flight[i] = nil
			}
		}
		return
	}
	for i, op := range q.ops {
		if !slices.Contains(c.ops, op) || q.state[i] != growUnsettled {
			continue
		}
		switch a.outcome {
		case growApplied, growDuplicate:
			q.state[i] = growAcked
			w.stats.Acked++
			w.acked[w.opID[op]].add(op)
			w.tokens = append(w.tokens, growToken{op, c.group, m.index})
		default:
			q.state[i] = growRefusedOp
		}
		q.flight[i] = nil
	}
	switch a.outcome {
	case growApplied, growDuplicate:
		if q.judging == c {
			q.judging, q.judged = nil, true
			q.met, q.floor = a.met, a.floor
			q.judges = a.judges
		}
	case growFull:
		w.fail(growRefused, "request %d of key %d: full, in group %d", q.n, q.key, c.group)
	case growExpired:
		if w.leaper < 0 && w.clock-q.born < w.horizon/4 && q.key < growTimed {
			w.fail(growRefused, "request %d of key %d: expired, in group %d", q.n, q.key, c.group)
		}
	}
	if q.judging == c {
		q.judging = nil
	}
	if a.outcome == growConflict || a.outcome == growExpired || a.outcome == growFull {
		for i := range q.state {
			if q.state[i] == growUnsettled {
				q.state[i] = growRefusedOp
			}
		}
	}
}

// noteSplit records on a node that a parent has split, if the refusal of a section shows that.
func (w *growWorld) noteSplit(node int, c *growSection, a growResult) {
	if c.group < w.parents && c.route.mod == w.parents && a.mod == w.groups() {
		w.nodes[node].knows[c.group] = true
	}
}

// applied checks a section when the first replica applies it.
func (w *growWorld) applied(group int, e *growEntry, a growResult) {
	c := e.section
	if a.outcome != growApplied {
		return
	}
	if q := c.req; q != nil && q.atomic {
		if len(c.ops) < len(q.ops) {
			w.fail(growTorn, "request %d, in group %d", q.n, group)
		}
		if q.state[0] == growRefusedOp {
			w.fail(growFalse, "request %d, in group %d", q.n, group)
		}
	}
	for _, op := range c.ops {
		if w.counted[op]++; w.counted[op] > 1 {
			w.fail(growTwice, "op %d on %d, now in group %d", op, w.opID[op], group)
		}
	}
	if c.mode == growAdvance && c.epoch < w.fenced {
		w.fail(growLate, "group %d applies a section of epoch %d behind the fence of %d", group, c.epoch, w.fenced)
	}
	if c.req == nil || c.key < 0 || c.key >= growTimed || c.judges[0] != 0 || group == w.leaper {
		return
	}
	last := &w.accepted[c.key]
	if last.there && last.body != c.body && e.time-last.time < w.horizon/2 {
		w.fail(growBodies, "key %d counts for requests %d and %d", c.key, last.body, c.body)
	}
	last.there, last.body, last.time = true, c.body, e.time
}

// startRead begins a read, linearizable or with a token.
func (w *growWorld) startRead() {
	node := w.anyUp()
	if node < 0 || len(w.reads) > 6 {
		return
	}
	rd := &growRead{node: node, id: w.rng.IntN(growIDs), token: growToken{group: -1}}
	rd.want = w.acked[rd.id]
	if n := len(w.tokens); n > 0 && w.chance(2) {
		if w.chance(2) {
			n = min(n, 3)
			rd.token = w.tokens[len(w.tokens)-1-w.rng.IntN(n)]
		} else {
			rd.token = w.tokens[w.rng.IntN(n)]
		}
		rd.id, rd.want = w.opID[rd.token.op], growSet{}
		rd.want.add(rd.token.op)
		w.readToken(rd)
	}
	rd.group, rd.route = w.routed(node, rd.id)
	w.reads = append(w.reads, rd)
}

// readToken makes the node of a read learn of the group in the read's token.
func (w *growWorld) readToken(rd *growRead) {
	if g := rd.token.group; g >= w.parents && w.rules.has(growTokens) {
		if !w.view(rd.node).groups[g].exists {
			w.learnAll(rd.node)
		}
		w.nodes[rd.node].knows[w.parentOf(g)] = true
	}
}

// read does the next step of a read, and reports whether the read has ended.
func (w *growWorld) read(rd *growRead) (ended bool) {
	if rd.tries++; rd.tries > 40 || !w.nodes[rd.node].up {
		return true
	}
	if rd.table != nil {
		w.fill(rd)
		return true
	}
	if !rd.confirms {
		switch {
		case rd.token.group < 0:
			l := w.leader(rd.group)
			if l == nil {
				return false
			}
			rd.index = max(l.commit, l.applied)
		case rd.token.group == rd.group:
			rd.index = rd.token.index
		default:
			rd.index = 0
		}
		rd.confirms = true
		return false
	}
	at := rd.node
	if w.nodes[at].run[rd.group] == nil || w.chance(3) {
		at = w.rng.IntN(len(w.nodes))
	}
	r := w.nodes[at].run[rd.group]
	if r == nil || r.stuck || r.applied == 0 || r.applied < rd.index {
		return false
	}
	if r.shard.unborn && w.rules.has(growUnborn) {
		return false
	}
	if w.rules.has(growLooks) && r.shard.route != rd.route && !r.shard.unborn {
		if r.shard.route.mod > rd.route.mod {
			w.nodes[rd.node].knows[rd.group] = true
			rd.group, rd.route = w.routed(rd.node, rd.id)
			rd.confirms = false
		}
		return false
	}
	w.stats.Reads++
	rd.table, rd.held, rd.looked = r, r.shard.rows[rd.id], r.shard.route
	if w.chance(2) {
		return false // the read fills its row in a later step
	}
	w.fill(rd)
	return true
}

// fill reads the row of a read that has found a table. A replica that was closed or has split does
// not change that table any more.
func (w *growWorld) fill(rd *growRead) {
	r, row := rd.table, rd.held
	if w.replica(r.d.group, r.d.id) == r && (r.shard.route == rd.looked || !w.rules.has(growAside)) {
		row = r.shard.rows[rd.id]
	}
	if op := row.lacks(&rd.want); op >= 0 {
		w.fail(growStale, "a read of %d at %v in group %d, from index %d, lacks op %d", rd.id, r.d.id, rd.group, rd.index, op)
	}
}

// growBackup is a running backup of the keyspace. It has a stream of each group, taken at different
// moments.
type growBackup struct {
	runs    bool
	node    int
	want    [growIDs]growSet
	streams map[int]*growShard
}

// backupStep begins a backup, reads a stream, or ends the backup.
func (w *growWorld) backupStep() {
	b := &w.backup
	if b.node = w.anyUp(); b.node < 0 {
		return
	}
	if !b.runs {
		*b = growBackup{runs: true, node: b.node, want: w.acked, streams: map[int]*growShard{}}
	}
	for _, g := range w.served(b.node) {
		if b.streams[g] != nil {
			continue
		}
		if l := w.leader(g); l != nil && !l.shard.unborn && l.applied >= l.commit {
			stream := l.shard
			b.streams[g] = &stream
		}
		return
	}
	b.runs = false
	for id := range growIDs {
		covers, has, row := 0, 0, growSet{}
		for _, s := range b.streams {
			if id%s.route.mod == s.route.res {
				covers++
			}
			if s.rows[id] != (growSet{}) {
				row = s.rows[id]
				has++
			}
		}
		if covers != 1 && w.rules.has(growCovers) { // read the streams of the row's parent and of the parent's children again
			b.runs = true
			for g := range b.streams {
				if g == id%w.parents || g >= w.parents && w.parentOf(g) == id%w.parents {
					delete(b.streams, g)
				}
			}
			continue
		}
		if op := row.lacks(&b.want[id]); op >= 0 {
			w.fail(growLost, "a backup lacks op %d on %d", op, id)
		}
		if has > 1 {
			w.fail(growTwice, "a backup has row %d twice", id)
		}
	}
}

// produce adds a message to the queue of the source.
func (w *growWorld) produce() {
	if len(w.messages) < growMessages {
		w.messages = append(w.messages, w.newOp(w.rng.IntN(growIDs)))
	}
}

// consume makes a reader of the source send a section.
func (w *growWorld) consume(i int) {
	rd := &w.readers[i]
	if !w.nodes[rd.node].up || rd.at == nil {
		node := w.anyUp()
		if node < 0 {
			return
		}
		*rd = growReader{node: node, epoch: w.epoch, at: map[int]int{}}
	}
	if c := rd.flight; c != nil {
		if w.clock-c.tried <= 6 {
			return
		}
		delete(rd.at, c.group)
		rd.flight = nil
	}
	groups := w.served(rd.node)
	group := groups[w.rng.IntN(len(groups))]
	if group >= w.parents && !w.view(rd.node).groups[group].exists {
		w.learnAll(rd.node)
	}
	c := &growSection{
		group: group, route: w.routeOf(group, group < w.parents && w.splitKnown(rd.node, group)), mode: growBegin, key: -1,
		epoch: rd.epoch, by: i, tried: w.clock,
	}
	if at, known := rd.at[group]; known {
		if at == len(w.messages) {
			return
		}
		c.mode, c.prev = growAdvance, at
		c.next = min(at+1+w.rng.IntN(4), len(w.messages))
		for _, op := range w.messages[c.prev:c.next] {
			if id := w.opID[op]; id%c.route.mod == c.route.res {
				c.ops = append(c.ops, op)
			}
		}
	}
	if w.sendSection(c) {
		rd.flight = c
	}
}

func (w *growWorld) sendSection(c *growSection) bool {
	l := w.believes(c.group)
	if l != nil {
		w.send(growMsg{kind: growSectionMsg, group: c.group, to: l.d.id, section: c})
	}
	return l != nil
}

const (
	growByFence   = -1
	growByRestore = -2
)

func (w *growWorld) deliverSource(c *growSection, a growResult) {
	switch c.by {
	case growByFence:
		f := &w.fence
		switch {
		case f.epoch != c.epoch:
		case a.outcome == growMisrouted:
			w.noteSplit(f.node, c, a)
		case a.known && a.epoch >= c.epoch:
			f.done[w.answered(c.group, c.route)] = true
		}
		return
	case growByRestore:
		x := &w.restore
		switch {
		case c.next != x.number:
		case a.outcome == growMisrouted:
			if node := w.anyUp(); node >= 0 {
				w.noteSplit(node, c, a)
			}
			if x.phase == 1 { // the write may have closed the shard before Split, so open it
				x.phase, x.since, x.opened = 2, w.clock, 0
				x.number++
			}
		case c.mode == growClose && x.phase == 1:
			x.phase, x.since, x.opened = 2, w.clock, 0
			x.number++
		case c.mode == growOpen && x.phase == 2 && c.route.mod == w.parents:
			x.phase = 0
		case c.mode == growOpen && x.phase == 2:
			if x.opened |= 1 << c.group; bits.OnesCount(uint(x.opened)) == w.factor {
				x.phase = 0
			}
		}
		return
	}
	rd := &w.readers[c.by]
	if rd.flight != c {
		return
	}
	rd.flight = nil
	switch {
	case a.outcome == growMisrouted:
		w.noteSplit(rd.node, c, a)
	case a.known && a.epoch == rd.epoch:
		rd.at[c.group] = a.at
	default:
		delete(rd.at, c.group)
	}
}

// fenceStep begins or continues a fence. The fence ends once each shard has applied it.
func (w *growWorld) fenceStep() {
	f := &w.fence
	if f.epoch == 0 || w.clock-f.since > 25 {
		node := w.anyUp()
		if node < 0 || w.calm && f.epoch == 0 {
			return
		}
		w.epoch++
		*f = growFence{epoch: w.epoch, node: node, done: map[growAnswered]bool{}, since: w.clock}
		w.note("a fence of epoch %d", f.epoch)
	}
	if !w.nodes[f.node].up {
		if f.node = w.anyUp(); f.node < 0 {
			f.node = 0
			return
		}
	}
	all := true
	for _, g := range w.served(f.node) {
		route := w.routeOf(g, g < w.parents && w.splitKnown(f.node, g))
		if f.done[w.answered(g, route)] {
			continue
		}
		all = false
		w.sendSection(&growSection{
			group: g, route: route, mode: growBegin, key: -1, epoch: f.epoch, by: growByFence, tried: w.clock,
		})
	}
	if all && w.fenced < f.epoch {
		w.fenced = f.epoch
		w.readers[0] = growReader{}
	}
}

// restoreStep begins, continues or ends a restore of a parent. The model restores no rows: it only
// closes and opens the shard. If the parent splits meanwhile, the restore fails, and a second
// restore opens all parts.
func (w *growWorld) restoreStep() {
	x := &w.restore
	node := w.anyUp()
	if node < 0 {
		return
	}
	c := &growSection{key: -1, by: growByRestore, tried: w.clock, group: x.parent}
	switch {
	case x.phase == 0 && !w.calm && w.chance(6):
		x.parent = w.rng.IntN(w.parents)
		if w.splitKnown(node, x.parent) {
			return
		}
		x.phase, x.since = 1, w.clock
		x.number++
		c.group = x.parent
		fallthrough
	case x.phase == 1:
		c.mode = growClose
	case x.phase == 2 && (w.calm || w.clock-x.since > 10):
		c.mode = growOpen
		if w.splitKnown(node, x.parent) {
			c.group = w.childOf(x.parent, w.rng.IntN(w.factor))
			if !w.view(node).groups[c.group].exists {
				w.learnAll(node)
			}
		}
	default:
		return
	}
	c.route, c.next = w.routeOf(c.group, c.group < w.parents && w.splitKnown(node, c.group)), x.number
	w.sendSection(c)
}
