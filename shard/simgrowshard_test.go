package shard

import "maps"

// This file is the state machine of a shard in the model of growth. A row is the set of the ops
// that were applied to it, so that the checks see each op. All states are plain values: a copy is a
// snapshot.

const (
	growIDs    = 12 // number of rows
	growKeys   = 12 // number of keys of requests; the last two contain a time
	growTimed  = 10 // the first key that contains a time
	growGroups = 6
)

// growSet is a set of ops.
type growSet [3]uint64

func (s *growSet) add(op int)      { s[op/64] |= 1 << (op % 64) }
func (s *growSet) has(op int) bool { return s[op/64]&(1<<(op%64)) != 0 }

// lacks returns an op of other that s lacks, or -1.
func (s *growSet) lacks(other *growSet) int {
	for op := range len(s) * 64 {
		if other.has(op) && !s.has(op) {
			return op
		}
	}
	return -1
}

// growSets has the sets of members that a replica has on disk. A set has the ops that were applied
// to its row, like the row itself. Sets may be ahead of the snapshot. A row counts an op only if
// the op changed the row's set. outcomes has these ops by entry.
type growSets struct {
	index    int               // index of the last entry applied to the sets
	staged   map[int]*growSets // by child: the members of its part; kept until no snapshot from before Split is left
	rows     [growIDs]growSet
	outcomes map[int][]int
}

// clone returns a copy for another node.
func (s *growSets) clone() growSets {
	c := *s
	c.outcomes, c.staged = maps.Clone(s.outcomes), maps.Clone(s.staged)
	return c
}

// change applies the ops of an entry and returns those that change their row.
func (w *growWorld) change(s *growSets, index int, ops []int) (changed []int) {
	if index <= s.index {
		return s.outcomes[index]
	}
	for _, op := range ops {
		if id := w.opID[op]; !s.rows[id].has(op) {
			s.rows[id].add(op)
			changed = append(changed, op)
		}
	}
	s.note(index, changed)
	return changed
}

func (s *growSets) note(index int, changed []int) {
	if s.outcomes == nil {
		s.outcomes = map[int][]int{}
	}
	s.outcomes[index], s.index = changed, index
}

type growRoute struct{ mod, res int }

type growOutcome uint8

const (
	growApplied growOutcome = iota
	growDuplicate
	growConflict
	growExpired
	growFull
	growMoved
	growMisrouted
)

// growName names a judge: its group, and whether the group had split. 0 means none.
type growName int8

type growKey struct {
	there     bool
	body      int8
	judge     growName // the other shard that judged the key; 0 if this shard did
	met, last int
}

// growMem is a small model of package dedup.
type growMem struct {
	now, floor int
	producers  uint64 // bit set of requests, by number
	keys       [growKeys]growKey
	dropped    [2*growGroups + 1]int // by judge

	known  bool // the shard has a position of the source
	epoch  int
	at     int
	closed bool
	number int // number of the last write of a restore
	split  int // log time of Split
}

type growShard struct {
	route     growRoute
	unborn    bool
	splitAt   int
	abandoned int // number of the last abandoned attempt; this and earlier attempts are void
	rows      [growIDs]growSet
	hot       [growIDs]uint8 // the hot lists: how many entries changed a row
	mem       growMem
}

// add adds changes to the hot lists.
func (s *growShard) add(changes *[growIDs]uint8) {
	for id, n := range changes {
		s.hot[id] += n
	}
	*changes = [growIDs]uint8{}
}

type growKind uint8

const (
	growNoop growKind = iota
	growConfEntry
	growSectionEntry
	growSplitEntry
	growAdoptEntry
	growAbandonEntry
)

// growEntry is an entry of a log. Nobody changes the values that it points to.
type growEntry struct {
	term, ident int
	kind        growKind
	time        int
	conf        growConf
	section     *growSection
	mod         int   // Split: the modulus before it
	attempt     int   // Split, Abandon
	checked     int   // Split: the term in which its leader checked the members
	split       int   // Adopt: the index of Split
	sum         int64 // Adopt: the digest of the part
}

type growMode uint8

const (
	growOps     growMode = iota
	growBegin            // a reader or a fence of a source: begins at position 0, or raises the epoch
	growAdvance          // a reader of a source: applies messages
	growClose            // a restore closes the shard
	growOpen             // a restore opens the shard again
)

