package dedup

import "maps"

// Outcome is the outcome of one request of an entry.
type Outcome uint8

const (
	// Applied means that the ops were applied, except those in Result.Overflows.
	Applied Outcome = iota
	// Duplicate means that the request was applied before. The result has the current rows.
	Duplicate
	// Conflict means that the key was used for another body. Nothing was applied.
	Conflict
	// Expired means that the request is too old: the memory may have forgotten whether it was
	// applied. Nothing was applied now.
	Expired
	// Full means that the memory cannot store the key now: it has KeysMax keys, or it has a use of
	// this key from another judge. Nothing was applied.
	Full
	// Refused means that the request was judged before, and all its ops overflowed at that time.
	// Nothing was applied, neither then nor now. The result has the current rows.
	Refused
	// PartlyRefused means that the request was judged before, and some but not all of its ops
	// overflowed at that time. The memory does not record which ops. Nothing was applied now. The
	// result has the current rows.
	PartlyRefused
	// Moved means that a section of a source does not fit the position of its partition, or only
	// reads the position. Nothing was applied.
	Moved
	// Misrouted means that the request has the route of another shard, or a key that another part of
	// a split shard judges. It was not judged.
	Misrouted
)

const (
	// seqWindow is the length of the window, ending at a producer's highest number, in which
	// numbers may arrive in any order.
	seqWindow = 64
	// droppedPerEntryMax bounds the records of each kind that one entry drops. If all records
	// expire at once, dropping them all would delay the following entries by a tenth of a second.
	// An expired record counts as absent even before it is dropped.
	droppedPerEntryMax = 4096
)

// Memory records which requests a group has applied. It is replicated state: its only time is the
// log's own, and replicas that applied the same entries have the same bytes (see state.go).
type Memory struct {
	now    int64 // the log time, in Unix milliseconds
	limits Limits

	// ahead contains the keys whose own time was ahead of the log time when they arrived. keys
	// contains all others. Records in ahead stay longer, and would otherwise delay the removal of
	// those behind them.
	keys, ahead keyQueue
	// keyFloor is one key horizon before now. It never falls, even if the horizon grows. The memory
	// refuses a key that contains a time before keyFloor, and remembers every applied key that was
	// created or arrived later.
	keyFloor int64
	// dropped maps the group of a judge to the highest Use.Met of all dropped records of its uses.
	dropped map[uint32]int64

	producers producers
	// idleFloor is one producer idle time before now. It never falls. The memory forgets producers
	// that were last used before idleFloor.
	idleFloor int64

	forgotten forgottenProducers

	positions positions

	judging judging
}

// New returns an empty memory.
func New() *Memory {
	return &Memory{
		keys: newKeyQueue(), ahead: newKeyQueue(), dropped: map[uint32]int64{},
		producers: newProducers(), forgotten: newForgottenProducers(), positions: newPositions(),
	}
}

// Split makes this the memory of the first part of a shard, and returns the memories of the other
// parts. group is the number of the shard's group. All parts have copies of the memory, which share
// blocks of records and indexes.
func (o *Memory) Split(group uint32, parts []Part) (others []*Memory) {
	for _, part := range parts[1:] {
		others = append(others, &Memory{
			now: o.now, limits: o.limits, keys: o.keys.split(), ahead: o.ahead.split(), keyFloor: o.keyFloor, dropped: maps.Clone(o.dropped),
			producers: o.producers.split(), idleFloor: o.idleFloor, forgotten: o.forgotten.split(), positions: o.positions.capture(),
			judging: o.judging.split(group, o.now, part),
		})
	}
	o.judging = o.judging.split(group, o.now, parts[0])
	return others
}

// Tick sets the log time to now, unless that is earlier. It also drops some of the expired records.
func (o *Memory) Tick(now int64, limits Limits) {
	o.now, o.limits = max(o.now, now), limits
	o.keyFloor = max(o.keyFloor, o.now-limits.KeyHorizon.Milliseconds())
	o.idleFloor = max(o.idleFloor, o.now-limits.ProducerIdle.Milliseconds())
	for n := 0; n < droppedPerEntryMax && o.dropKey(); n++ {
	}
	for n := 0; n < droppedPerEntryMax && o.forgetProducer(); n++ {
	}
	for n := 0; n < droppedPerEntryMax && o.forgotten.order.len() > forgottenPerProducer*limits.ProducersMax; n++ {
		o.forgotten.drop()
	}
}

