package raftfsm

import (
	"errors"
	"fmt"

	"github.com/countd/countd/raftfsm/spill"
)

// copiedBytesMax bounds the bodies that Split copies a second time, if the parts did not add up.
const copiedBytesMax = 64 << 20

// SplitBodies gives the bodies of a shard to its parts, which have the empty Bodies of to, and returns the Bodies that
// the parts have now. It moves those that Machine.Part has left, and hands all over. If s adopts a part, it hands that
// over. If s has no Partition, or names copies, it calls set with each body and the Bodies of its part.
func SplitBodies(s *Split, of *spill.Bodies, to []*spill.Bodies, set func(part *spill.Bodies, key uint64, body []byte)) ([]*spill.Bodies, error) {
	if s.Adopts != nil {
		took, err := of.HandOver(to[0])
		if errors.Is(err, spill.ErrEnded) {
			return nil, fmt.Errorf("%w: %w", ErrNoPart, err)
		}
		return []*spill.Bodies{took}, err
	}
	if s.By.Parts > 0 && !s.Copies {
		return of.Split(s.By, to)
	}
	if stats := of.Stats(); s.Copies && stats.Bytes+stats.SpilledBytes > copiedBytesMax {
		return nil, fmt.Errorf("%w, and %d bytes of bodies are too many to copy", ErrUneven, stats.Bytes+stats.SpilledBytes)
	}
	view := of.Capture()
	defer view.Close()
	for view.More() {
		key, body, err := view.Next()
		if err != nil {
			return nil, err
		}
		set(to[s.PartOf(key)], key, body)
	}
	return to, nil
}

// PartBodies makes a step of Machine.Part.
func PartBodies(bodies *spill.Bodies, by Partition) (more bool, err error) {
	if more, err = bodies.Part(by); errors.Is(err, spill.ErrEnded) {
		return false, ErrReplaced
	}
	return more, err
}