type growSection struct {
	group  int
	route  growRoute
	mode   growMode
	req    *growReq // growOps
	key    int      // -1 for none
	body   int8
	born   int         // the time in the key
	judges [2]growName // if another shard judges the key: the judge's name at met, then its name before that
	met    int
	floor  int
	ops    []int

	epoch, prev, next int
	by                int // index of the reader, growByFence or growByRestore
	tried             int // the clock when the section was sent
}

// growResult is the answer to a section.
type growResult struct {
	outcome   growOutcome
	mod       int // modulus of the replica; 0 if the replica is unborn
	met       int
	floor     int
	known     bool
	epoch, at int
	judges    [2]growName // the names of the judge of met, for a part of the request
}

// growPart is a child's part, which Split parks.
type growPart struct {
	split  int
	shard  growShard
	marked [growIDs]bool // without growReadsBack: rows whose body is a record of P's process
	gone   *bool         // whether the process has removed its records
}

// nameOf returns the name that a shard with the route has as a judge.
func (w *growWorld) nameOf(route growRoute) growName {
	if route.mod == w.parents || !w.rules.has(growNamed) {
		return growName(route.res%growGroups) + 1
	}
	return growName(growGroups+route.res) + 1
}

// judgesOf returns the name that a shard had as a judge when it accepted a use, and the name before
// that.
func (w *growWorld) judgesOf(s *growShard, met int) (names [2]growName) {
	names[0] = w.nameOf(s.route)
	if s.route.mod > w.parents && w.rules.has(growChain) {
		names[1] = w.nameOf(growRoute{w.parents, s.route.res % w.parents})
		if met <= s.mem.split {
			names = [2]growName{names[1]}
		}
	}
	return names
}

// applySection applies a section.
func (w *growWorld) applySection(s *growShard, sets *growSets, e *growEntry, index int) growResult {
	c, m := e.section, &s.mem
	refused := growResult{outcome: growMisrouted, mod: s.route.mod}
	if s.unborn && w.rules.has(growUnborn) {
		return growResult{outcome: growMisrouted}
	}
	wrong := c.route != s.route
	if wrong && w.rules.has(growNames) && w.rules.has(growJudgesLast) {
		return refused
	}
	m.tick(e.time, w.horizon)
	outcome := w.judge(s, c)
	if wrong && w.rules.has(growNames) {
		return refused
	}
	if outcome == growApplied {
		for _, op := range w.change(sets, index, c.ops) {
			s.rows[w.opID[op]].add(op)
		}
	}
	a := growResult{outcome: outcome, mod: s.route.mod, known: m.known, epoch: m.epoch, at: m.at, met: m.now, floor: m.floor}
	if outcome == growMisrouted {
		return refused
	}
	if c.key >= 0 && outcome == growDuplicate {
		a.met = m.keys[c.key].last
	}
	a.judges = w.judgesOf(s, a.met)
	return a
}

func (m *growMem) tick(now, horizon int) {
	m.now = max(m.now, now)
	m.floor = max(m.floor, m.now-horizon)
	for i := range m.keys {
		if k := &m.keys[i]; k.there && k.last < m.floor {
			if k.judge != 0 {
				m.dropped[k.judge] = max(m.dropped[k.judge], k.met)
			}
			*k = growKey{}
		}
	}
}

// judge is dedup.Memory.Judge with the rules K1 to K3.
func (w *growWorld) judge(s *growShard, c *growSection) growOutcome {
	m := &s.mem
	switch c.mode {
	case growBegin:
		if m.closed || m.known && m.epoch >= c.epoch {
			return growMoved
		}
		if !m.known {
			m.known, m.at = true, 0
		}
		m.epoch = c.epoch
		return growApplied
	case growAdvance:
		if m.closed || !m.known || m.epoch != c.epoch || m.at != c.prev {
			return growMoved
		}
		m.at = c.next
		return growApplied
	case growClose, growOpen:
		if c.next <= m.number {
			return growDuplicate
		}
		m.number, m.closed = c.next, c.mode == growClose
		return growApplied
	}
	switch {
	case c.key < 0 && !c.req.producer:
		return growApplied
	case c.key < 0:
		if m.producers&(1<<c.req.n) != 0 {
			return growDuplicate
		}
		m.producers |= 1 << c.req.n
		return growApplied
	}
	k := &m.keys[c.key]
	if c.key >= growTimed {
		switch {
		case c.born < m.floor:
			return growExpired
		case k.there && k.body != c.body:
			return growConflict
		case k.there:
			return growDuplicate
		}
		*k = growKey{there: true, body: c.body, last: max(m.now, c.born)}
		return growApplied
	}
	judged := c.judges[0] != 0
	if !judged && w.rules.has(growOwnKeys) && w.hash(c.key)%s.route.mod != s.route.res {
		return growMisrouted
	}
	known := k.there && k.judge != 0 && (k.judge == c.judges[0] || k.judge == c.judges[1])
	switch {
	case judged && c.met <= m.dropped[c.judges[0]] && (!k.there || known && k.judge != c.judges[0]):
		return growExpired
	case !k.there:
	case known && k.met > c.met:
		return growExpired
	case known && k.met < c.floor:
	case k.body != c.body:
		return growConflict
	case judged && !known || !judged && k.judge != 0:
		return growFull
	default:
		return growDuplicate
	}
	*k = growKey{there: true, body: c.body, judge: c.judges[0], met: m.now, last: m.now}
	if judged {
		k.met = c.met
	}
	return growApplied
}