// forgetProducer forgets the least recently used producer if it was idle for too long,
// or if a lower limit left too many producers.
func (o *Memory) forgetProducer() bool {
	slot := o.producers.oldest()
	if slot == 0 || o.producers.at(slot).used >= o.idleFloor && o.producers.len <= o.limits.ProducersMax {
		return false
	}
	o.forget(slot)
	return true
}

// dropKey drops the first record of a queue if it has expired.
func (o *Memory) dropKey() bool {
	r, ok := o.keys.drop(o.keyFloor)
	if !ok {
		_, ok = o.ahead.drop(o.keyFloor) // keys with a time, which have no judge
		return ok
	}
	if judge, met := o.judging.of(&r); judge != 0 {
		o.dropped[judge] = max(o.dropped[judge], met)
	}
	return true
}

// Now returns the latest time that a leader stamped, in Unix milliseconds.
func (o *Memory) Now() int64 { return o.now }

// Sizes returns the numbers of keys and producers in the memory, including expired records that
// were not dropped yet.
func (o *Memory) Sizes() (keys, producers int) { return o.keyRecords(), o.producers.len }

func (o *Memory) keyRecords() int { return o.keys.records.len() + o.ahead.records.len() }

// key returns the record of the key of a request, or nil, and the judge and the Met of the recorded
// use. They are 0 if this shard judged the use itself.
func (o *Memory) key(id *RequestID) (known *keyRecord, judge uint32, met int64) {
	if known = o.keys.find(id.key); known == nil {
		known = o.ahead.find(id.key)
	}
	if known != nil && id.born == 0 {
		judge, met = o.judging.of(known)
	}
	if known != nil && judge == 0 && known.last < o.keyFloor {
		return nil, 0, 0
	}
	return known, judge, met
}

// Judge decides whether a request may be applied. If so, it records the request and returns
// Applied.
func (o *Memory) Judge(id *RequestID) Outcome {
	switch id.kind {
	case byProducer:
		return o.judgeProducer(id)
	case byKey:
		return o.judgeKey(id)
	case byRestore:
		outcome := o.judgeProducer(id)
		if outcome == Applied {
			o.forgetClients()
		}
		return outcome
	case bySource:
		return o.positions.judge(id.section)
	case byRestorePositions:
		outcome := o.judgeProducer(id)
		if outcome == Applied {
			o.positions.restore(id.restored)
		}
		return outcome
	}
	return Applied
}

// forgetClients forgets all requests of clients, because a restore replaces their effects. It keeps
// the record of the restores, and the times and floors. So the memory still refuses a key that was
// created too long ago.
func (o *Memory) forgetClients() {
	slot, _ := o.producers.find([]byte(restoreProducer))
	kept := *o.producers.at(slot)
	fresh := New()
	fresh.now, fresh.limits, fresh.keyFloor, fresh.idleFloor = o.now, o.limits, o.keyFloor, o.idleFloor
	fresh.dropped = o.dropped
	fresh.positions = o.positions // another write of the restore sets them
	fresh.judging = o.judging
	fresh.producers.add(kept)
	*o = *fresh
}

// judgeKey judges a request with a key, and records an accepted use. DESIGN.md has the rules and
// the reasons for them.
func (o *Memory) judgeKey(id *RequestID) Outcome {
	if id.judge() == 0 && id.born == 0 && o.judging.foreign(&id.key) {
		return Misrouted
	}
	known, judge, met := o.key(id)
	outcome, again := Applied, Duplicate
	same, earlier := judge == id.judge(), id.continues(judge)
	oneTime := id.judge() != 0 && (same || earlier) // met and id.use.Met are times of one log, or of logs that continue each other
	switch {
	case known == nil:
		if o.isTooOld(id) {
			return Expired
		}
	case oneTime && met > id.use.Met:
		return Expired // the judge has accepted a later use of the key
	case earlier && o.isTooOld(id):
		return Expired
	case oneTime && met < id.use.Floor:
		// The judge has forgotten the recorded use. The new use replaces the record.
	case known.body != id.body:
		return Conflict
	case !same && !earlier:
		return Full
	case met == id.use.Met:
		return known.again
	default: // A restored judge had forgotten the use and accepted it again.
		outcome, again = known.again, known.again
	}
	if o.keyRecords() >= o.limits.KeysMax && !o.dropKey() {
		return Full
	}
	r := keyRecord{key: id.key, body: id.body, last: o.now, met: id.use.Met, judge: id.judge(), again: again}
	if id.born > o.now {
		r.last = id.born
		o.ahead.push(r)
	} else {
		o.keys.push(r)
	}
	return outcome
}

