package counters

// OutboxPostsMax bounds OutboxLimits.Posts, because a change of an outbox may decode and encode all
// its ids.
const OutboxPostsMax = 20_000

// OutboxLimits bound an outbox. Each publish contains the limits, so that all replicas trim the
// outbox in the same way, whatever their own settings are.
type OutboxLimits struct {
	Posts int // the most posts in an outbox; 1 to OutboxPostsMax

	// Keep is the age up to which posts stay, in units of the time in ids. It is 0 for ids without
	// a time; then the fields below are not used.
	Keep uint64
	// An id shifted right by Shift is a time: the number of units since Epoch. A unit has
	// UnitMicros microseconds. Epoch itself is in units since 1970.
	Shift      uint8
	UnitMicros uint64
	Epoch      int64
	// First is the least id that has a time.
	First uint64
}

// These are the bounds of the fields of OutboxLimits.
const (
	idShiftMax      = 63
	idUnitMicrosMax = 3_600_000_000
	outboxKeepMax   = 1 << 62
)

func (l *OutboxLimits) valid() bool {
	return l.Posts >= 1 && l.Posts <= OutboxPostsMax && l.Keep <= outboxKeepMax &&
		(l.Keep == 0 || l.Shift <= idShiftMax && l.UnitMicros >= 1 && l.UnitMicros <= idUnitMicrosMax)
}

// The time in an id may be idAheadMicros ahead of the log's time, because clocks differ.
const idAheadMicros = 24 * 3_600_000_000

// future reports whether the time in an id is too far ahead of now, the log's time in Unix
// milliseconds.
func (l *OutboxLimits) future(id uint64, now int64) bool {
	last := (now*1000+idAheadMicros)/int64(l.UnitMicros) - l.Epoch
	return last < 0 || id>>l.Shift > uint64(last)
}

// cut returns the lowest id that is young enough to stay in an outbox. newest is the newest id that
// is not in the future. The age of a post is the distance to newest, not to the present. So an
// author who pauses keeps the last posts, and a clock that is ahead removes nothing.
func (l *OutboxLimits) cut(newest uint64) uint64 {
	if l.Keep == 0 || newest < l.First || newest>>l.Shift <= l.Keep {
		return 0
	}
	return (newest>>l.Shift - l.Keep) << l.Shift
}

// expired reports whether an id has a time and is below cut.
func (l *OutboxLimits) expired(id, cut uint64) bool { return id < cut && id >= l.First }
