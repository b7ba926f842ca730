package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// This file has the entries by which a shard grows. Each is the only section of its entry:
//
//	split:   route | attempt | term | group of the shard | divisor, 0 for sharding by hash | number of other parts | group …
//	abandon: route | attempt
//	adopt:   group of the parent | index of the split | number of the part | group of the part | rows | digest (8)
//
// All numbers but the digest are uvarints. The route is the parent's before the split.

// SplitEntry splits a shard into 1+len(Children) parts of equal size. The parts depend only on the
// entry, so that all replicas get the same ones.
type SplitEntry struct {
	From     codec.Route // route of the shard before the split
	Attempt  uint32      // number of the attempt, which is also the new name of the shard as a judge
	Term     uint64      // term in which the leader checked the members; in another term, the entry changes nothing
	Group    uint32      // number of the shard's group
	Divisor  uint64      // Route.Divisor of the keyspace; 0 for sharding by hash
	Children []uint32    // groups of the other parts
}

// AbandonEntry makes an attempt to split a shard void, if the shard has not split before.
type AbandonEntry struct {
	From    codec.Route
	Attempt uint32
}

// AdoptEntry makes a part that is parked on each node the contents of the child's shard there.
type AdoptEntry struct {
	Parent uint32 // group of the parent
	Split  uint64 // index of the entry that split the parent
	Part   int    // number of the part, at least 1
	Group  uint32 // group of the child
	Rows   uint64
	Digest uint64 // of the part, with the positions
}

// partsMax bounds the parts of a split. The catalog allows fewer shards.
const partsMax = 1 << 16

// Entry returns the log entry for a shard of a kind.
func (e *SplitEntry) Entry(kind codec.Kind) []byte {
	return growthEntry(kind, codec.SectionSplit, func(b []byte) []byte {
		b = appendUvarints(e.From.AppendTo(b), uint64(e.Attempt), e.Term, uint64(e.Group), e.Divisor, uint64(len(e.Children)))
		for _, group := range e.Children {
			b = binary.AppendUvarint(b, uint64(group))
		}
		return b
	})
}

// Entry returns the log entry for a shard of a kind.
func (e *AbandonEntry) Entry(kind codec.Kind) []byte {
	return growthEntry(kind, codec.SectionAbandon, func(b []byte) []byte {
		return appendUvarints(e.From.AppendTo(b), uint64(e.Attempt))
	})
}

// Entry returns the log entry for a shard of a kind.
func (e *AdoptEntry) Entry(kind codec.Kind) []byte {
	return growthEntry(kind, codec.SectionAdopt, func(b []byte) []byte {
		b = appendUvarints(b, uint64(e.Parent), e.Split, uint64(e.Part), uint64(e.Group), e.Rows)
		return binary.LittleEndian.AppendUint64(b, e.Digest)
	})
}

func growthEntry(kind codec.Kind, section byte, fill func([]byte) []byte) []byte {
	b := append(codec.BeginEntry(nil, kind, 0), section, 0, 0, 0, 0)
	head := len(b)
	b = fill(b)
	binary.LittleEndian.PutUint32(b[head-4:], uint32(len(b)-head))
	return codec.AppendChecksum(b)
}

func appendUvarints(b []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// parseGrowth parses the sections of an entry for which codec.Grows returns true. It returns a
// *SplitEntry, *AbandonEntry or *AdoptEntry.
func parseGrowth(sections []byte) (any, error) {
	section, p, rest, err := codec.NextSection(sections)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: %d bytes behind a growth", codec.ErrEntry, len(rest))
	}
	if err != nil {
		return nil, err
	}
	if section == codec.SectionAdopt {
		r := wire.Reader{Rest: p}
		e := &AdoptEntry{
			Parent: uint32(r.UintTo(1<<32 - 1)), Split: r.Uint(), Part: int(r.UintTo(partsMax)), Group: uint32(r.UintTo(1<<32 - 1)),
			Rows: r.Uint(), Digest: r.Fixed64(),
		}
		return e, growthError(r.End())
	}
	from, p, ok := codec.ParseRoute(p)
	if !ok {
		return nil, fmt.Errorf("%w: a split without a route", codec.ErrEntry)
	}
	r := wire.Reader{Rest: p}
	attempt := uint32(r.UintTo(1<<32 - 1))
	if section == codec.SectionAbandon {
		return &AbandonEntry{From: from, Attempt: attempt}, growthError(r.End())
	}
	e := &SplitEntry{From: from, Attempt: attempt, Term: r.Uint(), Group: uint32(r.UintTo(1<<32 - 1)), Divisor: r.Uint()}
	for range r.CountTo(1, partsMax-1) {
		e.Children = append(e.Children, uint32(r.UintTo(1<<32-1)))
	}
	err = growthError(r.End())
	if err == nil && (len(e.Children) == 0 || uint64(from.Modulus)*uint64(1+len(e.Children)) > codec.ModulusMax || e.Divisor > 0 && uint64(from.Modulus)%e.Divisor != 0) {
		err = fmt.Errorf("%w: a split of %s, with the divisor %d, into %d parts", codec.ErrEntry, from, e.Divisor, 1+len(e.Children))
	}
	return e, err
}

func growthError(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: a growth: %w", codec.ErrEntry, err)
	}
	return err
}

// split returns the split that the entry at index describes.
func (e *SplitEntry) split(index uint64) *Split {
	count := 1 + len(e.Children)
	by := Partition{From: e.From, Divisor: e.Divisor, Parts: uint32(count)}
	s := &Split{Index: index, Attempt: uint64(e.Attempt), From: e.From, Group: e.Group, By: by}
	for i := range count {
		part := dedup.Part{Judge: e.Attempt, Route: codec.Route{
			Modulus: e.From.Modulus * uint32(count), Residue: e.From.Residue + uint32(i)*e.From.Modulus,
		}}
		if i > 0 {
			part.Judge = e.Children[i-1]
		}
		s.Parts = append(s.Parts, part)
	}
	s.PartOf = s.By.Of
	return s
}
