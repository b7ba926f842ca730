package members

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"
)

// Stamp is the time at which a member joined: milliseconds times 64, plus a number that orders up
// to 64 joins of one millisecond. Further joins get the stamps of the following milliseconds, so
// lists keep the order of the log. Stamps are computed from the log's times, so they are the same
// on all replicas.
type Stamp uint64

const (
	stampShift = 6
	// stampMax is the highest stamp that fits into six bytes. It is in the year 2109.
	stampMax Stamp = 1<<48 - 1
	// stampsAhead bounds how far stamps may be ahead of the log's time: one second. If a shard has
	// more than 64,000 joins a second for long, joins at that bound share stamps, and lists order
	// them by id.
	stampsAhead = 1000 << stampShift
)

// StampOf returns the lowest stamp of a time in Unix milliseconds.
func StampOf(ms int64) Stamp { return min(Stamp(max(ms, 0))<<stampShift, stampMax) }

// Time returns the time of a stamp, to the millisecond, in UTC.
func (s Stamp) Time() time.Time { return time.UnixMilli(int64(s >> stampShift)).UTC() }

// Entry is one line of a list: a member of a row, or a row that a member is in.
type Entry struct {
	ID uint64
	At Stamp
}

// Compare orders entries as in a list: newest first, equal stamps by id.
func (e Entry) Compare(o Entry) int {
	return cmp.Or(cmp.Compare(o.At, e.At), cmp.Compare(e.ID, o.ID))
}

// Page selects a page of a list. If a set changes while a caller reads its list page by page, the
// caller still gets each unchanged entry once.
type Page struct {
	Limit     int
	After     Entry // the last entry of the previous page
	Continues bool  // After is set: this is not the first page
}

// List is one page of a list, newest first.
type List struct {
	Entries []Entry
	More    bool // there may be another page
}

// cursorBytes is a stamp of 6 bytes and an id of 8.
const cursorBytes = 14

// ErrCursor is returned for a cursor that AppendCursor did not write.
var ErrCursor = errors.New("not a cursor of this list")

// AppendCursor appends the cursor of the page that begins after an entry. A cursor is 19 characters
// of base64.
func AppendCursor(dst []byte, e Entry) []byte {
	var b [cursorBytes]byte
	putStamp(b[:], e.At)
	binary.BigEndian.PutUint64(b[stampBytes:], e.ID)
	return base64.RawURLEncoding.AppendEncode(dst, b[:])
}

// ParseCursor returns the entry of a cursor.
func ParseCursor(cursor []byte) (Entry, error) {
	var b [cursorBytes + 4]byte
	if base64.RawURLEncoding.DecodedLen(len(cursor)) != cursorBytes {
		return Entry{}, ErrCursor
	}
	n, err := base64.RawURLEncoding.Strict().Decode(b[:], cursor)
	e := Entry{ID: binary.BigEndian.Uint64(b[stampBytes:]), At: stampAt(b[:])}
	if err != nil || n != cursorBytes || e.At == 0 { // no entry has stamp 0
		return Entry{}, ErrCursor
	}
	return e, nil
}

const stampBytes = 6

// putStamp stores a stamp big-endian in the first bytes of b.
func putStamp(b []byte, s Stamp) {
	binary.BigEndian.PutUint16(b, uint16(s>>32))
	binary.BigEndian.PutUint32(b[2:], uint32(s))
}

// stampAt reads what putStamp stored.
func stampAt(b []byte) Stamp {
	return Stamp(binary.BigEndian.Uint16(b))<<32 | Stamp(binary.BigEndian.Uint32(b[2:]))
}
