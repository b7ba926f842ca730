package dedup

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/codec"
)

// usesModel simulates clients that write with few keys to the shards of two keyspaces. Each shard has
// its own log time, and leaders with different clocks. Shards lose their leaders, answers are lost,
// copies of all parts arrive late, nodes delay writes that were judged, ops overflow, shards are
// restored, created again with another group, or split, and limits differ.
//
// Only the judge of a key decides what is one use. The model records a use when the judge accepts
// the key. The model checks that
//  1. no row counts a use twice, whatever answers the client gets;
//  2. when a write is acknowledged, each of its rows has counted the use once, unless the row's shard
//     was restored since;
//  3. a repeat has the outcome Refused if and only if the ops overflowed;
//  4. a judge that was not restored since accepts no other body while it has the key, and no other
//     body at any time if the key contains a time;
//  5. a shard refuses a request only for a reason that DESIGN.md gives.
//
// Some keys are used in calls of two kinds, each with a judge and a body of its own.
//
// If a restored judge accepts a key again, a shard may treat that as another use, unless the shard
// still has a record of the use and its last part came within a horizon. A judge that was created
// again has no earlier uses, except of keys that contain a time.
type usesModel struct {
	r      *rand.Rand
	rules  useRules
	seed   uint64
	shards []*usesShard
	rows   [2][usesRows]usesRow // by keyspace
	real   int64
	uses   map[string]*keyUse // the last use of each key and body
	late   []func()           // delayed copies of parts, and delayed writes
	groups uint32             // number of groups and names of judges created so far
	told   []string
	fault  string // the fault that a check found: "doubled", "lost", "mistold", "mixed" or "refused"; "" for none
	acks   int
	splits int // number of splits that are still allowed
}

// useRules are the rules that shards and nodes follow. Each field can change one of them.
type useRules struct {
	name  string
	today bool                                                  // use the rules of todaysShard
	carry func(use Use) Use                                     // changes the Use in parts
	names func(judge *usesShard, names []uint32) []uint32       // changes the names of the judge in parts
	tick  func(m *Memory)                                       // called after each Tick
	late  bool                                                  // copies of parts arrive late
	judge func(m *Memory, id *RequestID) Outcome                // called instead of Memory.Judge for a part
	ask   func(m *Memory, id *RequestID) Outcome                // called instead of Memory.Judge for the judge
	split func(m *Memory, group uint32, parts []Part) []*Memory // called instead of Memory.Split
}

// usesRows is the number of rows of each keyspace.
const usesRows = 12

// usesRow is a row. It knows which uses it has counted.
type usesRow struct {
	counts     map[*keyUse]int
	overflowed map[*keyUse]bool
}

type usesShard struct {
	space  int // number of the keyspace
	route  codec.Route
	life   uint32 // number of the group with which its ancestors began
	number uint32 // of its group; a part that a split left in its group has another number
	led    bool
	ahead  int64 // how far its leader's clock is ahead
	limits Limits
	memory *Memory
	today  todaysShard

	met      map[*keyUse]int64 // by use: Met in its last part
	past     []usesRecord      // all records that the memory ever had
	restores int
}

// usesRecord is a record of a use of a key in the memory of a shard.
type usesRecord struct {
	key, body string
	judge     uint32 // name of the judge
	life      uint32 // of the judge
	here      bool   // the shard is the judge
	timed     bool   // the key contains a time
	met, at   int64  // log times of the judge and of the shard
	restored  bool   // the shard was restored since
}

type keyUse struct {
	met  int64 // Met of the first acceptance
	last int64 // Met of the last acceptance, higher than met if a restored judge accepted the use again

	life     uint32 // of the judge
	restores int    // number of restores of the judge before it last accepted the use
}

// usesBodies are the bodies that clients send with a key. The last one is for calls of another
// kind.
var usesBodies = []string{"0", "1", "of another kind"}

