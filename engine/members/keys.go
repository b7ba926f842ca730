package members

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// These are the keys in Pebble. Integers are big-endian. Each key is padded with zeros to keyBytes
// bytes (see columns.go). Here, row is the key of a row in its shard, and generation is the number
// of a load of the group's sets from another replica; only the generation that the state names is
// in use. A pair has a key of each of the first three kinds.
//
//	'm' | group (4) | generation (4) | row (8) | column (1) | member (8) | stamp (6)    → nothing
//	't' | group (4) | generation (4) | row (8) | column (1) | ^stamp (6) | member (8)   → nothing
//	'r' | group (4) | generation (4) | member (8) | column (1) | ^stamp (6) | row (8)   → nothing
//	'd' | group (4) | generation (4) | row (8)       a deleted row → stamp (6) up to which its pairs are gone
//	'o' | group (4) | generation (4) | index (8)     outcome of an entry, see outcome.go
//	's' | group (4)                                  → see groupState
//
// After a Split, the pairs and deleted rows of a part are in a home (home.go): their keys have the
// number homesGroup in place of a group, and the number of the home in place of a generation. The
// records of a Split name the homes of its parts:
//
//	'x' | group | generation | index of the Split (8) | part (4)    → home (4)
//
// The record of part 0 names the home of the sets before the Split instead, or 0.
const (
	keyMember  = 'm'
	keyTime    = 't'
	keyOf      = 'r'
	keyDead    = 'd'
	keyOutcome = 'o'
	keyState   = 's'
	keyRecord  = 'x'
)

// kinds are all kinds of keys, ascending.
var kinds = [...]byte{keyDead, keyMember, keyOutcome, keyOf, keyState, keyTime, keyRecord}

// generationKinds are the kinds of keys that have a generation. Records are last.
var generationKinds = [...]byte{keyMember, keyTime, keyOf, keyDead, keyOutcome, keyRecord}

// pairKinds are the kinds of keys that a home has.
var pairKinds = [...]byte{keyMember, keyTime, keyOf, keyDead}

const (
	groupPrefixBytes = 5
	prefixBytes      = groupPrefixBytes + 4 // up to and including the generation
	listBytes        = prefixBytes + 8 + 1  // up to and including the column
	pairBytesOfKey   = listBytes + 8        // up to and including the member
	keyBytes         = listBytes + 8 + stampBytes
)

// comparer orders keys by their bytes. It also defines the prefixes for Pebble's filters: the
// prefix of a pair's key ends after the member, and the prefix of a list's key after the column.
var comparer = func() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Name = "countd.members.1"
	c.Split = func(key []byte) int {
		switch {
		case len(key) > listBytes && (key[0] == keyTime || key[0] == keyOf):
			return listBytes
		case len(key) > pairBytesOfKey && key[0] == keyMember:
			return pairBytesOfKey
		}
		return len(key)
	}
	// When Pebble seeks by prefix, it ignores range deletions above the immediate successor of the
	// prefix. Pebble's default successor is the prefix with a zero appended, which is below some
	// keys with the prefix. So with the default, the seek would return deleted keys.
	c.ImmediateSuccessor = func(dst, prefix []byte) []byte {
		if longer := append(bytes.Clone(prefix), 0); c.Split(longer) == len(longer) {
			return append(dst, longer...)
		}
		return append(dst, bytes.TrimRight(scarce.PrefixEnd(prefix), "\x00")...)
	}
	return &c
}()

// Pair names a member and the set that it is in.
type Pair struct {
	Row    uint64
	Member uint64
	Column uint8
}

// compare orders pairs like their keys.
func (p Pair) compare(o Pair) int {
	return cmp.Or(cmp.Compare(p.Row, o.Row), cmp.Compare(p.Column, o.Column), cmp.Compare(p.Member, o.Member))
}

// placement is a pair on disk, with its stamp.
type placement struct {
	Pair
	at Stamp
}

// homesGroup stands in the keys of homes in place of a group. No group has this number.
const homesGroup = math.MaxUint32

func home(number uint32) prefix { return prefix{homesGroup, number} }

// homeOr returns the prefix of a home, or other if number is 0.
func homeOr(number uint32, other prefix) prefix {
	if number == 0 {
		return other
	}
	return home(number)
}

// home returns the number of a home, or 0 for another prefix.
func (at prefix) home() uint32 {
	if at.group != homesGroup {
		return 0
	}
	return at.generation
}