// relabel changes the records of keys that the shard no longer judges. They become records of the
// judge before Split.
func (w *growWorld) relabel(s *growShard, was growRoute) {
	for key := range growTimed {
		if k := &s.mem.keys[key]; k.there && k.judge == 0 && w.hash(key)%s.route.mod != s.route.res && w.rules.has(growRelabels) {
			k.judge = w.nameOf(was)
		}
	}
}

// applySplit applies a Split at an index to P's state, and returns the parts of P's children.
func (w *growWorld) applySplit(s *growShard, e *growEntry, index int, prepared func(child, id int) (growSet, bool)) (parts []growPart) {
	switch {
	case w.rules.has(growInTerm) && e.checked != e.term:
		return nil
	case w.rules.has(growOnce) && s.route.mod != e.mod, e.attempt <= s.abandoned && w.rules.has(growFirstWins):
		return nil
	case !w.rules.has(growOnce) && s.splitAt != 0: // the same split again
		s.route.mod = e.mod
	}
	s.mem.split = s.mem.now
	old := *s
	s.splitAt = index
	s.route.mod *= w.factor
	for j := 1; j < w.factor; j++ {
		part := growShard{route: growRoute{s.route.mod, old.route.res + j*e.mod}, mem: old.mem}
		if !w.rules.has(growMemory) {
			part.mem = growMem{known: old.mem.known, epoch: old.mem.epoch, at: old.mem.at}
		}
		if !w.rules.has(growPositions) {
			part.mem.known, part.mem.epoch, part.mem.at = false, 0, 0
		}
		for id := range growIDs {
			if id%part.route.mod == part.route.res {
				part.rows[id], part.hot[id] = old.rows[id], old.hot[id]
				if set, clean := prepared(j, id); clean {
					part.rows[id] = set
				}
			}
		}
		w.relabel(&part, old.route)
		parts = append(parts, growPart{split: index, shard: part})
	}
	for id := range growIDs {
		if id%s.route.mod != s.route.res {
			s.rows[id], s.hot[id] = growSet{}, 0
		}
	}
	w.relabel(s, old.route)
	return parts
}

// digest returns a hash of the shard.
func (s *growShard) digest() int64 {
	h := uint64(14695981039346656037)
	mix := func(n uint64) { h = (h ^ n) * 0x9e3779b97f4a7c15; h ^= h >> 29 }
	mix(uint64(s.route.mod)<<32 | uint64(s.route.res))
	for i := range s.rows {
		for _, n := range s.rows[i] {
			mix(n)
		}
	}
	for i, n := range s.hot {
		mix(uint64(n)<<8 | uint64(i))
	}
	m := &s.mem
	mix(uint64(m.now)<<32 | uint64(uint32(m.floor)))
	mix(m.producers)
	mix(uint64(s.abandoned))
	for _, k := range m.keys {
		if k.there {
			mix(uint64(k.body)<<48 | uint64(k.judge)<<40 | uint64(k.met)<<20 | uint64(k.last))
		} else {
			mix(1)
		}
	}
	mix(uint64(m.number)<<48 | uint64(m.at)<<32 | uint64(m.epoch))
	for _, n := range []bool{s.unborn, m.known, m.closed, s.splitAt != 0} {
		if n {
			mix(3)
		} else {
			mix(2)
		}
	}
	return int64(h)
}