// usesWrite is a write of a client with a key.
type usesWrite struct {
	key, body string
	judge     *usesShard  // the judge when the write arrived
	rows      []usesPlace // rows with ops
}

// usesPlace is a row of a write, and its shard when the write arrived.
type usesPlace struct {
	space, row int
	life       uint32
	restores   int
}

const usesHorizon = 10 * time.Minute

func newUsesModel(seed uint64, rules useRules) *usesModel {
	m := &usesModel{r: rand.New(rand.NewPCG(seed, 0)), rules: rules, seed: seed, real: minutes(1 << 20), uses: map[string]*keyUse{}}
	m.splits = max(0, m.r.IntN(5)-1)
	for space := range m.rows {
		for row := range m.rows[space] {
			m.forget(space, row)
		}
		shards := 1 + uint32(m.r.IntN(2))
		for residue := range shards {
			limits := Limits{KeyHorizon: usesHorizon, KeysMax: 1000, ProducerIdle: time.Hour, ProducersMax: 5}
			if !rules.today && m.r.IntN(8) == 0 {
				limits.KeysMax = 3
			}
			m.shards = append(m.shards, m.newShard(space, codec.Route{Modulus: shards, Residue: residue}, limits))
		}
	}
	return m
}

func (m *usesModel) newShard(space int, route codec.Route, limits Limits) *usesShard {
	m.groups++
	return &usesShard{
		space: space, route: route, life: m.groups, number: m.groups, led: true, limits: limits, memory: New(), today: newTodaysShard(),
		met: map[*keyUse]int64{},
	}
}

// forget makes a row forget all uses.
func (m *usesModel) forget(space, row int) {
	m.rows[space][row] = usesRow{map[*keyUse]int{}, map[*keyUse]bool{}}
}

// owner returns the shard of a row.
func (m *usesModel) owner(space, row int) *usesShard {
	return m.shard(space, func(route codec.Route) bool { return uint32(row)%route.Modulus == route.Residue })
}

// judgeOf returns the shard of a keyspace that judges a key.
func (m *usesModel) judgeOf(space int, key string) *usesShard {
	id := keyed(key, "")
	return m.shard(space, func(route codec.Route) bool { return id.Shard(int(route.Modulus)) == int(route.Residue) })
}

func (m *usesModel) shard(space int, has func(codec.Route) bool) *usesShard {
	return m.shards[slices.IndexFunc(m.shards, func(s *usesShard) bool { return s.space == space && has(s.route) })]
}

func (m *usesModel) say(format string, args ...any) {
	m.told = append(m.told, fmt.Sprintf("%6.1f ", float64(m.real-minutes(1<<20))/60000)+fmt.Sprintf(format, args...))
}

func (m *usesModel) fail(fault, format string, args ...any) {
	if m.fault == "" {
		m.fault = fault
		m.say(fault+": "+format, args...)
	}
}

// run does random steps until a check fails.
func (m *usesModel) run(steps int) {
	for range steps {
		m.real += []int64{0, 1, 1000, minutes(1), minutes(3), minutes(5)}[m.r.IntN(6)]
		at := m.r.IntN(len(m.shards))
		s := m.shards[at]
		switch n := m.r.IntN(21); {
		case n < 10:
			m.write()
		case n < 13:
			s.led = m.r.IntN(4) > 0
		case n == 13: // the shard gets a leader with another clock
			s.ahead = []int64{0, minutes(1), -minutes(1), minutes(9), -minutes(9), minutes(25), -minutes(25)}[m.r.IntN(7)]
			m.say("shard %d: clock ahead by %d min", s.number, s.ahead/60000)
		case n == 14 && !m.rules.today:
			s.limits.KeyHorizon = []time.Duration{usesHorizon, usesHorizon, usesHorizon / 3, 3 * usesHorizon, time.Second}[m.r.IntN(5)]
		case n == 15 && !m.rules.today && m.r.IntN(4) == 0:
			m.restore(s)
		case n == 15 && !m.rules.today && m.r.IntN(6) == 0:
			m.makeAnew(at)
		case n == 15:
			m.tick(s)
		case n == 16 && m.r.IntN(4) == 0 && s.memory.now > 0 && !m.rules.today:
			s.memory = reopened(s.memory)
		case n == 17 && m.splits > 0 && !m.rules.today:
			m.split(s)
		case n >= 17 && len(m.late) > 0:
			i := m.r.IntN(len(m.late))
			deliver := m.late[i]
			m.late[i] = m.late[len(m.late)-1]
			m.late = m.late[:len(m.late)-1]
			deliver()
		}
		if m.fault != "" {
			return
		}
	}
}

