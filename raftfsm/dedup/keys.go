package dedup

// keyRecord is the record of a use of a key (DESIGN.md). Once keyRecord.last is before the horizon,
// the shard that judges the key ignores the record, and later drops it. If another shard judged the
// use, the record is valid until this shard drops it.
type keyRecord struct {
	key   [16]byte
	body  [16]byte
	last  int64   // when the key arrived here or was created, whichever is later
	met   int64   // Use.Met of a use that another shard judged, by that shard's log; otherwise 0
	judge uint32  // group of the other shard that judged the use; otherwise 0
	again Outcome // the outcome of a repeat: Duplicate, Refused or PartlyRefused
}

// judgedHere reports whether the shard judged the use itself, or its key contains its time.
func (r *keyRecord) judgedHere() bool { return r.judge == 0 }

// keyQueue holds records in order of arrival. A key that arrived again after its record
// expired has two records; only the later one is valid.
type keyQueue struct {
	records fifo[keyRecord]
	at      map[[16]byte]uint64 // number of the later record
}

func newKeyQueue() keyQueue { return keyQueue{at: map[[16]byte]uint64{}} }

// find returns the record of a key, or nil. If this shard judged the use, and the record's field
// last is before floor, find ignores the record. Only the entry that brought the key may change the
// record.
func (q *keyQueue) find(key [16]byte, floor int64) *keyRecord {
	number, ok := q.at[key]
	if !ok {
		return nil
	}
	if r := q.records.at(number); r.last >= floor || !r.judgedHere() {
		return r
	}
	return nil
}

func (q *keyQueue) push(r keyRecord) { q.at[r.key] = q.records.push(r) }

// drop removes the first record and returns it, if it is older than floor.
func (q *keyQueue) drop(floor int64) (dropped keyRecord, ok bool) {
	if q.records.len() == 0 {
		return dropped, false
	}
	first, number := *q.records.at(q.records.first), q.records.first
	if first.last >= floor {
		return dropped, false
	}
	if q.at[first.key] == number {
		delete(q.at, first.key)
	}
	q.records.pop()
	return first, true
}
