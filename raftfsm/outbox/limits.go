package outbox

// PostsMax bounds Limits.Posts: a change of an outbox may decode and encode all its ids.
const PostsMax = 20_000

// Limits bound an outbox. A publish carries them, so that replicas with other settings trim
// alike.
type Limits struct {
	Posts int // the most posts that are kept; 1 to PostsMax

	// Keep is how long an id is kept, in units of the time in ids; 0 for ids without time. If it
	// is 0, the fields below are not used.
	Keep uint64
	// An id shifted right by Shift is a time: the number of units since Epoch. A unit has
	// UnitMicros microseconds. Epoch is the number of units from 1970 on.
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

// aheadMicros is how far ahead of the log's time the time in an id may lie, as clocks differ.
const aheadMicros = 24 * 3_600_000_000

// future reports whether the time in an id lies ahead, given the log's time in Unix milliseconds.
func (l *Limits) future(id uint64, now int64) bool {
	last := (now*1000+aheadMicros)/int64(l.UnitMicros) - l.Epoch
	return last < 0 || id>>l.Shift > uint64(last)
}

// cut returns the lowest id with a time that is kept, given the newest id that is not of the future.
// Ages count from that newest id, not from now. So an author who pauses keeps the last posts, and a
// clock that is ahead trims nothing.
func (l *Limits) cut(newest uint64) uint64 {
	if l.Keep == 0 || newest < l.First || newest>>l.Shift <= l.Keep {
		return 0
	}
	return (newest>>l.Shift - l.Keep) << l.Shift
}

// expired reports whether a cut trims an id.
func (l *Limits) expired(id, cut uint64) bool { return id < cut && id >= l.First }
