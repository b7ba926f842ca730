package raftfsm

import (
	"fmt"
	"io"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// Kind has the functions of one kind of shard. The number of an op has one meaning for shards of
// all kinds, is never used again, and has no flags: docs/FORMAT.md lists the numbers.
type Kind interface {
	Number() codec.Kind
	// New returns the state machine before its first entry.
	New(Places) Machine
	// TakesSources reports whether sources may write to shards of this kind.
	TakesSources() bool
	// Check decodes the ops of a request and calls the visitor with each. It reports whether
	// the leader's time must precede the request in an entry.
	Check(id *dedup.RequestID, ops []byte, see *SectionVisitor) (n int, clocked bool, err error)
	// Walk returns the reader of one snapshot, which calls the visitor with its contents and sets
	// the facts, except Index and Digest.
	Walk(see *SnapshotVisitor, facts *SnapshotFacts) Walk
	// ParseQuery parses the query with a number that Query.AppendTo wrote. If the kind has none with
	// this number, it returns NoQuery.
	ParseQuery(number byte, r *wire.Reader) Query
}

// Walk reads the sections of a snapshot in order, except those of the request memory.
type Walk func(s *codec.StreamReader, kind byte, p []byte) error

// Places configures where contents may be stored besides memory. Each replica decides this for
// itself. The zero Places store them only in memory, and rows only in segments.
type Places struct {
	Cold    *cold.Group    // rows on disk; nil for none
	Members *members.Group // sets of members, on disk; nil for none
	Bodies  spill.Place    // bodies of idle keys
	// Seal reports whether the rows of a snapshot with the keys first … last are sealed while they
	// are loaded. If Seal is nil, no rows are sealed.
	Seal func(first, last uint64) bool
}

// SectionVisitor receives the ops of a request's section, in order. It must not keep
// them. Its error ends the visit. A nil function skips its part.
type SectionVisitor struct {
	// Op receives each op on a row, and the change of the count of each other op of a kind with rows.
	Op func(table Table, key uint64, op *engine.Op) error
	// Body receives the ops on what a kind keeps under a key besides rows, as a pointer to an op of
	// the kind, after all calls of Op.
	Body func(key uint64, op any) error
	// Member receives the pairs that join or leave sets, after all calls of Op.
	Member func(p members.Pair) error
}

// SnapshotVisitor receives the contents of a snapshot. It must not keep its arguments.
// A nil function skips its part.
type SnapshotVisitor struct {
	// Members receives the members of sets, by ascending rows, columns and members. It is
	// called before Rows.
	Members func(p members.Pair, at members.Stamp) error
	// Rows receives the rows of each table after the other, by ascending keys.
	Rows func(table Table, p *engine.Page) error
	// Body receives what a kind keeps under a key besides rows, behind the rows, as a pointer to a
	// type of the kind.
	Body func(key uint64, body any) error
	// Positions receives the positions of sources, ascending, and their part of the digest. It is
	// called last, and only if the snapshot has a section of positions.
	Positions func(all []dedup.PositionRecord, digest uint64) error
}

// SeeBody calls Body, if it is not nil.
func (v *SnapshotVisitor) SeeBody(key uint64, body any) error {
	if v.Body == nil {
		return nil
	}
	return v.Body(key, body)
}

// Kinds are the kinds of shards that a program knows.
type Kinds []Kind

// of returns the kind of a number, or false if no shard is of that kind.
func (k Kinds) of(number codec.Kind) (Kind, bool) {
	for _, kind := range k {
		if kind.Number() == number {
			return kind, true
		}
	}
	return nil, false
}

// New returns the state machine of a shard before its first entry. For an unknown kind,
// which the cluster version rules out, it returns a machine of the first kind.
func (k Kinds) New(number codec.Kind, places Places) Machine {
	if kind, known := k.of(number); known {
		return kind.New(places)
	}
	return k[0].New(places)
}

// ParseQuery parses a query of a kind; see Kind.ParseQuery.
func (k Kinds) ParseQuery(of codec.Kind, number byte, r *wire.Reader) Query {
	if kind, known := k.of(of); known {
		return kind.ParseQuery(number, r)
	}
	return NoQuery(number, r)
}

// CheckSection calls a visitor with the ops of a request's section for a shard of a kind and a
// route. It returns the number of ops, and whether the leader's time must precede the section in an
// entry. It refuses a section that no RequestWriter makes, because that section in an entry would
// stop every replica. It returns an ErrRoute for a section of another route, and the visitor's
// error.
func (k Kinds) CheckSection(number codec.Kind, route codec.Route, section []byte, see SectionVisitor) (ops int, clocked bool, err error) {
	form, payload, rest, err := codec.NextSection(section)
	if err != nil {
		return 0, false, err
	}
	if len(rest) > 0 {
		return 0, false, fmt.Errorf("%w: %d bytes behind the section", codec.ErrEntry, len(rest))
	}
	var id dedup.RequestID
	to, payload, err := parseRequest(form, payload, &id)
	if err == nil {
		err = route.Check(to)
	}
	if err != nil {
		return 0, false, err
	}
	kind, known := k.of(number)
	if !known {
		return 0, false, fmt.Errorf("%w: a section for %s", codec.ErrEntry, number)
	}
	if id.MovesPositions() && !kind.TakesSources() {
		return 0, false, fmt.Errorf("%w: a section of a source for %s", codec.ErrEntry, number)
	}
	ops, clocked, err = kind.Check(&id, payload, &see)
	return ops, clocked || id.Exists(), err
}

// OpenSnapshot reads the head of a snapshot of a shard of a kind and a route, and refuses any
// other.
func (k Kinds) OpenSnapshot(r io.Reader, number codec.Kind, route codec.Route) (*SnapshotReader, error) {
	kind, known := k.of(number)
	if !known {
		return nil, fmt.Errorf("%w: a shard of %s", codec.ErrSnapshot, number)
	}
	s := codec.NewStreamReader(r)
	index, err := s.Head(number, route)
	return &SnapshotReader{s, kind, index}, err
}

// VisitSnapshot is OpenSnapshot and Visit.
func (k Kinds) VisitSnapshot(r io.Reader, number codec.Kind, route codec.Route, v SnapshotVisitor) (SnapshotFacts, error) {
	s, err := k.OpenSnapshot(r, number, route)
	if err != nil {
		return SnapshotFacts{}, err
	}
	return s.Visit(v)
}

// SourceOf returns the section of a source in a request's section. It returns nil for any other
// request, and for a section that CheckSection refuses.
func SourceOf(section []byte) *dedup.SourceSection {
	form, payload, _, err := codec.NextSection(section)
	if err != nil || form != codec.SectionSource {
		return nil
	}
	var id dedup.RequestID
	if _, _, err := parseRequest(form, payload, &id); err != nil {
		return nil
	}
	return id.SourceSection()
}
