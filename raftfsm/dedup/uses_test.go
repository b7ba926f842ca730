package dedup

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// usesModel simulates clients that write with few keys to several shards. Each shard has its own
// log time, and leaders with different clocks. Shards lose their leaders, answers are lost, copies
// of all parts arrive late, nodes delay writes that were judged, ops overflow, shards are restored
// or created again with another group, and limits differ.
//
// Only the judge of a key decides what is one use. The model records a use when the judge accepts
// the key. The model checks that
//  1. no shard counts a use twice, whatever answers the client gets;
//  2. when a write is acknowledged, each shard that has ops of the write has counted the use
//     once, unless the shard was restored since;
//  3. a repeat has the outcome Refused if and only if the ops overflowed;
//  4. a judge that was not restored since accepts no other body while it has the key, and no other
//     body at any time if the key contains a time.
//
// Some keys are used in calls of two kinds, each with a judge and a body of its own.
//
// If a restored judge accepts a key again, a shard may treat that as another use, unless the shard
// still has a record of the use and its last part came within a horizon. A judge that was created
// again has no earlier uses, except of keys that contain a time.
type usesModel struct {
	r      *rand.Rand
	rules  useRules
	shards []*usesShard
	real   int64
	uses   map[string]*keyUse // the last use of each key and body
	late   []func()           // delayed copies of parts, and delayed writes
	groups uint32             // number of groups created so far
	told   []string
	fault  string // the fault that a check found: "doubled", "lost", "mistold" or "mixed"; "" for none
	acks   int
}

// useRules are the rules that shards and nodes follow. Each field can change one of them.
type useRules struct {
	name  string
	today bool                                   // use the rules of todaysShard
	carry func(use Use) Use                      // changes the Use in parts
	tick  func(m *Memory)                        // called after each Tick
	late  bool                                   // copies of parts arrive late
	judge func(m *Memory, id *RequestID) Outcome // called instead of Memory.Judge
}

type usesShard struct {
	number uint32 // of its group
	led    bool
	ahead  int64 // how far its leader's clock is ahead
	limits Limits
	memory *Memory
	today  todaysShard
	counts map[*keyUse]int

	overflowed map[*keyUse]bool
	met        map[*keyUse]int64 // by use: Met in its last part
	restores   int
}

type keyUse struct {
	met  int64 // Met of the first acceptance
	last int64 // Met of the last acceptance, higher than met if a restored judge accepted the use again

	judge    *usesShard
	restores int // number of restores of the judge before it last accepted the use
}

// usesBodies are the bodies that clients send with a key. The last one is for calls of another
// kind.
var usesBodies = []string{"0", "1", "of another kind"}

// judgeOf returns the number of the shard that judges key n, in the kind of call that has the body.
func (m *usesModel) judgeOf(n int, body string) int {
	if body == usesBodies[2] {
		n++
	}
	return n % len(m.shards)
}

// usesWrite is a write of a client with a key.
type usesWrite struct {
	key, body string
	judge     int
	on        []int        // numbers of the shards that have ops
	shards    []*usesShard // all shards when the write arrived
	restores  []int        // number of restores of each shard when the write arrived
}

const usesHorizon = 10 * time.Minute

func newUsesModel(seed uint64, rules useRules) *usesModel {
	m := &usesModel{r: rand.New(rand.NewPCG(seed, 0)), rules: rules, real: minutes(1 << 20), uses: map[string]*keyUse{}}
	for range 2 + m.r.IntN(3) {
		limits := Limits{KeyHorizon: usesHorizon, KeysMax: 1000, ProducerIdle: time.Hour, ProducersMax: 5}
		if !rules.today && m.r.IntN(8) == 0 {
			limits.KeysMax = 3
		}
		m.shards = append(m.shards, m.newShard(limits))
	}
	return m
}

func (m *usesModel) newShard(limits Limits) *usesShard {
	m.groups++
	return &usesShard{
		number: m.groups, led: true, limits: limits, memory: New(), today: newTodaysShard(),
		counts: map[*keyUse]int{}, overflowed: map[*keyUse]bool{}, met: map[*keyUse]int64{},
	}
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
		switch n := m.r.IntN(20); {
		case n < 10:
			m.write()
		case n < 13:
			s.led = !s.led
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
		case n == 16 && m.r.IntN(4) == 0 && len(m.told) > 0 && !m.rules.today:
			s.memory = reopened(s.memory)
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
		clear(s.counts)
		clear(s.overflowed)
		s.restores++
	}
}

