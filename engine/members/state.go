package members

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// State describes a group's sets after an entry.
type State struct {
	Index  uint64 // index of the last entry with an outcome
	Digest uint64 // the sum of hash over all pairs
	Pairs  uint64
	Stamp  Stamp // the highest issued stamp
}

// Add adds a pair to Pairs and Digest. A reader of all pairs computes the state with it, and
// compares the result with the stored state.
func (s *State) Add(p Pair, at Stamp) {
	s.Pairs++
	s.Digest += hash(p, at)
}

// remove is the reverse of Add.
func (s *State) remove(p placement) {
	s.Pairs--
	s.Digest -= hash(p.Pair, p.at)
}

// check returns an ErrDamaged unless s has the number and the digest of the pairs of want.
func (s State) check(want State) error {
	if s.Pairs != want.Pairs || s.Digest != want.Digest {
		return fmt.Errorf("%w: %d pairs, digest %016x, want %d, %016x", ErrDamaged, s.Pairs, s.Digest, want.Pairs, want.Digest)
	}
	return nil
}

const stateBytes = 30

func (s State) appendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, s.Index)
	dst = binary.BigEndian.AppendUint64(dst, s.Digest)
	return appendStamp(binary.BigEndian.AppendUint64(dst, s.Pairs), s.Stamp)
}

func parseState(b []byte) (State, error) {
	if len(b) != stateBytes {
		return State{}, fmt.Errorf("%w: a state of %d bytes", ErrDamaged, len(b))
	}
	return State{
		Index: binary.BigEndian.Uint64(b), Digest: binary.BigEndian.Uint64(b[8:]),
		Pairs: binary.BigEndian.Uint64(b[16:]), Stamp: stampAt(b[24:]),
	}, nil
}

// groupState is the value of a key of keyState:
//
//	generation (4) | state | index of the last Split (8) | home (4)
//
// If both are 0, the index and the home are left out.
// No bytes mean that the sets were given up (see discard.go).
type groupState struct {
	generation uint32
	state      State
	split      uint64 // it has records as long as its outcome exists; 0 if no Split has records
	home       uint32 // home of the pairs; 0 if they have the group's own generation
}

// log returns the prefix of the outcomes and records of a group.
func (s *groupState) log(number uint32) prefix { return prefix{number, s.generation} }

// pairs returns the prefix of the pairs and deleted rows of a group.
func (s *groupState) pairs(number uint32) prefix { return homeOr(s.home, s.log(number)) }

// ownPairs reports whether there may be pairs in use under the group's own generation.
func (s *groupState) ownPairs() bool { return s.home == 0 || s.split > 0 }

// errGivenUp is returned for sets that Discard or a Load has given up.
var errGivenUp = fmt.Errorf("%w: they were given up", ErrDamaged)

// set adds the state of a group to a batch.
func (s *groupState) set(batch *pebble.Batch, number uint32) error {
	value := s.state.appendTo(binary.BigEndian.AppendUint32(nil, s.generation))
	if s.split > 0 || s.home > 0 {
		value = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(value, s.split), s.home)
	}
	return batch.Set(full(groupPrefix(keyState, number)), value, nil)
}

func parseGroupState(value []byte) (s groupState, err error) {
	switch len(value) {
	case 0:
		return s, errGivenUp
	case 4 + stateBytes + 8 + 4:
		s.split, s.home = binary.BigEndian.Uint64(value[4+stateBytes:]), binary.BigEndian.Uint32(value[4+stateBytes+8:])
	case 4 + stateBytes + 8: // of a version without homes: see errOldSplit
		s.split = binary.BigEndian.Uint64(value[4+stateBytes:])
	case 4 + stateBytes:
	default:
		return s, fmt.Errorf("%w: a group's state of %d bytes", ErrDamaged, len(value))
	}
	s.generation = binary.BigEndian.Uint32(value)
	s.state, err = parseState(value[4 : 4+stateBytes])
	return s, err
}

func readState(from reader, number uint32) (groupState, error) {
	value, closer, err := from.Get(full(groupPrefix(keyState, number)))
	if errors.Is(err, pebble.ErrNotFound) {
		return groupState{generation: 1}, nil
	}
	if err != nil {
		return groupState{}, damaged(err)
	}
	defer closer.Close()
	return parseGroupState(value)
}

func readDead(from reader, at prefix) (map[uint64]Stamp, error) {
	dead := map[uint64]Stamp{}
	err := each(from, at.kind(keyDead), func(key, value []byte) (bool, error) {
		if len(key) != keyBytes || len(value) != stampBytes {
			return false, fmt.Errorf("%w: a deleted row % x", ErrDamaged, key)
		}
		dead[binary.BigEndian.Uint64(key[prefixBytes:])] = stampAt(value)
		return true, nil
	})
	return dead, err
}
