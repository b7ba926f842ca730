package dedup

// Outcome is the outcome of one request of an entry.
type Outcome uint8

const (
	// Applied: the ops were applied, except those in Result.Overflows.
	Applied Outcome = iota
	// Duplicate: the request was applied before. Its rows are the current ones.
	Duplicate
	// Conflict: the key was used for another body. Nothing was applied.
	Conflict
	// Expired: the request is too old for the group to know whether it was applied.
	// Nothing was applied now.
	Expired
	// Full: the memory cannot remember the key now. It has KeysMax keys, or it remembers a use of this
	// key that another shard judged. Nothing was applied.
	Full
	// Refused: the request was judged before, and each of its ops overflowed. Its rows
	// are the current ones. Nothing was applied, then or now.
	Refused
	// PartlyRefused: the request was judged before, and some of its ops overflowed. The memory does
	// not record which ops. The request's rows are the current ones.
	PartlyRefused
	// Moved: a section of a source does not fit the position of its partition, or only reads the
	// position. Nothing was applied.
	Moved
	// Misrouted: the request names the route of another shard. Nothing was judged.
	Misrouted
)

const (
	// seqWindow is how far behind a producer's highest number its requests may arrive
	// in any order.
	seqWindow = 64
	// droppedPerEntryMax bounds how many records of each kind one entry drops. All records may
	// expire at once, and dropping them would delay the entries after it by a tenth of a second.
	// An expired record counts as unknown whether or not it was dropped.
	droppedPerEntryMax = 4096
)

// Memory records which requests a group has applied. It is replicated state: its only time is the
// log's own, and replicas that applied the same entries have the same bytes (state.go).
type Memory struct {
	now    int64 // the latest time that a leader stamped, Unix milliseconds
	limits Limits

	// keys holds the keys that were created before they arrived, in order of arrival. ahead holds
	// the keys that clients with a fast clock created, so that only these keys stay longer.
	keys, ahead keyQueue
	// keyFloor is one key horizon before the time now. It only rises, even when the horizon grows.
	// The memory refuses a key that was created before keyFloor, and remembers every applied key
	// that was created or arrived later.
	keyFloor int64
	// dropped maps the group of a judge to the highest Use.Met among the dropped records of uses that
	// the group judged. The values only rise.
	dropped map[uint32]int64

	producers producers
	// idleFloor is one producer idle time before the time now. It only rises. The memory forgets
	// producers that were last used before idleFloor.
	idleFloor int64

	forgotten forgottenProducers

	positions positions
}

// New returns an empty memory.
func New() *Memory {
	return &Memory{
		keys: newKeyQueue(), ahead: newKeyQueue(), dropped: map[uint32]int64{},
		producers: newProducers(), forgotten: newForgottenProducers(), positions: newPositions(),
	}
}

// Tick advances the log's time to the given time, never backwards. It drops some of the
// records that have expired by then.
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

// dropKey drops one expired key if a queue begins with one.
func (o *Memory) dropKey() bool {
	r, ok := o.keys.drop(o.keyFloor)
	if !ok {
		r, ok = o.ahead.drop(o.keyFloor)
	}
	if !r.judgedHere() {
		o.dropped[r.judge] = max(o.dropped[r.judge], r.met)
	}
	return ok
}

// Now returns the latest time that a leader stamped, in Unix milliseconds.
func (o *Memory) Now() int64 { return o.now }

// Sizes returns how many keys and producers the memory holds, with expired records that it has not
// dropped yet.
func (o *Memory) Sizes() (keys, producers int) { return o.keyRecords(), o.producers.len }

func (o *Memory) keyRecords() int { return o.keys.records.len() + o.ahead.records.len() }

// key returns the record of a remembered key, or nil.
func (o *Memory) key(key [16]byte) *keyRecord {
	if r := o.keys.find(key, o.keyFloor); r != nil {
		return r
	}
	return o.ahead.find(key, o.keyFloor)
}

