package dedup

// keyRecord is the record of a use of a key (see DESIGN.md). The shard that judges the key ignores
// the record once last is before the key floor, and drops it later. If another shard judged the
// use, the record is valid until this shard drops it. After a split, only judging.of knows the judge
// and the Met of a record.
type keyRecord struct {
	key   [16]byte
	body  [16]byte
	last  int64   // log time at which the key arrived, or the time in the key if that is later
	met   int64   // Use.Met of the use if another shard judged it; otherwise 0
	judge uint32  // group of the other shard that judged the use; otherwise 0
	again Outcome // the outcome of a repeat: Duplicate, Refused or PartlyRefused
}

// judgedHere reports whether this shard judged the use itself. Every shard judges a key with a time
// itself.
func (r *keyRecord) judgedHere() bool { return r.judge == 0 }

// keyQueue contains records in order of arrival. A key that arrived again after its record had
// expired may have two records; only the later one is valid.
type keyQueue struct {
	records fifo[keyRecord]
	at      index[[16]byte]
}

func newKeyQueue() keyQueue { return keyQueue{at: newIndex[[16]byte]()} }

// find returns the record of a key, or nil. Only the entry that pushed the record may change it,
// because captures and parts of the shard share older records.
func (q *keyQueue) find(key [16]byte) *keyRecord {
	if number, ok := q.at.find(key, q.records.first); ok {
		return q.records.at(number)
	}
	return nil
}

func (q *keyQueue) push(r keyRecord) { q.at.own[r.key] = q.records.push(r) }

// drop removes the oldest record and returns it, if its field last is before floor.
func (q *keyQueue) drop(floor int64) (dropped keyRecord, ok bool) {
	if q.records.len() == 0 {
		return dropped, false
	}
	first := *q.records.at(q.records.first)
	if first.last >= floor {
		return dropped, false
	}
	q.at.popped(first.key, q.records.first)
	q.records.pop()
	return first, true
}

// split returns the records for a part of the shard.
func (q *keyQueue) split() keyQueue {
	return keyQueue{records: q.records.split(), at: q.at.split(q.records.end)}
}
