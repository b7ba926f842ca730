package engine

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	"github.com/countd/countd/internal/wire"
)

// salts draws the salts of a table's hash arrays (see geometry), for its writer and for code that
// builds segments beside the writer. Salts come from a secret that each table draws at creation, so
// an attacker cannot choose ids that find no room. Salts decide the places of rows and the sizes of
// arrays; replicas differ in these. Salts never decide an answer, a digest, a byte of a snapshot,
// or whether an op is refused.
type salts struct {
	secret uint64
	drawn  atomic.Uint64
}

// newSecret returns a random number. It never fails: rand.Read ends the process instead.
func newSecret() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (s *salts) next() uint64 { return wire.Mix(s.secret + s.drawn.Add(1)*mixA) }

// saltsMax is how many salts build tries for one size. Rows that fill an array to its
// bound may need several; a half-empty array takes nearly any rows with any salt.
const saltsMax = 8

// build makes a segment of the given shape, fills it with fill, and returns it. It returns nil if
// the rows find no room under saltsMax salts.
func (s *salts) build(sh shape, words int, epoch uint64, fill func(*segment) bool) *segment {
	n := newSegment(newGeometry(sh.buckets, sh.wide, sh.base, s.next()), sh.buckets, words, epoch)
	for range saltsMax - 1 {
		if fill(n) {
			return n
		}
		n.reset(newGeometry(sh.buckets, sh.wide, sh.base, s.next()))
	}
	if fill(n) {
		return n
	}
	return nil
}

// mustBuild is like build, but doubles the shape up to bucketsLimit until the rows fit. At that size it
// keeps trying salts: rowsMax rows fill at most five eighths of the slots. A salt then fails with a
// chance of one in millions, whatever the ids are, because nobody knows the salt.
func (s *salts) mustBuild(sh shape, words int, epoch uint64, fill func(*segment) bool) *segment {
	for {
		if n := s.build(sh, words, epoch, fill); n != nil {
			return n
		}
		sh.buckets = max(sh.buckets, min(2*sh.buckets, bucketsLimit))
	}
}
