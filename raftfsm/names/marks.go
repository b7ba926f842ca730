package names

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sort"
	"sync"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

const (
	// markMillis is the time, in milliseconds, of which the last mark is kept. An age is wrong by at most
	// this.
	markMillis = int64(time.Hour / time.Millisecond)
	// marksMax bounds the marks to two years of hours and 320 kB. Of older marks, fewer are kept.
	marksMax = 20_000
)

// mark says that all numbers below next were given at or before the time at.
type mark struct {
	at   int64 // log time in Unix milliseconds
	next uint64
}

func (m mark) digest() uint64 { return wire.MixNext(wire.MixNext(uint64(m.at)) ^ m.next) }

// marks say when numbers were given. Of each hour of log time in which numbers were given, there is the
// last mark. Both fields of marks rise from mark to mark.
//
// Each mark is true by itself, whichever others there are. So a mark may be left out, and then numbers
// look younger than they are.
type marks struct {
	sum uint64 // sum of the digests; nobody reads it while an entry is applied

	mu struct {
		sync.Mutex
		all []mark
	}
}

// add adds a mark, unless the last mark covers as many numbers. A time before that of the last mark,
// which only a restore has, counts as that.
func (m *marks) add(added mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.mu.all
	if n := len(all); n > 0 {
		last := all[n-1]
		if added.next <= last.next {
			return
		}
		if added.at = max(added.at, last.at); added.at/markMillis == last.at/markMillis {
			m.sum -= last.digest()
			all = all[:n-1]
		}
	}
	if len(all) == marksMax {
		all = m.thin(all)
	}
	m.sum += added.digest()
	m.mu.all = append(all, added)
}

// thin leaves every second mark of the older half out.
func (m *marks) thin(all []mark) []mark {
	half := len(all) / 2
	for i := range half / 2 {
		m.sum -= all[2*i].digest()
		all[i] = all[2*i+1]
	}
	return append(all[:half/2], all[half:]...)
}

// young returns the lowest number that may have been given after a time in Unix milliseconds.
func (m *marks) young(after int64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := sort.Search(len(m.mu.all), func(i int) bool { return m.mu.all[i].at > after })
	if i == 0 {
		return 1
	}
	return m.mu.all[i-1].next
}

// appendMarks appends marks, in the form of a snapshot:
//
//	time minus the previous (uvarint) | next minus the previous (uvarint) …
func appendMarks(dst []byte, all []mark) []byte {
	var last mark
	for _, m := range all {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(m.at-last.at)), m.next-last.next)
		last = m
	}
	return dst
}

// parseMarks decodes marks of numbers below next.
func parseMarks(p []byte, next uint64) ([]mark, error) {
	var all []mark
	var last mark
	for r := (wire.Reader{Rest: p}); len(r.Rest) > 0; {
		since, given := r.UintTo(timeMax), r.UintTo(NumberMax+1)
		m := mark{last.at + int64(since), last.next + given}
		later := len(all) == 0 || m.at/markMillis > last.at/markMillis
		if r.Err != nil || !later || m.at > timeMax || given == 0 || m.next < 2 || m.next > next || len(all) == marksMax {
			return nil, fmt.Errorf("%w: mark %d, next number %d at %d", codec.ErrSnapshot, len(all), m.next, m.at)
		}
		all, last = append(all, m), m
	}
	return all, nil
}

// timeMax bounds the times of marks, in Unix milliseconds.
const timeMax = 1 << 53

// load adds the marks of a snapshot.
func (m *marks) load(all []mark) {
	for _, one := range all {
		m.add(one)
	}
}

// copy returns a copy of all marks.
func (m *marks) copy() []mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]mark(nil), m.mu.all...)
}

// digest returns the part of the shard's digest that is of marks and the next number.
func (m *marks) digest(next uint64) uint64 {
	return bits.RotateLeft64(wire.MixNext(next)-wire.MixNext(1)+m.sum, 1)
}