// restore restores a shard. The new rows have the effects of no uses.
func (m *usesModel) restore(s *usesShard) {
	m.say("shard %d: restored", s.number)
	m.tick(s)
	id := ByRestore(uint64(m.real), true)
	if s.memory.Judge(&id) == Applied {
		for row := range usesRows {
			if m.owner(s.space, row) == s {
				m.forget(s.space, row)
			}
		}
		for i := range s.past {
			s.past[i].restored = true
		}
		s.restores++
	}
}

// makeAnew replaces a shard by one with another group, as if its keyspace was dropped and created
// again.
func (m *usesModel) makeAnew(at int) {
	before := m.shards[at]
	for _, key := range m.keys() {
		for i, body := range usesBodies {
			if m.judgeOf(i/2, key) == before {
				delete(m.uses, key+body)
			}
		}
	}
	m.shards[at] = m.newShard(before.space, before.route, before.limits)
	m.say("shard %d: made anew as %d", before.number, m.shards[at].number)
	for row := range usesRows {
		if m.owner(before.space, row) == m.shards[at] {
			m.forget(before.space, row)
		}
	}
}

// split splits a shard into two or three parts.
func (m *usesModel) split(s *usesShard) {
	was, parts := *s, make([]Part, 2+m.r.IntN(2))
	modulus := was.route.Modulus * uint32(len(parts))
	if usesRows%modulus != 0 {
		return
	}
	for i := range parts {
		m.groups++
		parts[i] = Part{Route: codec.Route{Modulus: modulus, Residue: was.route.Residue + uint32(i)*was.route.Modulus}, Judge: m.groups}
	}
	m.say("shard %d splits at %d into %+v", s.number, s.memory.now, parts)
	m.splits--
	divide := (*Memory).Split
	if m.rules.split != nil {
		divide = m.rules.split
	}
	memories := append([]*Memory{s.memory}, divide(s.memory, was.life, parts)...)
	for i, part := range parts {
		p := s
		if i > 0 {
			p = &usesShard{}
			*p = was
			p.past, p.met = slices.Clone(was.past), maps.Clone(was.met)
			m.shards = append(m.shards, p)
		}
		p.memory, p.route, p.number = memories[i], part.Route, part.Judge
	}
	for _, p := range m.shards {
		for i := range p.past {
			r := &p.past[i]
			r.here = r.here && (r.timed || m.judgeOf(p.space, r.key) == p)
		}
	}
}

// namesAt returns the names that a shard had as a judge at a log time, the newest first.
func (s *usesShard) namesAt(met int64) (names []uint32) {
	if at := s.memory.JudgeNames().At(met); at[0] != 0 {
		return at[:]
	}
	return []uint32{s.life}
}

func (m *usesModel) tick(s *usesShard) {
	s.memory.Tick(m.real+s.ahead, s.limits)
	s.today.tick(m.real + s.ahead)
	if m.rules.tick != nil {
		m.rules.tick(s.memory)
	}
}

// keys returns the keys without a time.
func (m *usesModel) keys() (keys []string) {
	for n := range 3 {
		keys = append(keys, fmt.Sprint("key", n, "of", m.seed))
	}
	return keys
}