// isTooOld reports whether the memory may have applied the key and forgotten it. It also returns
// true for a key whose time is too far ahead.
func (o *Memory) isTooOld(id *RequestID) bool {
	if id.judge() != 0 {
		return id.use.Met <= o.dropped[id.judge()]
	}
	return id.born != 0 && (id.born < o.keyFloor || id.born > o.now+o.limits.KeyHorizon.Milliseconds())
}

// Met returns the log time at which this shard accepted a key that it judged. It returns 0 if the
// request is new or has no key.
func (o *Memory) Met(id *RequestID, outcome Outcome) int64 {
	if id.kind == byKey && outcome != Applied {
		if known, _, _ := o.key(id); known != nil {
			return known.last
		}
	}
	return 0
}

// NewUse returns the Use of a key that the shard accepts now.
// It lacks the Names, which are JudgeNames().At(Met).
func (o *Memory) NewUse() Use { return Use{Met: o.now, Floor: o.keyFloor} }

// JudgeNames returns the names of the shard as a judge. Nobody changes them.
func (o *Memory) JudgeNames() JudgeNames { return o.judging.names }

func (o *Memory) judgeProducer(id *RequestID) Outcome {
	slot, ok := o.producers.find(id.producer)
	if ok && o.producers.at(slot).used < o.idleFloor {
		o.forget(slot)
		ok = false
	}
	if !ok {
		return o.newProducer(id)
	}
	p := o.producers.touch(slot, o.now)
	switch {
	case id.seq > p.high:
		p.moveTo(id.seq)
		p.window |= 1
		return Applied
	case id.seq < p.floor || p.high-id.seq >= seqWindow:
		return Expired
	case p.judged(id.seq):
		return p.again(id.seq)
	}
	p.window |= 1 << (p.high - id.seq)
	return Applied
}

// newProducer adds a producer that is not in the memory. If it was forgotten before, newProducer
// accepts only a number above its highest one.
func (o *Memory) newProducer(id *RequestID) Outcome {
	floor := uint64(0)
	if gone, known := o.forgotten.high(producerHash(string(id.producer))); known {
		if id.seq <= gone {
			return Expired
		}
		floor = gone + 1
	}
	if o.producers.len >= o.limits.ProducersMax {
		o.forget(o.producers.oldest())
	}
	o.producers.add(producer{name: string(id.producer), floor: floor, high: id.seq, window: 1, used: o.now})
	return Applied
}

// SetRepeat sets the outcome of repeats of a request in the current entry: Duplicate, Refused or
// PartlyRefused.
func (o *Memory) SetRepeat(id *RequestID, again Outcome) {
	switch id.kind {
	case byProducer, byRestore, byRestorePositions:
		// Later requests of the entry may have moved the window above the number. They may also
		// have evicted the producer, and then added it again without this number.
		slot, ok := o.producers.find(id.producer)
		if ok && o.producers.at(slot).judged(id.seq) {
			o.producers.edit(slot).setAgain(id.seq, again)
		}
	case byKey:
		// A later request of the entry may have replaced the record by another use.
		if known, _, _ := o.key(id); known != nil && known.judge == id.judge() && known.met == id.use.Met {
			known.again = again
		}
	}
}

// forget moves the producer in a slot to the forgotten producers, with its highest number.
func (o *Memory) forget(slot uint32) {
	p := *o.producers.at(slot)
	o.producers.remove(slot)
	o.forgotten.add(forgottenProducer{producerHash(p.name), p.high})
	if o.forgotten.order.len() > forgottenPerProducer*o.limits.ProducersMax {
		o.forgotten.drop()
	}
}
