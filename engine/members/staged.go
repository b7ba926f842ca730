package members

import (
	"encoding/binary"
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

// openStaged returns an iterator at the first staged key of a view, and the states of all parts. The
// iterator is nil if no parts are staged.
func (v *View) openStaged() (it *pebble.Iterator, states []State, err error) {
	if v.split == 0 {
		return nil, nil, nil
	}
	o, found, err := readOutcome(v.disk, v.at, v.split)
	if err != nil || !found { // without an outcome, Trim has removed the parts
		return nil, nil, err
	}
	if states, err = o.parts(); err != nil {
		return nil, nil, err
	}
	all := v.at.kind(keyStaged)
	if it, err = v.disk.NewIter(&pebble.IterOptions{LowerBound: all, UpperBound: scarce.PrefixEnd(all)}); err != nil {
		return nil, nil, damaged(err)
	}
	it.First()
	return it, states, nil
}

// eachStaged calls fn with each staged pair and deleted row, by part, until fn returns an error. The
// iterator is at the first key.
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
