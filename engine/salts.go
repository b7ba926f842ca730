package engine

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	"github.com/countd/countd/internal/wire"
)

// salts derives the salts of a table's hash arrays (see geometry). The writer uses it, and so does
// code that builds segments concurrently. Salts come from a random number that each table draws at
// creation, so an attacker cannot choose ids that do not fit. Salts decide the places of rows and
// the sizes of arrays; replicas differ in these. Salts never decide an answer, a digest, a byte of
// a snapshot, or whether an op is refused.
type salts struct {
	secret uint64
	class  Class // all ids of the table; never changes
	drawn  atomic.Uint64
}

// newSecret returns a random number. It never fails: rand.Read ends the process instead.
func newSecret() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (s *salts) next() uint64 { return wire.Mix(s.secret + s.drawn.Add(1)*mixA) }

// saltsMax is the number of salts that build tries for one size. Rows that fill an array to its
// bound may need several salts; in a half-empty array, nearly any rows fit with any salt.
const saltsMax = 8

// build makes a segment of the given shape, fills it with fill, and returns it. It returns nil if
// the rows do not fit with any of saltsMax salts.
func (s *salts) build(sh shape, words int, epoch uint64, fill func(*segment) bool) *segment {
	n := newSegment(newGeometry(sh.buckets, sh.wide, sh.base, s.class, s.next()), sh.buckets, words, epoch)
	for range saltsMax - 1 {
		if fill(n) {
			return n
		}
		n.reset(newGeometry(sh.buckets, sh.wide, sh.base, s.class, s.next()))
	}
	if fill(n) {
		return n
	}
	return nil
}

// mustBuild is like build, but doubles the number of buckets, up to bucketsLimit, until the rows
// fit. At that size it tries salts until one succeeds. rowsMax rows then fill at most five eighths
// of the slots, so one salt in millions fails, whatever the ids are, because nobody knows the salt.
func (s *salts) mustBuild(sh shape, words int, epoch uint64, fill func(*segment) bool) *segment {
	for {
		if n := s.build(sh, words, epoch, fill); n != nil {
			return n
		}
		sh.buckets = max(sh.buckets, min(2*sh.buckets, bucketsLimit))
	}
}