func (m *usesModel) write() {
	n := m.r.IntN(4)
	w := &usesWrite{body: usesBodies[m.r.IntN(12)/11]}
	if n == 3 && !m.rules.today { // a key with a time, the same for ten minutes
		w.key = uuidv7(m.real / minutes(10) * minutes(10))
	} else if w.key = m.keys()[n%3]; m.r.IntN(16) == 0 && !m.rules.today {
		w.body = usesBodies[2]
	}
	first := 0
	if w.body == usesBodies[2] {
		first = 1 // a call on the second keyspace alone
	}
	w.judge = m.judgeOf(first, w.key)
	for space := first; space < len(m.rows); space++ {
		for row := range usesRows {
			if s := m.owner(space, row); (7*row+5*n+len(w.body)+space)%4 == 0 || w.body == "1" {
				w.rows = append(w.rows, usesPlace{space: space, row: row, life: s.life, restores: s.restores})
			}
		}
	}
	if m.rules.late && m.r.IntN(8) == 0 {
		m.late = append(m.late, func() { m.askJudge(w) })
	}
	told := m.askJudge(w)
	if told == nil {
		return
	}
	if m.rules.late && m.r.IntN(8) == 0 {
		m.say("%s is held", w.key)
		m.late = append(m.late, func() { m.finish(w, told) })
		return
	}
	m.finish(w, told)
}

// byOwner returns rows of a write by their shard. It leaves out rows of shards that were made anew
// since the write arrived.
func (m *usesModel) byOwner(rows []usesPlace) (shards []*usesShard, byShard map[*usesShard][]usesPlace) {
	byShard = map[*usesShard][]usesPlace{}
	for _, row := range rows {
		s := m.owner(row.space, row.row)
		if s.life != row.life {
			continue
		}
		if byShard[s] == nil {
			shards = append(shards, s)
		}
		byShard[s] = append(byShard[s], row)
	}
	return shards, byShard
}

// finish passes the other parts of a write to their shards, after the judge has accepted the write.
func (m *usesModel) finish(w *usesWrite, told *judgment) {
	ok := told.ok
	shards, byShard := m.byOwner(told.others)
	for _, s := range shards {
		ok = m.part(w, s, byShard[s], told) && ok
	}
	if !ok {
		return
	}
	m.acks++
	m.say("%s is acknowledged", w.key)
	for _, row := range w.rows {
		s := m.owner(row.space, row.row)
		if n := m.rows[row.space][row.row].counts[told.use]; s.life == row.life && s.restores == row.restores && n != 1 {
			m.fail("lost", "row %d of shard %d counted the use of %d %d times", row.row, s.number, told.use.met, n)
		}
	}
}

// judgment is the answer of the judge of a key.
type judgment struct {
	Use
	use    *keyUse
	names  []uint32 // names of the judge at Met, the newest first
	life   uint32   // of the judge
	repeat bool
	others []usesPlace // rows of other shards
	ok     bool        // the node gets the answer
}

