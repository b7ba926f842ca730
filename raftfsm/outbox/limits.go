package outbox

// PostsMax bounds Limits.Posts: a change of an outbox may decode and encode all its ids.
const PostsMax = 20_000

// Limits bound an outbox. A publish carries them, so that replicas with other settings trim
// alike.
type Limits struct {
	Posts int // at most; 1 to PostsMax

	// Keep is for how many units of the time in ids an id is kept; 0 for ids without time.
	// The fields below are used only if it is above 0.
	Keep uint64
	// An id shifted right by Shift is a number of units of UnitMicros microseconds since
	// Epoch, in units from 1970 on.
	Shift      uint8
	UnitMicros uint64
	Epoch      int64
	// First is the least id that has a time.
	First uint64
}

// The bounds of the fields of Limits.
const (
	shiftMax      = 63
	unitMicrosMax = 3_600_000_000
	keepMax       = 1 << 62
)

func (l *Limits) valid() bool {
	return l.Posts >= 1 && l.Posts <= PostsMax && l.Keep <= keepMax &&
		(l.Keep == 0 || l.Shift <= shiftMax && l.UnitMicros >= 1 && l.UnitMicros <= unitMicrosMax)
}

// cut returns the id from which on ids that have a time are kept in an outbox, given its
// newest id and the time of the log in Unix milliseconds. The age of an id counts from the
// newest one: an author who pauses keeps the last posts, and a clock that is ahead trims
// nothing. An id of the future counts as one of now, so that it does not displace the
// others.
func (l *Limits) cut(newest uint64, now int64) uint64 {
	if l.Keep == 0 || newest < l.First {
		return 0
	}
	last := newest >> l.Shift
	if units := max(now*1000/int64(l.UnitMicros)-l.Epoch, 0); uint64(units) < last {
		last = uint64(units)
	}
	if last <= l.Keep {
		return 0
	}
	return (last - l.Keep) << l.Shift
}

// expired reports whether an id is trimmed by a cut.
func (l *Limits) expired(id, cut uint64) bool { return id < cut && id >= l.First }
