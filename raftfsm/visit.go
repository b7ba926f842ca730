package raftfsm

import (
	"fmt"
	"io"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
)

// SnapshotFacts are facts about a snapshot of a shard.
type SnapshotFacts struct {
	Index  uint64 // of the last entry that it includes
	Rows   uint64
	Digest uint64 // of its contents; a shard with equal contents has the same digest
	// CursorsSetBack is set by a restore. It is the number of cursors that were beyond the board's
	// end, and that the restore set back to it. Rows and Digest are then those of the restored
	// shard.
	CursorsSetBack uint64
	// MembersLater means that the sets of members are those of a later entry than Index.
	MembersLater bool
	// MembersGone is the part of Digest of the members of deleted rows. These members wait to be
	// removed, and the visitor does not receive them.
	MembersGone uint64
}

// SnapshotVisitor receives the contents of a snapshot. It must not keep its arguments.
// A nil function skips its part.
type SnapshotVisitor struct {
	// Members receives the members of counters, by ascending rows, columns and members. It is
	// called before Rows.
	Members func(p members.Pair, at members.Stamp) error
	Rows    func(*engine.Page) error // of counters and unread, by ascending keys
	Cursors func(*engine.Page) error // of unread, by ascending keys
	Feed    func(user uint64, followees []Followee, groups []Group) error
	// Outbox receives the outboxes of counters, behind the rows.
	Outbox func(author uint64, box *outbox.Outbox) error
	Board  func(*BoardView) error
	// Positions receives the positions of sources, ascending, and their part of the digest. It is
	// called last, and only if the snapshot has a section of positions.
	Positions func(all []dedup.PositionRecord, digest uint64) error
}

// SnapshotReader reads a snapshot behind its head.
type SnapshotReader struct {
	stream *codec.StreamReader
	form   kindForm
	index  uint64
}

// OpenSnapshot reads the head of a snapshot of a shard of a kind and a route, and refuses any
// other.
func OpenSnapshot(r io.Reader, kind codec.Kind, route codec.Route) (*SnapshotReader, error) {
	form, known := formOf(kind)
	if !known {
		return nil, fmt.Errorf("%w: a shard of %s", codec.ErrSnapshot, kind)
	}
	s := codec.NewStreamReader(r)
	index, err := s.Head(kind, route)
	return &SnapshotReader{s, form, index}, err
}

// VisitSnapshot is OpenSnapshot and Visit.
func VisitSnapshot(r io.Reader, kind codec.Kind, route codec.Route, v SnapshotVisitor) (SnapshotFacts, error) {
	s, err := OpenSnapshot(r, kind, route)
	if err != nil {
		return SnapshotFacts{}, err
	}
	return s.Visit(v)
}

// Visit reads the rest of the snapshot and calls the visitor with its contents. The snapshot may
// carry cold rows and sets, but must not name them. Visit verifies checksums and structure. Only a
// shard with the same contents can verify the digest. It returns an error of the visitor as it is;
// any other error refuses the stream.
func (s *SnapshotReader) Visit(v SnapshotVisitor) (SnapshotFacts, error) {
	facts := SnapshotFacts{Index: s.index}
	walk := snapshotWalk{visitor: v, visit: s.form.section}
	take := func(kind byte, p []byte) error { return walk.section(s.stream, kind, p) }
	err := readSections(s.stream, take, func(told codec.Totals) (codec.Totals, error) {
		facts.Rows, facts.Digest, facts.MembersLater, facts.MembersGone = walk.rows, told.Digest, walk.later, walk.gone
		return codec.Totals{Rows: walk.rows, Digest: told.Digest}, nil
	})
	return facts, err
}

// snapshotWalk is the state of one Visit.
type snapshotWalk struct {
	visitor SnapshotVisitor
	visit   func(w *snapshotWalk, s *codec.StreamReader, kind byte, p []byte) error // of the kind
	page    engine.Page
	base    engine.Page // cold rows of part
	part    coldPart
	feeds   feedReader
	boxes   outboxReader
	rows    uint64
	kind    byte   // of the section
	last    uint64 // key of the previous row of the same table
	behind  bool   // there is a previous row
	later   bool   // see SnapshotFacts.MembersLater
	gone    uint64 // see SnapshotFacts.MembersGone
}

func (w *snapshotWalk) section(s *codec.StreamReader, kind byte, p []byte) error {
	w.behind = w.behind && (kind != codec.StreamCursors || w.kind == kind)
	w.kind = kind
	if kind == codec.StreamPositions {
		all, digest, err := dedup.ParsePositions(p)
		if err != nil || w.visitor.Positions == nil {
			return err
		}
		return w.visitor.Positions(all, digest)
	}
	if dedup.IsSection(kind) {
		return nil
	}
	return w.visit(w, s, kind, p)
}