// Judge decides whether a request may be applied. If so, it remembers the request.
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
// the requests of restores. Times and floors stay, so the memory still refuses a key that was
// created too long ago.
func (o *Memory) forgetClients() {
	kept := *o.producers.at(o.producers.slot[restoreProducer])
	fresh := New()
	fresh.now, fresh.limits, fresh.keyFloor, fresh.idleFloor = o.now, o.limits, o.keyFloor, o.idleFloor
	fresh.dropped = o.dropped
	fresh.positions = o.positions // a restore sets them by a write of its own
	fresh.producers.add(kept)
	*o = *fresh
}

// judgeKey returns the outcome of a use of a key, and records a use that it accepts. DESIGN.md has
// the rules and the reasons for them.
func (o *Memory) judgeKey(id *RequestID) Outcome {
	known, outcome, again := o.key(id.key), Applied, Duplicate
	switch {
	case known == nil:
		if o.isTooOld(id) {
			return Expired
		}
	case known.judge == id.judge && id.judge != 0 && known.met > id.use.Met:
		return Expired // the judge has accepted a later use of the key
	case known.judge == id.judge && id.judge != 0 && known.met < id.use.Floor:
		// The judging shard has forgotten the use that is recorded here. The new use replaces that
		// record.
	case known.body != id.body:
		return Conflict
	case known.judge != id.judge:
		return Full
	case known.met == id.use.Met:
		return known.again
	default: // After a restore, the judge had forgotten the use and accepted it again.
		outcome, again = known.again, known.again
	}
	if o.keyRecords() >= o.limits.KeysMax && !o.dropKey() {
		return Full
	}
	r := keyRecord{key: id.key, body: id.body, last: o.now, met: id.use.Met, judge: id.judge, again: again}
	if id.born > o.now {
		r.last = id.born
		o.ahead.push(r)
	} else {
		o.keys.push(r)
	}
	return outcome
}

// isTooOld reports whether the memory may have forgotten that it applied a key. It also returns true
// for a key that was created too far ahead.
func (o *Memory) isTooOld(id *RequestID) bool {
	if id.judge != 0 {
		return id.use.Met <= o.dropped[id.judge]
	}
	return id.born != 0 && (id.born < o.keyFloor || id.born > o.now+o.limits.KeyHorizon.Milliseconds())
}

// Met returns the log's time at which a key that this shard judged arrived for the
// first time. It returns 0 if the request is new or has no key.
func (o *Memory) Met(id *RequestID, outcome Outcome) int64 {
	if id.kind == byKey && outcome != Applied {
		if known := o.key(id.key); known != nil {
			return known.last
		}
	}
	return 0
}

// NewUse returns the Use of a key that the shard judges as new.
func (o *Memory) NewUse() Use { return Use{Met: o.now, Floor: o.keyFloor} }

func (o *Memory) judgeProducer(id *RequestID) Outcome {
	slot, ok := o.producers.slot[string(id.producer)]
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

// newProducer starts to remember a producer. If the producer was forgotten before, only
// numbers above its highest are accepted.
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

// SetRepeat sets the outcome of repeats of a request of the present entry: Duplicate, Refused
// or PartlyRefused.
func (o *Memory) SetRepeat(id *RequestID, again Outcome) {
	switch id.kind {
	case byProducer, byRestore, byRestorePositions:
		// Later requests of the entry may have moved the window past the number. They may also have
		// evicted the producer, and then added it again without this number.
		slot, ok := o.producers.slot[string(id.producer)]
		if ok && o.producers.at(slot).judged(id.seq) {
			o.producers.edit(slot).setAgain(id.seq, again)
		}
	case byKey:
		// A later request of the entry may have replaced the record by another use.
		if known := o.key(id.key); known != nil && known.judge == id.judge && known.met == id.use.Met {
			known.again = again
		}
	}
}

// forget drops the producer in a slot and keeps its highest number.
func (o *Memory) forget(slot uint32) {
	p := *o.producers.at(slot)
	o.producers.remove(slot)
	o.forgotten.add(forgottenProducer{producerHash(p.name), p.high})
	if o.forgotten.order.len() > forgottenPerProducer*o.limits.ProducersMax {
		o.forgotten.drop()
	}
}
