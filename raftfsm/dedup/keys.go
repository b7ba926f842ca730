package dedup

// keyRecord is what is kept of a key, until last is out of the horizon: it is
// then unknown, wherever it still stands. A key that says when it was made is
// refused by that time from then on, one that does not is taken for a new one.
type keyRecord struct {
	key   [16]byte
	body  askedHash
	last  int64   // when it came or, if that is later, when it says that it was made
	again Outcome // what a repeat is told: Duplicate, Refused or PartlyRefused
}

// keyQueue holds records in the order in which they came. A key that came anew
// when its record was out of the horizon is there twice: the later one counts.
type keyQueue struct {
	records fifo[keyRecord]
	at      map[[16]byte]uint64 // number of the later record
}

func newKeyQueue() keyQueue { return keyQueue{at: map[[16]byte]uint64{}} }

// find returns the record of a key unless it is before floor, else nil. Only
// the entry that brought the key may change it.
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

// drop drops the first record if it is before floor.
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