func (w *snapshotWalk) counts(s *codec.StreamReader, kind byte, p []byte) error {
	switch kind {
	case codec.StreamOutboxes:
		return w.boxes.section(p, func(key uint64, box *outbox.Outbox) error {
			if w.visitor.Outbox == nil {
				return nil
			}
			return w.visitor.Outbox(key, box)
		})
	case codec.StreamCarriedMembers:
		return w.members(s, p)
	case codec.StreamMembers:
		return fmt.Errorf("%w: it names members, which are on another disk", codec.ErrSnapshot)
	case codec.StreamRows:
		return w.table(p, w.visitor.Rows)
	case codec.StreamCold:
		return fmt.Errorf("%w: it names cold rows, which are another file's", codec.ErrSnapshot)
	case codec.StreamCarried:
		return w.cold(s, p)
	}
	return misplaced(kind)
}

// members visits carried sets.
func (w *snapshotWalk) members(s *codec.StreamReader, p []byte) error {
	at, found, blocks, err := parseCarriedSets(p)
	if err != nil {
		return err
	}
	w.later = at != found
	sum, gone := members.State{Index: found.Index, Stamp: found.Stamp}, members.State{}
	dead := map[uint64]members.Stamp{}
	err = eachMemberBlock(s, blocks, func(b []byte) error {
		if err := members.EachDead(b, func(row uint64, to members.Stamp) { dead[row] = to }); err != nil {
			return err
		}
		return members.EachPair(b, func(p members.Pair, at members.Stamp) error {
			if sum.Add(p, at); at <= dead[p.Row] {
				gone.Add(p, at)
				return nil
			}
			if w.visitor.Members == nil {
				return nil
			}
			return w.visitor.Members(p, at)
		})
	})
	w.gone = gone.Digest
	if err == nil && sum != found {
		err = fmt.Errorf("%w: %d members, digest %016x, want %d, %016x", codec.ErrSnapshot, sum.Pairs, sum.Digest, found.Pairs, found.Digest)
	}
	return err
}

func (w *snapshotWalk) unread(_ *codec.StreamReader, kind byte, p []byte) error {
	switch kind {
	case codec.StreamRows:
		return w.table(p, w.visitor.Rows)
	case codec.StreamCursors:
		return w.table(p, w.visitor.Cursors)
	case codec.StreamSweep:
		_, err := parseSweepState(p)
		return err
	}
	return misplaced(kind)
}

func (w *snapshotWalk) feed(_ *codec.StreamReader, kind byte, p []byte) error {
	if kind != codec.StreamFeeds {
		return misplaced(kind)
	}
	return w.feeds.section(p, func(user uint64, followees []Followee, groups []Group) error {
		w.rows++
		if w.visitor.Feed == nil {
			return nil
		}
		return w.visitor.Feed(user, followees, groups)
	})
}

func (w *snapshotWalk) table(p []byte, visit func(*engine.Page) error) error {
	if err := parseRows(p, &w.page, false); err != nil {
		return err
	}
	return w.rowsOf(visit)
}

// cold visits a part of cold rows with its blocks.
func (w *snapshotWalk) cold(s *codec.StreamReader, p []byte) error {
	if err := w.part.parse(p); err != nil {
		return err
	}
	if err := w.part.readBlocks(s, &w.base); err != nil {
		return err
	}
	if w.page.Merge(&w.part.hiding, &w.base); len(w.page.IDs) == 0 {
		return nil
	}
	return w.rowsOf(w.visitor.Rows)
}

// rowsOf visits the rows in page.
func (w *snapshotWalk) rowsOf(visit func(*engine.Page) error) error {
	if first := w.page.IDs[0]; w.behind && first <= w.last {
		return fmt.Errorf("%w: key %d behind %d", codec.ErrSnapshot, first, w.last)
	}
	w.rows += uint64(len(w.page.IDs))
	w.last, w.behind = w.page.IDs[len(w.page.IDs)-1], true
	if visit == nil {
		return nil
	}
	return visit(&w.page)
}

func (w *snapshotWalk) board(_ *codec.StreamReader, kind byte, p []byte) error {
	if kind != codec.StreamBoard {
		return misplaced(kind)
	}
	s, err := parseBoardSnapshot(p)
	if err != nil {
		return err
	}
	w.rows = s.rows()
	if w.visitor.Board == nil {
		return nil
	}
	return w.visitor.Board(s.clone())
}
