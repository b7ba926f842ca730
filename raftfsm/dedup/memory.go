package dedup

// Outcome is what became of one request of an entry.
type Outcome uint8

const (
	// Applied: its ops were applied, but for those in Result.Overflows.
	Applied Outcome = iota
	// Duplicate: it was applied before. Its rows are those of now.
	Duplicate
	// Conflict: its key was used for another body. Nothing was applied.
	Conflict
	// Expired: it is too old to tell whether it was applied. Nothing was.
	Expired
	// Full: there is no room to remember another key. Nothing was applied.
	Full
	// Refused: it was judged before, and each of its ops overflowed. Its rows are
	// those of now, and nothing was applied, then or now.
	Refused
	// PartlyRefused: it was judged before, and some of its ops overflowed and some
	// did not. Which they were is not remembered. Its rows are those of now.
	PartlyRefused
)

const (
	// seqWindow is how far behind its highest number a producer's requests may
	// come in any order.
	seqWindow = 64
	// forgottenPerEntry bounds what one entry makes the memory drop of each kind
	// of record: all of them may come of age at once, and an entry behind which
	// others wait should not take a tenth of a second. What is of age is unknown
	// from then on, dropped or not.
	forgottenPerEntry = 4096
)

// Memory is a group's memory of the requests that it has applied. It is part of
// the replicated state: it moves with the log's own time, and replicas that
// applied the same entries hold equal bytes of it (dedup/state.go).
type Memory struct {
	now    int64 // the latest time that a leader stamped, Unix milliseconds
	limits Limits

	// keys are those that came no earlier than they say they were made, or do not
	// say; their records are in the order of their time. ahead are the others: a
	// clock that is ahead delays no records but its own kind's.
	keys, ahead keyQueue
	// keyFloor is the latest time that was a horizon ago. It only rises, also
	// when the horizon is made longer. A key made before it is refused, and what
	// came or was made since is remembered if it was ever applied.
	keyFloor int64

	producers producers
	// idleFloor is likewise the latest time that was the idle time ago: producers
	// that were last used before it are gone.
	idleFloor int64

	gone goneProducers
}

func New() *Memory {
	return &Memory{keys: newKeyQueue(), ahead: newKeyQueue(), producers: newProducers(), gone: newGoneProducers()}
}

// Tick moves the log's time to now, unless it is there already, and drops some
// of what is of age by then.
func (o *Memory) Tick(now int64, limits Limits) {
	o.now, o.limits = max(o.now, now), limits
	o.keyFloor = max(o.keyFloor, o.now-limits.KeyHorizon.Milliseconds())
	o.idleFloor = max(o.idleFloor, o.now-limits.ProducerIdle.Milliseconds())
	for n := 0; n < forgottenPerEntry && o.dropKey(); n++ {
	}
	for n := 0; n < forgottenPerEntry && o.forgetProducer(); n++ {
	}
	for n := 0; n < forgottenPerEntry && o.gone.order.len() > gonePerProducer*limits.ProducersMax; n++ {
		o.gone.drop()
	}
}

// forgetProducer forgets the producer idle for longest if that is too long, or
// if the limit was lowered and there are too many.
func (o *Memory) forgetProducer() bool {
	slot := o.producers.oldest()
	if slot == 0 || o.producers.at(slot).used >= o.idleFloor && o.producers.len <= o.limits.ProducersMax {
		return false
	}
	o.forget(slot)
	return true
}

// dropKey drops a key that is of age, if one is first in its queue.
func (o *Memory) dropKey() bool { return o.keys.drop(o.keyFloor) || o.ahead.drop(o.keyFloor) }

// Now returns the latest time that a leader stamped, in Unix milliseconds.
func (o *Memory) Now() int64 { return o.now }

// Sizes returns how many keys and producers there are.
func (o *Memory) Sizes() (keys, producers int) { return o.keyRecords(), o.producers.len }

// keyRecords is how many records of keys there are.
func (o *Memory) keyRecords() int { return o.keys.records.len() + o.ahead.records.len() }

// key returns the record of a key that is remembered, or nil.
func (o *Memory) key(key [16]byte) *keyRecord {
	if r := o.keys.find(key, o.keyFloor); r != nil {
		return r
	}
	return o.ahead.find(key, o.keyFloor)
}

// Judge decides about a request and, if it is to be applied, remembers it.
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
	}
	return Applied
}

// forgetClients forgets all requests but those of restores: what they did is to be
// replaced. Times and their floors stay, so that a key that says when it was made is
// refused as before.
func (o *Memory) forgetClients() {
	kept := *o.producers.at(o.producers.slot[restoreProducer])
	fresh := New()
	fresh.now, fresh.limits, fresh.keyFloor, fresh.idleFloor = o.now, o.limits, o.keyFloor, o.idleFloor
	fresh.producers.add(kept)
	*o = *fresh
}

func (o *Memory) judgeKey(id *RequestID) Outcome {
	if known := o.key(id.key); known != nil {
		if !known.body.same(id.body) {
			return Conflict
		}
		return known.again
	}
	switch {
	case id.born != 0 && (id.born < o.keyFloor || id.born > o.now+o.limits.KeyHorizon.Milliseconds()):
		return Expired
	case o.keyRecords() >= o.limits.KeysMax && !o.dropKey():
		return Full
	}
	if id.born > o.now {
		o.ahead.push(keyRecord{key: id.key, body: id.body, last: id.born, again: Duplicate})
	} else {
		o.keys.push(keyRecord{key: id.key, body: id.body, last: o.now, again: Duplicate})
	}
	return Applied
}

// Arrived returns when a request by a key came first, if it was judged to have come
// before, or 0. Of a key that was made ahead of the log it is when it was made.
func (o *Memory) Arrived(id *RequestID, outcome Outcome) int64 {
	if id.kind == byKey && outcome != Applied {
		if known := o.key(id.key); known != nil {
			return known.last
		}
	}
	return 0
}

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

// newProducer begins to remember a producer. Of one that was forgotten only
// numbers above its highest are taken.
func (o *Memory) newProducer(id *RequestID) Outcome {
	floor := uint64(0)
	if gone, known := o.gone.high(producerHash(string(id.producer))); known {
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

// Refuse notes of a request, which judge has just remembered, what its repeats
// are told: Refused or PartlyRefused.
func (o *Memory) Refuse(id *RequestID, again Outcome) {
	switch id.kind {
	case byProducer, byRestore:
		// By what followed in its entry it may be behind the window, or gone; or gone
		// and back, with a window that it is not in.
		slot, ok := o.producers.slot[string(id.producer)]
		if ok && o.producers.at(slot).judged(id.seq) {
			o.producers.edit(slot).refuse(id.seq, again)
		}
	case byKey:
		if known := o.key(id.key); known != nil {
			known.again = again
		}
	}
}

// forget drops the producer in a slot but for its highest number.
func (o *Memory) forget(slot uint32) {
	p := *o.producers.at(slot)
	o.producers.remove(slot)
	o.gone.add(goneProducer{producerHash(p.name), p.high})
	if o.gone.order.len() > gonePerProducer*o.limits.ProducersMax {
		o.gone.drop()
	}
}
