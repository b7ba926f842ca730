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

// Kind describes one kind of shard. The number of an op has the same meaning for shards of all
// kinds, and is never reused. docs/FORMAT.md lists the numbers.
type Kind interface {
	Number() codec.Kind
	// New returns the state machine before its first entry.
	New(Places) Machine
	Traits() Traits
	// Check decodes the ops of a request. It calls the visitor with each op, unless the visitor is
	// nil. clocked reports whether a clock section must precede the request in an entry.
	Check(id *dedup.RequestID, ops []byte, v Visitor) (n int, clocked bool, err error)
	// Walk returns the reader of one snapshot. The reader calls the visitor with the contents, and
	// sets all facts except Index and Digest.
	Walk(see *SnapshotVisitor, facts *SnapshotFacts) Walk
	// ParseQuery parses the query that Query.AppendTo wrote; number is its Query.Number. If the
	// kind has no query with this number, it returns the result of NoQuery.
	ParseQuery(number byte, r *wire.Reader) Query
}

// Traits are the properties of the keyspaces and shards of a kind.
type Traits struct {
	Sources    bool // sources may write to the shards
	ColdRows   bool // the shards store old rows and sets of members on disk
	Columns    bool // the keyspaces have columns, and operators may add more
	FloorZero  bool // a new column has the floor 0, unless the request sets another
	Everywhere bool // every node holds a replica of each shard, always
	Undivided  bool // the keyspaces have one shard, for ever
}

// Walk is called with each section of a snapshot in order, except the sections of the request
// memory.
type Walk func(s *codec.StreamReader, kind byte, p []byte) error

// Places configures where contents may be stored besides memory. The replicas of a shard may have
// different Places. With the zero Places, contents are only in memory, and rows are only in
// segments.
type Places struct {
	Cold    *cold.Group    // rows on disk; nil for none
	Members *members.Group // sets of members, on disk; nil for none
	Bodies  spill.Place    // bodies of idle keys
	// While a snapshot is being loaded, Seal reports whether to pack its rows with the keys from
	// first to last. If Seal is nil, no rows are packed.
	Seal func(first, last uint64) bool
}

// SnapshotVisitor receives the contents of a snapshot. It must not keep its arguments.
// A nil function skips its part.
type SnapshotVisitor struct {
	// Members receives the members of sets, in ascending order of row, column and member. It is
	// called before Rows.
	Members func(p members.Pair, at members.Stamp) error
	// Rows receives the rows of one table after the other, by ascending keys.
	Rows func(table Table, p *engine.Page) error
	// Body receives each body. A body is the data other than rows that a kind stores under a key,
	// such as a feed. The body is a pointer to a type of the kind. Body is called after Rows.
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

// Traits returns the traits of a kind by its name in the catalog. An unknown kind has none.
func (k Kinds) Traits(name string) Traits {
	if number, named := codec.KindOf(name); named {
		if kind, known := k.of(number); known {
			return kind.Traits()
		}
	}
	return Traits{}
}

// New returns the state machine of a shard before its first entry. For an unknown kind, which the
// cluster version excludes, New returns a machine of the first kind.
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

// CheckSection decodes a request's section for a shard of this kind and route. It calls the visitor
// with each op, unless the visitor is nil. It returns the number of ops. clocked reports whether a
// clock section must precede the section in an entry. CheckSection refuses a section that no
// RequestWriter makes, because an entry with that section would stop every replica. If the
// section's route differs, it returns an ErrRoute. It returns an error of the visitor unchanged.
func (k Kinds) CheckSection(number codec.Kind, route codec.Route, section []byte, v Visitor) (ops int, clocked bool, err error) {
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
	if id.MovesPositions() && !kind.Traits().Sources {
		return 0, false, fmt.Errorf("%w: a section of a source for %s", codec.ErrEntry, number)
	}
	ops, clocked, err = kind.Check(&id, payload, v)
	return ops, clocked || id.Exists(), err
}

// OpenSnapshot reads the head of a snapshot. It refuses a snapshot of another kind, and a snapshot
// whose route a shard of the given route can never have.
func (k Kinds) OpenSnapshot(r io.Reader, number codec.Kind, route codec.Route) (*SnapshotReader, error) {
	return k.openSnapshot(r, number, func(s *codec.StreamReader) (codec.Head, error) { return s.Head(number, route) })
}

// OpenAnySnapshot is OpenSnapshot for a snapshot of any route.
func (k Kinds) OpenAnySnapshot(r io.Reader, number codec.Kind) (*SnapshotReader, error) {
	return k.openSnapshot(r, number, func(s *codec.StreamReader) (codec.Head, error) { return s.AnyHead(number) })
}

func (k Kinds) openSnapshot(r io.Reader, number codec.Kind, head func(*codec.StreamReader) (codec.Head, error)) (*SnapshotReader, error) {
	kind, known := k.of(number)
	if !known {
		return nil, fmt.Errorf("%w: a shard of %s", codec.ErrSnapshot, number)
	}
	s := codec.NewStreamReader(r)
	h, err := head(s)
	return &SnapshotReader{stream: s, kind: kind, head: h}, err
}

// VisitSnapshot calls OpenSnapshot and then Visit.
func (k Kinds) VisitSnapshot(r io.Reader, number codec.Kind, route codec.Route, v SnapshotVisitor) (SnapshotFacts, error) {
	s, err := k.OpenSnapshot(r, number, route)
	if err != nil {
		return SnapshotFacts{}, err
	}
	return s.Visit(v)
}

// SourceOf decodes the section of a source. It returns nil for the section of any other request,
// and for a section that CheckSection refuses.
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