// askJudge passes a write to the judge of its key. It returns nil if the judge neither accepted the
// key nor recognised a repeat.
func (m *usesModel) askJudge(w *usesWrite) *judgment {
	s, id := m.judgeOf(w.judge.space, w.key), keyed(w.key, w.body)
	if others := slices.DeleteFunc(slices.Clone(m.shards), func(o *usesShard) bool {
		return o.life != w.judge.life || o.memory.judging.names == nil
	}); len(others) > 0 && id.born == 0 && m.r.IntN(4) == 0 {
		s = others[m.r.IntN(len(others))] // a node that does not know who judges
	}
	if !s.led || s.life != w.judge.life {
		return nil
	}
	m.tick(s)
	told := &judgment{life: s.life}
	room, records := s.memory.keyRecords() < s.limits.KeysMax, s.memory.keys.records.end+s.memory.ahead.records.end
	var outcome Outcome
	switch {
	case m.rules.today:
		outcome, told.Met = s.today.judge(&id)
		told.Floor = s.today.floor
	case m.rules.ask != nil:
		outcome = m.rules.ask(s.memory, &id)
	default:
		outcome = s.memory.Judge(&id)
	}
	if !m.rules.today {
		if told.Use = s.memory.NewUse(); outcome != Applied {
			told.Met = s.memory.Met(&id, outcome)
		}
		told.names = s.namesAt(told.Met)
		if m.rules.names != nil {
			told.names = m.rules.names(s, told.names)
		}
		m.checkRefusal(s, &id, w, told, outcome, room)
		m.remember(s, &id, w, told, records)
	}
	told.repeat = outcome != Applied
	m.say("%s body %s: judge %d at %d: outcome %d, met %d", w.key, w.body, s.number, s.memory.now, outcome, told.Met)
	_, byShard := m.byOwner(w.rows)
	told.others = slices.DeleteFunc(slices.Clone(w.rows), func(row usesPlace) bool { return slices.Contains(byShard[s], row) })
	use := m.uses[w.key+w.body]
	switch outcome {
	case Applied:
		// Within a horizon, a judge accepts a key again only after a restore. Such a second
		// acceptance is the same use. A key with a time never has a second use.
		if use == nil || use.last < told.Floor && id.born == 0 {
			use = &keyUse{met: told.Met, last: told.Met}
			m.uses[w.key+w.body] = use
		} else {
			use.last = told.Met
		}
		use.life, use.restores = s.life, s.restores
		m.checkBodies(w, s, told, id.born != 0)
		m.count(s, byShard[s], use, &id)
	case Duplicate, Refused:
		m.checkRepeat(byShard[s], use, outcome)
	default:
		return nil
	}
	s.met[use] = told.Met
	told.use, told.ok = use, m.r.IntN(10) > 0
	return told
}

// remember adds a record to the past of a shard if its memory has one more record than before.
func (m *usesModel) remember(s *usesShard, id *RequestID, w *usesWrite, told *judgment, before uint64) {
	if s.memory.keys.records.end+s.memory.ahead.records.end == before {
		return
	}
	r := usesRecord{key: w.key, body: w.body, judge: told.names[0], life: told.life, timed: id.born != 0, met: told.Met, at: s.memory.now}
	if id.judge() == 0 {
		r.here, r.judge, r.met = true, s.namesAt(r.at)[0], r.at
	}
	s.past = append(s.past, r)
}

// checkRefusal checks that DESIGN.md gives a reason for the outcome, if it is a refusal. room means
// that the shard had room for another record.
func (m *usesModel) checkRefusal(s *usesShard, id *RequestID, w *usesWrite, told *judgment, outcome Outcome, room bool) {
	here := id.judge() == 0
	var latest *usesRecord // of the key
	for i := range s.past {
		if r := &s.past[i]; r.key == w.key && !r.restored {
			latest = r
		}
	}
	good := true
	switch outcome {
	case Conflict:
		good = latest != nil && latest.body != w.body
	case Full:
		good = !room || latest != nil && (latest.life != told.life || latest.met > told.Met || latest.here != here)
	case Misrouted:
		good = here && m.judgeOf(s.space, w.key) != s && id.born == 0
	case Expired:
		dropped := slices.ContainsFunc(s.past, func(r usesRecord) bool {
			return r.judge == told.names[0] && r.met >= told.Met && r.at < s.memory.keyFloor
		})
		switch {
		case id.born != 0:
			good = id.born < s.memory.keyFloor || id.born > s.memory.now+s.limits.KeyHorizon.Milliseconds()
		default:
			good = !here && (dropped || latest != nil && latest.met > told.Met)
		}
	}
	if !good {
		m.fail("refused", "shard %d refuses %s, met %d, with outcome %d", s.number, w.key, told.Met, outcome)
	}
}

