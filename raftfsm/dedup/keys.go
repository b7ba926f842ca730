package dedup

// keyRecord is what the memory keeps of a key until last is past the horizon. From then
// on the key is unknown, even if its record is still there: a key with a time is
// refused for that time, and any other key counts as new.
type keyRecord struct {
	key   [16]byte
	body  askedHash
	last  int64   // when the key arrived or was made, whichever is later
	again Outcome // the outcome of a repeat: Duplicate, Refused or PartlyRefused
}

// keyQueue holds records in order of arrival. A key that arrived again after its record
// expired has two records; the later one counts.
type keyQueue struct {
	records fifo[keyRecord]
	at      map[[16]byte]uint64 // number of the later record
}

func newKeyQueue() keyQueue { return keyQueue{at: map[[16]byte]uint64{}} }

// find returns the record of a key, or nil if there is none from floor on. Only the
// entry that brought the key may change the record.
func (q *keyQueue) find(key [16]byte, floor int64) *keyRecord {
	number, ok := q.at[key]
	if !ok {
		return nil
	}
	if r := q.records.at(number); r.last >= floor {
		return r
	}
	return nil
}

func (q *keyQueue) push(r keyRecord) { q.at[r.key] = q.records.push(r) }

// drop drops the first record if it is older than floor.
func (q *keyQueue) drop(floor int64) bool {
	if q.records.len() == 0 {
		return false
	}
	first, number := q.records.at(q.records.first), q.records.first
	if first.last >= floor {
		return false
	}
	if q.at[first.key] == number {
		delete(q.at, first.key)
	}
	q.records.pop()
	return true
}
