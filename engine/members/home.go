package members

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// homes has the owners of all homes. A home is a place for pairs and deleted rows that no group's number is part of.
// So a group hands its pairs to another group by the name of their home, and no change of a group touches the home of
// another one.
//
// Invariants:
//
//   - Each home on disk has one owner: the group whose state or record names it, or whose Parting
//     fills it. One batch hands a home over: it removes the old name, and writes the new one.
//   - The batch that removes the last name of a home removes its keys too, or a later batch does.
//     After a crash in between, Open removes the keys of all homes without a name.
//   - While the store is open, no number is used for two homes.
type homes struct {
	mu struct { // never held during I/O
		sync.Mutex
		owners map[uint32]uint32
		last   uint32 // highest number that was used
		// known is set if Open has read all names. Otherwise, a group that is opened reads the names of its homes.
		known bool
	}
}

// errOldSplit is returned by Open for parts that a development version has staged.
var errOldSplit = errors.New("a shard has split under an earlier version, and its parts are not in homes; run that version until the growth has ended and the shard has taken two snapshots")

// find reads from disk which homes there are, and who owns them. It adds the removal of the others to a batch. If
// some keys are damaged, it removes nothing.
func (h *homes) find(from reader, batch *pebble.Batch) error {
	h.mu.owners = map[uint32]uint32{}
	var found []uint32 // on disk
	var failed error
	err := each(from, []byte{keyState}, func(key, value []byte) (bool, error) {
		state, err := parseGroupState(value)
		if err == nil {
			failed = h.ownAll(from, binary.BigEndian.Uint32(key[1:]), state)
		} else if errors.Is(err, errGivenUp) {
			err = nil
		}
		return failed == nil, err
	})
	if err = errors.Join(failed, err); errors.Is(err, errOldSplit) {
		return err
	}
	for _, kind := range pairKinds {
		for last, more := uint32(0), true; more; { // seek from home to home, also behind damage
			more = false
			err = errors.Join(err, eachFrom(from, home(last+1).kind(kind), scarce.PrefixEnd(groupPrefix(kind, homesGroup)), func(key, _ []byte) (bool, error) {
				last = binary.BigEndian.Uint32(key[groupPrefixBytes:])
				found, more = append(found, last), last < math.MaxUint32
				return false, nil
			}))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := range h.mu.owners {
		h.mu.last = max(h.mu.last, n)
	}
	for _, n := range found {
		h.mu.last = max(h.mu.last, n)
	}
	if h.mu.known = err == nil; err != nil {
		h.mu.last = max(h.mu.last, uint32(time.Now().Unix())) // few homes that are unknown have a number above the clock
		return nil
	}
	for _, n := range found {
		if _, named := h.mu.owners[n]; !named {
			err = errors.Join(err, home(n).removePairs(batch))
		}
	}
	return err
}

// take returns the numbers of n new homes.
func (h *homes) take(owner uint32, n int) (numbers []uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range n {
		for owned := true; owned; _, owned = h.mu.owners[h.mu.last] { // after damage, an owner may be found late
			h.mu.last++
		}
		h.mu.owners[h.mu.last] = owner
		numbers = append(numbers, h.mu.last)
	}
	return numbers
}

// ownAll makes a group the owner of all homes that its state and its records name.
func (h *homes) ownAll(from reader, number uint32, state groupState) (err error) {
	names := []record{{home: state.home}}
	if state.split > 0 {
		var records []record
		records, err = readRecords(from, state.log(number))
		names = append(names, records...)
	}
	for _, r := range names {
		h.own(number, r.home)
	}
	return err
}

// own makes a group the owner of a home, which its state or a record of the group names.
func (h *homes) own(owner, number uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if number > 0 {
		h.mu.owners[number] = owner
	}
}

// of returns the homes that a group owns, ascending.
func (h *homes) of(owner uint32) (numbers []uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n, of := range h.mu.owners {
		if of == owner {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// known reports whether Open has read all names of homes.
func (h *homes) known() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.known
}

// leave removes the keys of homes in a batch. This batch, or an earlier one, removes their names. Unless they have never
// had names, the caller holds Store.naming.
func (h *homes) leave(batch *pebble.Batch, numbers ...uint32) (err error) {
	for _, n := range numbers {
		err = errors.Join(err, home(n).removePairs(batch))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range numbers {
		delete(h.mu.owners, n)
	}
	return err
}

// record is a record of a Split.
type record struct {
	split uint64
	part  int    // 0 for the sets before the Split
	home  uint32 // 0 for the group's own generation
}

func (at prefix) record(split uint64, part int) []byte {
	return full(binary.BigEndian.AppendUint32(at.number(keyRecord, split), uint32(part)))
}

func (r record) set(batch *pebble.Batch, log prefix) error {
	return batch.Set(log.record(r.split, r.part), binary.BigEndian.AppendUint32(nil, r.home), nil)
}

func parseRecord(key, value []byte) (r record, err error) {
	if len(value) == stampBytes {
		return r, errOldSplit
	}
	if len(key) != keyBytes || len(value) != 4 {
		return r, fmt.Errorf("%w: a record % x of a split", ErrDamaged, key)
	}
	return record{
		split: binary.BigEndian.Uint64(key[prefixBytes:]), part: int(binary.BigEndian.Uint32(key[prefixBytes+8:])),
		home: binary.BigEndian.Uint32(value),
	}, nil
}

// readRecords returns the records of a group, ascending by Split and part.
func readRecords(from reader, log prefix) (all []record, err error) {
	var failed error
	err = each(from, log.kind(keyRecord), func(key, value []byte) (bool, error) {
		var r record
		r, failed = parseRecord(key, value)
		all = append(all, r)
		return failed == nil, nil
	})
	return all, errors.Join(failed, err)
}
