package raftfsm

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// Section accepts each key only once, and only in the order of the hashes across all sections. It
// refuses a truncated section.
func TestBodiesInOrder(t *testing.T) {
	keys := []uint64{1, 2, 3, 4}
	slices.SortFunc(keys, func(a, b uint64) int {
		if spill.Hash(a) < spill.Hash(b) {
			return -1
		}
		return 1
	})
	section := func(keys ...uint64) []byte { // returns a section of empty bodies
		p := binary.LittleEndian.AppendUint32(nil, uint32(len(keys)))
		for _, key := range keys {
			p = binary.LittleEndian.AppendUint64(p, key)
		}
		return p
	}
	read := func(sections ...[]byte) (got []uint64, err error) {
		var r BodyReader
		for _, p := range sections {
			if err = r.Section(p, func(key uint64, _ *wire.Reader) error {
				got = append(got, key)
				return nil
			}); err != nil {
				return got, err
			}
		}
		return got, nil
	}
	whole := section(keys...)
	if got, err := read(section(keys[:2]...), section(keys[2:]...)); err != nil || !slices.Equal(got, keys) {
		t.Errorf("got %v, %v, want %v", got, err, keys)
	}
	for name, sections := range map[string][][]byte{
		"out of order":             {section(keys[1], keys[0])},
		"twice":                    {section(keys[0], keys[0])},
		"out of order of sections": {section(keys[1:]...), section(keys[0])},
		"twice in two sections":    {section(keys[0]), section(keys[0])},
		"empty":                    {{}},
		"short of a key":           {whole[:len(whole)-1]},
		"more than its keys":       {append(slices.Clone(whole), 0)},
	} {
		if got, err := read(sections...); !errors.Is(err, codec.ErrSnapshot) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
