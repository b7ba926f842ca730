package members

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// staged is a staged pair, or a deleted row if dead is set.
type staged struct {
	part int
	dead bool
	placement
}

func (p prefix) staged(part int, kind byte, of Pair) (key [keyBytes]byte) {
	p.put(key[:], keyStaged)
	binary.BigEndian.PutUint32(key[prefixBytes:], uint32(part))
	key[prefixBytes+4] = kind
	binary.BigEndian.PutUint64(key[prefixBytes+5:], of.Row)
	key[prefixBytes+13] = of.Column
	binary.BigEndian.PutUint64(key[prefixBytes+14:], of.Member)
	return key
}

func parseStaged(key, value []byte) (s staged, err error) {
	if len(key) != keyBytes || len(value) != stampBytes || key[prefixBytes+4] != keyDead && key[prefixBytes+4] != keyMember {
		return s, fmt.Errorf("%w: a staged key % x", ErrDamaged, key)
	}
	s.part, s.dead, s.at = int(binary.BigEndian.Uint32(key[prefixBytes:])), key[prefixBytes+4] == keyDead, stampAt(value)
	s.Row, s.Column, s.Member = binary.BigEndian.Uint64(key[prefixBytes+5:]), key[prefixBytes+13], binary.BigEndian.Uint64(key[prefixBytes+14:])
	return s, nil
}

// readSplit returns the index of the Split whose parts are staged, or 0 if none are.
func readSplit(from reader, at prefix) (index uint64, err error) {
	value, closer, err := from.Get(full(at.kind(keyStaged)))
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, damaged(err)
	}
	defer closer.Close()
	return parseSplit(value)
}

func parseSplit(value []byte) (index uint64, err error) {
	if len(value) != 8 {
		return 0, fmt.Errorf("%w: an index of %d bytes", ErrDamaged, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

// openStaged returns an iterator at the first staged key of a part, and the index of the Split that staged
// the parts, or 0 if none are staged. The iterator has all parts of the Split, whatever is removed
// meanwhile.
func openStaged(from reader, at prefix) (it *pebble.Iterator, split uint64, err error) {
	mark := full(at.kind(keyStaged))
	it, err = from.NewIter(&pebble.IterOptions{LowerBound: mark, UpperBound: scarce.PrefixEnd(at.kind(keyStaged))})
	if err != nil {
		return nil, 0, damaged(err)
	}
	if it.First() && bytes.Equal(it.Key(), mark) {
		var value []byte
		if value, err = it.ValueAndErr(); err == nil {
			split, err = parseSplit(value)
		}
		it.Next()
	}
	if err = errors.Join(err, it.Error()); err != nil {
		return nil, 0, damaged(errors.Join(err, it.Close()))
	}
	return it, split, nil
}

// eachStaged calls fn with each staged pair and deleted row, by part, until fn returns an error.
func eachStaged(it *pebble.Iterator, fn func(staged) error) error {
	for ; it.Valid(); it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return damaged(err)
		}
		s, err := parseStaged(it.Key(), value)
		if err == nil {
			err = fn(s)
		}
		if err != nil {
			return err
		}
	}
	return damaged(it.Error())
}
