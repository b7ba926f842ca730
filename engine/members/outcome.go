package members

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// outcome records the effect of an entry on the sets. A replay of the entry needs it when the sets already
// have the changes of later entries:
//
//	previous (8) | state after the entry, see State | judged …
//
// previous is the index of the previous entry with an outcome. judged has a bit for each Join or
// Leave of the entry, which is set if the op changed its set. For a Split, judged has the states of
// all parts but the first instead.
type outcome struct {
	previous uint64
	after    State
	judged   []byte // shares memory with the parsed bytes
}

const outcomeBytesMin = 8 + stateBytes

func (o *outcome) appendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, o.previous)
	return append(o.after.appendTo(dst), o.judged...)
}

func parseOutcome(b []byte) (o outcome, err error) {
	if len(b) < outcomeBytesMin {
		return o, fmt.Errorf("%w: an outcome of %d bytes", ErrDamaged, len(b))
	}
	o.previous, o.judged = binary.BigEndian.Uint64(b), b[outcomeBytesMin:]
	o.after, err = parseState(b[8:outcomeBytesMin])
	return o, err
}

func (o *outcome) bit(op int) bool {
	return op/8 < len(o.judged) && o.judged[op/8]&(1<<(op%8)) != 0
}

func (o *outcome) set(op int) {
	for op/8 >= len(o.judged) {
		o.judged = append(o.judged, 0)
	}
	o.judged[op/8] |= 1 << (op % 8)
}

// parts returns the states of all parts from the outcome of a Split.
func (o *outcome) parts() ([]State, error) {
	states := []State{o.after}
	for b := o.judged; len(b) > 0; {
		s, err := parseState(b[:min(len(b), stateBytes)])
		if err != nil {
			return nil, err
		}
		states, b = append(states, s), b[stateBytes:]
	}
	return states, nil
}

// before returns the state before a Split with this outcome, which has made the given parts.
func (o *outcome) before(parts []State) State {
	s := State{Index: o.previous, Stamp: o.after.Stamp}
	for _, part := range parts {
		s.Digest += part.Digest
		s.Pairs += part.Pairs
	}
	return s
}

// readOutcome returns the outcome of an entry, or false if it has none.
func readOutcome(from reader, at prefix, index uint64) (o outcome, found bool, err error) {
	value, closer, err := from.Get(full(at.number(keyOutcome, index)))
	if errors.Is(err, pebble.ErrNotFound) {
		return o, false, nil
	}
	if err != nil {
		return o, false, damaged(err)
	}
	defer closer.Close()
	if o, err = parseOutcome(append([]byte(nil), value...)); err == nil && o.after.Index != index {
		err = fmt.Errorf("%w: outcome %d is of entry %d", ErrDamaged, index, o.after.Index)
	}
	return o, true, err
}
