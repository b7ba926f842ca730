package counters

// OutboxPostsMax bounds OutboxLimits.Posts: a change of an outbox may decode and encode all its ids.
const OutboxPostsMax = 20_000

// OutboxLimits bound an outbox. A publish carries its limits, because all replicas must trim alike,
// whatever their own settings are.
type OutboxLimits struct {
	Posts int // the most posts in an outbox; 1 to OutboxPostsMax

	// Keep is the age up to which a post stays, in units of the time in ids; 0 for ids without
	// time. If Keep is 0, the fields below are not used.
	Keep uint64
	// An id shifted right by Shift is a time: the number of units since Epoch. A unit has
	// UnitMicros microseconds. Epoch is a number of units since 1970.
	Shift      uint8
	UnitMicros uint64
	Epoch      int64
	// First is the least id that has a time.
	First uint64
}

// The bounds of the fields of OutboxLimits.
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

// future reports whether the time in an id is too far ahead of the log's time, the argument now, in
// Unix milliseconds.
func (l *OutboxLimits) future(id uint64, now int64) bool {
	last := (now*1000+idAheadMicros)/int64(l.UnitMicros) - l.Epoch
	return last < 0 || id>>l.Shift > uint64(last)
}

// cut returns the lowest id with a time that stays in an outbox. The argument newest is the newest
// id that is not in the future. The age of a post is its distance from that newest id, not from the
// present. So an author who pauses keeps the last posts, and a clock that is ahead trims nothing.
func (l *OutboxLimits) cut(newest uint64) uint64 {
	if l.Keep == 0 || newest < l.First || newest>>l.Shift <= l.Keep {
		return 0
	}
	return (newest>>l.Shift - l.Keep) << l.Shift
}

// expired reports whether a cut trims an id.
func (l *OutboxLimits) expired(id, cut uint64) bool { return id < cut && id >= l.First }