// checkBodies checks that a judge that accepts a key for a body has no use of the key with another
// body.
func (m *usesModel) checkBodies(w *usesWrite, s *usesShard, told *judgment, forEver bool) {
	for _, body := range usesBodies {
		other := m.uses[w.key+body]
		if body != w.body && other != nil && other.life == s.life && other.restores == s.restores && (forEver || other.last >= told.Floor) {
			m.fail("mixed", "shard %d accepted body %s of %s, and knows body %s", s.number, w.body, w.key, body)
		}
	}
}

// count records that rows of a shard have counted a use. At random, the ops overflow.
func (m *usesModel) count(s *usesShard, rows []usesPlace, use *keyUse, id *RequestID) {
	overflowed := !m.rules.today && m.r.IntN(6) == 0
	for _, at := range rows {
		row := &m.rows[at.space][at.row]
		if row.counts[use]++; row.counts[use] > 1 {
			m.fail("doubled", "row %d of shard %d counted the use of %d again", at.row, s.number, use.met)
		}
		row.overflowed[use] = overflowed
	}
	if overflowed {
		m.say("it overflowed")
		s.memory.SetRepeat(id, Refused)
	}
}

// checkRepeat checks that the outcome of a repeat of a counted use is Refused if and only if the
// ops overflowed.
func (m *usesModel) checkRepeat(rows []usesPlace, use *keyUse, outcome Outcome) {
	for _, at := range rows {
		if row := &m.rows[at.space][at.row]; row.counts[use] > 0 && row.overflowed[use] != (outcome == Refused) {
			m.fail("mistold", "row %d: the use of %d overflowed: %v", at.row, use.met, row.overflowed[use])
		}
	}
}

// part passes a part of a write to its shard. It reports whether the node gets an answer and counts
// it as success.
func (m *usesModel) part(w *usesWrite, s *usesShard, rows []usesPlace, told *judgment) bool {
	if m.rules.late && m.r.IntN(5) == 0 {
		m.late = append(m.late, func() { // the shard may have split meanwhile
			shards, byShard := m.byOwner(rows)
			for _, s := range shards {
				m.deliver(w, s, byShard[s], told)
			}
		})
	}
	return s.led && m.deliver(w, s, rows, told) && m.r.IntN(10) > 0
}

// deliver makes a shard judge a part. It reports whether the node counts the outcome as success.
func (m *usesModel) deliver(w *usesWrite, s *usesShard, rows []usesPlace, told *judgment) bool {
	m.tick(s)
	id, use := keyed(w.key, w.body), told.use
	if id.born == 0 && !m.rules.today {
		stated := told.Use
		if m.rules.carry != nil {
			stated = m.rules.carry(stated)
		}
		id = judgedBy(id, stated.Met, stated.Floor, told.names[0], told.names[1:]...)
	}
	known, _, _ := s.memory.key(&id)
	room, records := s.memory.keyRecords() < s.limits.KeysMax, s.memory.keys.records.end+s.memory.ahead.records.end
	outcome, ok := m.judgePart(s, id, told)
	m.say("%s: shard %d at %d: outcome %d", w.key, s.number, s.memory.now, outcome)
	if !m.rules.today {
		m.checkRefusal(s, &id, w, told, outcome, room)
		m.remember(s, &id, w, told, records)
	}
	if outcome == Applied {
		if use.last > use.met && (known == nil || s.met[use] < told.Floor) {
			for _, row := range rows {
				m.rows[row.space][row.row].counts[use] = 0
			}
		}
		m.count(s, rows, use, &id)
	} else if ok {
		m.checkRepeat(rows, use, outcome)
	}
	if ok {
		s.met[use] = told.Met
	}
	return ok
}

// judgePart makes a shard judge a part. ok reports whether the node counts the outcome as success.
func (m *usesModel) judgePart(s *usesShard, id RequestID, told *judgment) (outcome Outcome, ok bool) {
	switch {
	case m.rules.today:
		if told.repeat {
			id.born = told.Met
		}
		outcome, last := s.today.judge(&id)
		outlived := outcome == Duplicate && last < told.Met-usesHorizon.Milliseconds()/2
		return outcome, outcome <= Duplicate && !outlived
	case m.rules.judge != nil:
		outcome = m.rules.judge(s.memory, &id)
	default:
		outcome = s.memory.Judge(&id)
	}
	return outcome, outcome <= Duplicate || outcome == Refused
}