// removePairs removes all pairs and deleted rows under a prefix, in a batch.
func (at prefix) removePairs(batch *pebble.Batch) error { return at.removeKinds(batch, pairKinds[:]) }

// removeAll removes all keys of a generation in a batch. Without records, it does not remove records, because a range
// deletion would widen the next file to the records of other groups.
func (at prefix) removeAll(batch *pebble.Batch, records bool) error {
	kinds := generationKinds[:]
	if !records {
		kinds = kinds[:len(kinds)-1]
	}
	return at.removeKinds(batch, kinds)
}

func (at prefix) removeKinds(batch *pebble.Batch, kinds []byte) (err error) {
	for _, kind := range kinds {
		from := at.kind(kind)
		err = errors.Join(err, batch.DeleteRange(from, scarce.PrefixEnd(from), nil))
	}
	return err
}

func groupPrefix(kind byte, group uint32) []byte {
	return binary.BigEndian.AppendUint32(append(make([]byte, 0, keyBytes), kind), group)
}

// prefix contains what all keys of a generation begin with, apart from the kind.
type prefix struct {
	group, generation uint32
}

func (p prefix) kind(kind byte) []byte {
	return binary.BigEndian.AppendUint32(groupPrefix(kind, p.group), p.generation)
}

func (p prefix) number(kind byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(p.kind(kind), n)
}

func full(key []byte) []byte { return append(key, make([]byte, keyBytes-len(key))...) }

// put writes the kind and the prefix to the first bytes of dst.
func (p prefix) put(dst []byte, kind byte) {
	dst[0] = kind
	binary.BigEndian.PutUint32(dst[1:], p.group)
	binary.BigEndian.PutUint32(dst[groupPrefixBytes:], p.generation)
}

func (p prefix) member(pair Pair, at Stamp) (key [keyBytes]byte) {
	p.put(key[:], keyMember)
	binary.BigEndian.PutUint64(key[prefixBytes:], pair.Row)
	key[prefixBytes+8] = pair.Column
	binary.BigEndian.PutUint64(key[listBytes:], pair.Member)
	putStamp(key[pairBytesOfKey:], at)
	return key
}

// byTime returns the key of a line of a list: a member of a row (keyTime), or a row of a member (keyOf).
func (p prefix) byTime(kind byte, of uint64, column uint8, line Entry) (key [keyBytes]byte) {
	p.put(key[:], kind)
	binary.BigEndian.PutUint64(key[prefixBytes:], of)
	key[prefixBytes+8] = column
	putStamp(key[listBytes:], ^line.At&stampMax)
	binary.BigEndian.PutUint64(key[listBytes+stampBytes:], line.ID)
	return key
}

// parsePair reads a key of keyMember.
func parsePair(key []byte) (Pair, Stamp, error) {
	if len(key) != keyBytes {
		return Pair{}, 0, fmt.Errorf("%w: key % x", ErrDamaged, key)
	}
	return Pair{
		Row: binary.BigEndian.Uint64(key[prefixBytes:]), Column: key[prefixBytes+8],
		Member: binary.BigEndian.Uint64(key[listBytes:]),
	}, stampAt(key[pairBytesOfKey:]), nil
}

// parseLine reads a key of keyTime or keyOf.
func parseLine(key []byte) (of uint64, column uint8, line Entry, err error) {
	if len(key) != keyBytes {
		return 0, 0, Entry{}, fmt.Errorf("%w: key % x", ErrDamaged, key)
	}
	line = Entry{ID: binary.BigEndian.Uint64(key[listBytes+stampBytes:]), At: ^stampAt(key[listBytes:]) & stampMax}
	return binary.BigEndian.Uint64(key[prefixBytes:]), key[prefixBytes+8], line, nil
}

// hash mixes a pair with its stamp into 64 bits.
func hash(p Pair, at Stamp) uint64 {
	h := mix(p.Row*0x9e3779b97f4a7c15 + uint64(p.Column) + 1)
	h = mix(h ^ p.Member)
	return mix(h + uint64(at))
}

// mix is the finalizer of MurmurHash3. It must never change, because replicas compare digests.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

func appendStamp(dst []byte, s Stamp) []byte {
	var b [stampBytes]byte
	putStamp(b[:], s)
	return append(dst, b[:]...)
}