// makeAnew replaces a shard by one with another group, as if its keyspace was dropped and created
// again.
func (m *usesModel) makeAnew(at int) {
	before := m.shards[at]
	before.led = false
	m.shards[at] = m.newShard(before.limits)
	m.say("shard %d: made anew as %d", before.number, m.shards[at].number)
	for n := range 3 {
		for _, body := range usesBodies {
			if m.judgeOf(n, body) == at {
				delete(m.uses, fmt.Sprint("key", n, body))
			}
		}
	}
}

func (m *usesModel) tick(s *usesShard) {
	s.memory.Tick(m.real+s.ahead, s.limits)
	s.today.tick(m.real + s.ahead)
	if m.rules.tick != nil {
		m.rules.tick(s.memory)
	}
}

func (m *usesModel) write() {
	n := m.r.IntN(4)
	w := usesWrite{key: fmt.Sprint("key", n), body: usesBodies[m.r.IntN(12)/11]}
	if n == 3 && !m.rules.today { // a key with a time, the same for ten minutes
		w.key = uuidv7(m.real / minutes(10) * minutes(10))
	} else if m.r.IntN(16) == 0 && !m.rules.today {
		w.body = usesBodies[2]
	}
	w.judge = m.judgeOf(n, w.body)
	for s := range m.shards {
		if (s+n+len(w.body))%3 != 0 || w.body == "1" {
			w.on = append(w.on, s)
		}
	}
	w.shards = slices.Clone(m.shards)
	for _, s := range w.shards {
		w.restores = append(w.restores, s.restores)
	}
	if m.rules.late && m.r.IntN(8) == 0 {
		m.late = append(m.late, func() { m.askJudge(&w) })
	}
	use, told, ok := m.askJudge(&w)
	if use == nil {
		return
	}
	if m.rules.late && m.r.IntN(8) == 0 {
		m.say("%s is held", w.key)
		m.late = append(m.late, func() { m.finish(&w, use, told, ok) })
		return
	}
	m.finish(&w, use, told, ok)
}

// finish passes the other parts of a write to their shards, after the judge has accepted the write.
func (m *usesModel) finish(w *usesWrite, use *keyUse, told judgment, ok bool) {
	for _, s := range w.on {
		if s != w.judge {
			ok = m.part(w, s, use, told) && ok
		}
	}
	if !ok {
		return
	}
	m.acks++
	m.say("%s is acknowledged", w.key)
	for _, on := range w.on {
		if s := w.shards[on]; s.restores == w.restores[on] && s.counts[use] != 1 {
			m.fail("lost", "shard %d counted the use of %d %d times", s.number, use.met, s.counts[use])
		}
	}
}

// judgment is the answer of the judge of a key.
type judgment struct {
	Use
	repeat bool
}

// askJudge passes a write to the judge of its key. use is nil if the judge neither accepted the key
// nor recognised a repeat. ok is false if the node gets no answer.
func (m *usesModel) askJudge(w *usesWrite) (use *keyUse, told judgment, ok bool) {
	s := w.shards[w.judge]
	if !s.led {
		return nil, told, false
	}
	m.tick(s)
	id := keyed(w.key, w.body)
	var outcome Outcome
	if m.rules.today {
		outcome, told.Met = s.today.judge(&id)
		told.Floor = s.today.floor
	} else {
		outcome = s.memory.Judge(&id)
		if told.Use = s.memory.NewUse(); outcome != Applied {
			told.Met = s.memory.Met(&id, outcome)
		}
	}
	told.repeat = outcome != Applied
	m.say("%s body %s: judge %d at %d: outcome %d, met %d", w.key, w.body, s.number, s.memory.now, outcome, told.Met)
	switch outcome {
	case Applied:
		use = m.uses[w.key+w.body]
		// Within a horizon, a judge accepts a key again only after a restore. Such a second
		// acceptance is the same use. A key with a time never has a second use.
		if use == nil || use.last < told.Floor && id.born == 0 {
			use = &keyUse{met: told.Met, last: told.Met}
			m.uses[w.key+w.body] = use
		} else {
			use.last = told.Met
		}
		use.judge, use.restores = s, s.restores
		m.checkBodies(w, s, told, id.born != 0)
		for _, on := range w.on {
			if on == w.judge {
				m.count(s, use, &id)
			}
		}
	case Duplicate, Refused:
		use = m.uses[w.key+w.body]
		m.checkRepeat(s, use, outcome)
	default:
		return nil, told, false
	}
	return use, told, m.r.IntN(10) > 0
}