// reopened returns a memory that has loaded a snapshot of o.
func reopened(o *Memory) *Memory {
	v, again := o.Capture(), New()
	for _, err := range []error{
		again.restoreProducers(v.appendProducers(nil)), again.restoreForgotten(v.appendForgotten(nil)), again.restoreKeys(v.appendKeys(nil, 0)),
	} {
		if err != nil {
			panic(err)
		}
	}
	if v.judging.names != nil {
		if err := again.judging.load(v.judging.appendTo(nil)); err != nil {
			panic(err)
		}
	}
	again.limits = o.limits
	return again
}

// todaysShard judges keys by older rules, which are wrong:
//
//  1. a part contains the judge's time only if the request is a repeat for the judge;
//  2. a shard keeps a key by its own time or the judge's, whichever is later;
//  3. a record is of the same use if it is at most half a horizon older than the judge's time.
type todaysShard struct {
	now, floor int64
	keys       map[[16]byte]keyRecord
}

func newTodaysShard() todaysShard { return todaysShard{keys: map[[16]byte]keyRecord{}} }

func (o *todaysShard) tick(now int64) {
	o.now = max(o.now, now)
	o.floor = max(o.floor, o.now-usesHorizon.Milliseconds())
}

func (o *todaysShard) judge(id *RequestID) (outcome Outcome, last int64) {
	if known, ok := o.keys[id.key]; ok && known.last >= o.floor {
		if known.body != id.body {
			return Conflict, known.last
		}
		return Duplicate, known.last
	}
	if id.born != 0 && id.born < o.floor {
		return Expired, 0
	}
	last = max(o.now, id.born)
	o.keys[id.key] = keyRecord{key: id.key, body: id.body, last: last}
	return Applied, last
}

// faults runs the model until it has found each of the wanted faults. The argument runs bounds the
// number of runs. If none are wanted, any fault fails the test. It returns how often each fault
// occurred.
func faults(t *testing.T, rules useRules, runs uint64, wanted ...string) map[string]int {
	t.Helper()
	found, acks := map[string]int{}, 0
	missing := func(fault string) bool { return found[fault] == 0 }
	made := uint64(0)
	for ; made < runs && (len(wanted) == 0 || slices.ContainsFunc(wanted, missing)); made++ {
		m := newUsesModel(made, rules)
		m.run(120)
		if acks += m.acks; m.fault == "" {
			continue
		}
		if found[m.fault]++; len(wanted) == 0 {
			t.Fatalf("%s, seed %d:\n%s", rules.name, made, strings.Join(m.told, "\n"))
		}
	}
	for _, fault := range slices.DeleteFunc(wanted, func(fault string) bool { return !missing(fault) }) {
		t.Errorf("%s: no use was %s in %d runs", rules.name, fault, runs)
	}
	if acks < int(made) {
		t.Errorf("%s: %d writes are acknowledged in %d runs", rules.name, acks, made)
	}
	t.Logf("%s: %v in %d runs with %d acknowledged writes", rules.name, found, made, acks)
	return found
}

// With the rules of DESIGN.md, the model finds no fault.
func TestUsesAgainstModel(t *testing.T) {
	runs := uint64(6000)
	if testing.Short() {
		runs = 1500
	}
	faults(t, useRules{name: "as designed", late: true}, runs)
}

