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
//	generation (4) | state | index of the last Split (8), only if there was one
//
// No bytes mean that the sets were given up (see discard.go).
type groupState struct {
	generation uint32
	state      State
	split      uint64 // its parts are staged as long as its outcome exists; 0 if no parts are
}

// errGivenUp is returned for sets that Discard or a Load has given up.
var errGivenUp = fmt.Errorf("%w: they were given up", ErrDamaged)

// setState adds the state of the sets to a batch.
func (at prefix) setState(batch *pebble.Batch, s State, split uint64) error {
	value := s.appendTo(binary.BigEndian.AppendUint32(nil, at.generation))
	if split > 0 {
		value = binary.BigEndian.AppendUint64(value, split)
	}
	return batch.Set(full(groupPrefix(keyState, at.group)), value, nil)
}

func parseGroupState(value []byte) (s groupState, err error) {
	switch len(value) {
	case 0:
		return s, errGivenUp
	case 4 + stateBytes + 8:
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