// checkBodies checks that a judge that accepts a key for a body has no use of the key with another
// body.
func (m *usesModel) checkBodies(w *usesWrite, s *usesShard, told judgment, forEver bool) {
	for _, body := range usesBodies {
		other := m.uses[w.key+body]
		if body != w.body && other != nil && other.judge == s && other.restores == s.restores && (forEver || other.last >= told.Floor) {
			m.fail("mixed", "shard %d accepted body %s of %s, and knows body %s", s.number, w.body, w.key, body)
		}
	}
}

// count records that a shard has counted a use. At random, the ops overflow.
func (m *usesModel) count(s *usesShard, use *keyUse, id *RequestID) {
	if s.counts[use]++; s.counts[use] > 1 {
		m.fail("doubled", "shard %d counted the use of %d again", s.number, use.met)
	}
	s.overflowed[use] = !m.rules.today && m.r.IntN(6) == 0
	if s.overflowed[use] {
		m.say("it overflowed")
		s.memory.SetRepeat(id, Refused)
	}
}

// checkRepeat checks that the outcome of a repeat of a counted use is Refused if and only if the
// ops overflowed.
func (m *usesModel) checkRepeat(s *usesShard, use *keyUse, outcome Outcome) {
	if counted := s.counts[use] > 0; counted && s.overflowed[use] != (outcome == Refused) {
		m.fail("mistold", "shard %d: the use of %d overflowed: %v", s.number, use.met, s.overflowed[use])
	}
}

// part passes a part of a write to its shard. It reports whether the node gets an answer and counts
// it as success.
func (m *usesModel) part(w *usesWrite, on int, use *keyUse, told judgment) bool {
	s := w.shards[on]
	id := keyed(w.key, w.body)
	if id.born == 0 && !m.rules.today {
		stated := told.Use
		if m.rules.carry != nil {
			stated = m.rules.carry(stated)
		}
		id = id.JudgedBy(w.shards[w.judge].number, stated)
	}
	deliver := func() bool {
		m.tick(s)
		forgot := s.memory.key(id.key) == nil
		outcome, ok := m.judgePart(s, id, told)
		m.say("%s: shard %d at %d: outcome %d", w.key, s.number, s.memory.now, outcome)
		if outcome == Applied {
			if use.last > use.met && (forgot || s.met[use] < told.Floor) {
				s.counts[use] = 0
			}
			m.count(s, use, &id)
		} else if ok {
			m.checkRepeat(s, use, outcome)
		}
		if ok {
			s.met[use] = told.Met
		}
		return ok
	}
	if m.rules.late && m.r.IntN(5) == 0 {
		m.late = append(m.late, func() { deliver() })
	}
	return s.led && deliver() && m.r.IntN(10) > 0
}

// judgePart makes a shard judge a part. ok reports whether the node counts the outcome as success.
func (m *usesModel) judgePart(s *usesShard, id RequestID, told judgment) (outcome Outcome, ok bool) {
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
		again.restoreProducers(v.appendProducers(nil)), again.restoreForgotten(v.appendForgotten(nil)), again.restoreKeys(v.appendKeys(nil)),
	} {
		if err != nil {
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
	faults(t, useRules{name: "as designed", late: true}, 6000)
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
	faults(t, useRules{name: "any earlier use counts for the present one", carry: func(use Use) Use { return Use{use.Met, 0} }}, runs, "lost")
	faults(t, useRules{name: "no earlier use counts for the present one", carry: func(use Use) Use { return Use{use.Met, use.Met} }}, runs, "doubled")
	faults(t, useRules{name: "a late part of an earlier use counts", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		if known := m.key(id.key); known != nil && known.judge == id.judge && known.met > id.use.Met {
			return Applied
		}
		return m.Judge(id)
	}}, runs, "doubled")
	// whether the record is of the same use, which a restored judge accepted again
	restored := func(known *keyRecord, id *RequestID) bool {
		return known != nil && known.judge == id.judge && known.met < id.use.Met && known.met >= id.use.Floor && known.body == id.body
	}
	faults(t, useRules{name: "the record of a use that its judge accepted anew stays as it was", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		if known := m.key(id.key); restored(known, id) {
			return known.again
		}
		return m.Judge(id)
	}}, 4*runs, "doubled")
	faults(t, useRules{name: "the new record of a use forgets that it overflowed", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		anew := restored(m.key(id.key), id)
		outcome := m.Judge(id)
		if anew && outcome == Refused {
			m.SetRepeat(id, Duplicate)
		}
		return outcome
	}}, 4*runs, "mistold")
	faults(t, useRules{name: "a use of another judge counts for this one's", late: true, judge: func(m *Memory, id *RequestID) Outcome {
		if known := m.key(id.key); known != nil && known.judge != id.judge && known.body == id.body {
			return known.again
		}
		return m.Judge(id)
	}}, runs, "lost")
}