// If one of the rules is missing, the model finds the resulting faults.
func TestUsesModelFindsFaults(t *testing.T) {
	const runs = 1500
	faults(t, useRules{name: "one time for repeats only", today: true}, runs, "lost", "doubled")
	faults(t, useRules{name: "a judge forgets a key early to make room", tick: func(m *Memory) {
		if m.keyRecords() > 2 {
			m.keys = newKeyQueue()
		}
	}}, runs, "doubled", "mixed")
	faults(t, useRules{name: "no floor of what was dropped", tick: func(m *Memory) { clear(m.dropped) }}, runs, "doubled")
	faults(t, useRules{name: "any earlier use counts for the present one", carry: func(use Use) Use { return Use{Met: use.Met, Floor: 0} }}, runs, "lost")
	faults(t, useRules{name: "no earlier use counts for the present one", carry: func(use Use) Use { return Use{Met: use.Met, Floor: use.Met} }}, runs, "doubled")
	faults(t, useRules{name: "a late part of an earlier use counts", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		if known, judge, met := m.key(id); known != nil && judge == id.judge() && met > id.use.Met {
			return Applied
		}
		return m.Judge(id)
	}}, runs, "doubled")
	// restored returns the record of the same use, which a restored judge accepted again, or nil
	restored := func(m *Memory, id *RequestID) *keyRecord {
		if known, judge, met := m.key(id); known != nil && judge == id.judge() && met < id.use.Met && met >= id.use.Floor && known.body == id.body {
			return known
		}
		return nil
	}
	faults(t, useRules{name: "the record of a use that its judge accepted anew stays as it was", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		if known := restored(m, id); known != nil {
			return known.again
		}
		return m.Judge(id)
	}}, 4*runs, "doubled")
	faults(t, useRules{name: "the new record of a use forgets that it overflowed", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		anew := restored(m, id) != nil
		outcome := m.Judge(id)
		if anew && outcome == Refused {
			m.SetRepeat(id, Duplicate)
		}
		return outcome
	}}, 4*runs, "mistold")
	faults(t, useRules{name: "a use of another judge counts for this one's", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		if known, judge, _ := m.key(id); known != nil && judge != id.judge() && known.body == id.body {
			return known.again
		}
		return m.Judge(id)
	}}, runs, "lost")
	// undivided calls Judge as if the shard had never split
	undivided := func(m *Memory, id *RequestID) Outcome {
		defer func(j judging) { m.judging = j }(m.judging)
		m.judging = judging{}
		return m.Judge(id)
	}
	faults(t, useRules{name: "any part judges any key", late: true, ask: undivided}, runs, "mixed", "doubled")
	faults(t, useRules{name: "the undivided shard judged no use", late: true, judge: undivided}, runs, "refused")
	faults(t, useRules{name: "a part forgets what was dropped", late: true, split: func(m *Memory, group uint32, parts []Part) []*Memory {
		others := m.Split(group, parts)
		for _, o := range others {
			clear(o.dropped)
		}
		return others
	}}, 4*runs, "doubled")
	faults(t, useRules{name: "a part of a write lacks the earlier names of the judge", late: true, names: func(_ *usesShard, names []uint32) []uint32 {
		return names[:1]
	}}, runs, "refused")
	faults(t, useRules{name: "a judge states its present name for each use", late: true, names: func(judge *usesShard, _ []uint32) []uint32 {
		return judge.namesAt(math.MaxInt64)
	}, judge: func(m *Memory, id *RequestID) Outcome {
		for _, judge := range id.use.Names[1:] {
			if known, _, _ := m.key(id); known == nil && judge != 0 && id.use.Met <= m.dropped[judge] {
				return Expired
			}
		}
		return m.Judge(id)
	}}, 4*runs, "doubled", "refused")
	faults(t, useRules{name: "a use replaces one of an earlier name, however late", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		if _, judge, _ := m.key(id); id.continues(judge) {
			if met, has := m.dropped[id.judge()]; has {
				defer func() { m.dropped[id.judge()] = max(met, m.dropped[id.judge()]) }()
				delete(m.dropped, id.judge())
			}
		}
		return m.Judge(id)
	}}, 4*runs, "doubled")
}
