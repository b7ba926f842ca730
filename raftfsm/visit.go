package raftfsm

import (
	"fmt"
	"io"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// SnapshotFacts are what a snapshot of a shard says of itself.
type SnapshotFacts struct {
	Index  uint64 // of the last entry in it
	Rows   uint64
	Digest uint64 // of what it holds; a shard that holds that has it
	// CursorsSetBack is, of a restore, how many cursors were beyond the board, and stand
	// at its end now. Rows and Digest are those of the shard then.
	CursorsSetBack uint64
}

// SnapshotVisitor is called with what a snapshot holds. Nothing that it is given
// is kept. nil passes over what it is for.
type SnapshotVisitor struct {
	Rows    func(*engine.Page) error // of counters and unread, by ascending keys
	Cursors func(*engine.Page) error // of unread, by ascending keys
	Feed    func(user uint64, followees []Followee) error
	Board   func(*BoardView) error
}

// VisitSnapshot reads a snapshot of a shard, one that names no cold rows or carries
// them, to its end, verifies its checksums and its shape, and calls the visitor with what it holds. The digest is the
// stream's word: only a shard that holds the same can tell whether it is true. An
// error of the visitor is returned as it is; any other refuses the stream.
func VisitSnapshot(r io.Reader, kind codec.Kind, v SnapshotVisitor) (SnapshotFacts, error) {
	var facts SnapshotFacts
	of, known := formOf(kind)
	if !known {
		return facts, fmt.Errorf("%w: a shard of %s", codec.ErrSnapshot, kind)
	}
	walk := snapshotWalk{visitor: v, visit: of.section}
	err := readSections(r, kind, &facts.Index, walk.section, func(told streamTotals) (streamTotals, error) {
		facts.Rows, facts.Digest = walk.rows, told.digest
		return streamTotals{walk.rows, told.digest}, nil
	})
	return facts, err
}

// snapshotWalk goes through what a snapshot holds.
type snapshotWalk struct {
	visitor SnapshotVisitor
	visit   func(w *snapshotWalk, s *codec.StreamReader, kind, last byte, p []byte) error // of the kind
	page    engine.Page
	base    engine.Page // the cold rows of part
	part    coldPart
	feeds   feedReader
	rows    uint64
	last    uint64 // key of the row before, of its section's kind
	behind  bool   // there is one
}

func (w *snapshotWalk) section(s *codec.StreamReader, kind, last byte, p []byte) error {
	if kind != last && !(isCold(kind) && last == codec.StreamRows) {
		w.behind = false
	}
	if dedup.IsSection(kind) {
		return nil
	}
	return w.visit(w, s, kind, last, p)
}

func isCold(section byte) bool { return section == codec.StreamCold || section == codec.StreamCarried }

func (w *snapshotWalk) counts(s *codec.StreamReader, kind, last byte, p []byte) error {
	switch {
	case last != codec.StreamHead && last != codec.StreamRows:
	case kind == codec.StreamRows:
		return w.table(p, w.visitor.Rows)
	case isCold(kind):
		return w.cold(s, kind, p)
	}
	return misplaced(kind, last)
}

func (w *snapshotWalk) unread(_ *codec.StreamReader, kind, last byte, p []byte) error {
	switch {
	case kind == codec.StreamRows && (last == codec.StreamHead || last == codec.StreamRows):
		return w.table(p, w.visitor.Rows)
	case kind == codec.StreamCursors && last != codec.StreamSweep:
		return w.table(p, w.visitor.Cursors)
	case kind == codec.StreamSweep && last != codec.StreamSweep:
		_, err := parseSweepState(p)
		return err
	}
	return misplaced(kind, last)
}

func (w *snapshotWalk) feed(_ *codec.StreamReader, kind, last byte, p []byte) error {
	if kind != codec.StreamFeeds {
		return misplaced(kind, last)
	}
	return w.feeds.section(p, func(user uint64, followees []Followee) error {
		w.rows++
		if w.visitor.Feed == nil {
			return nil
		}
		return w.visitor.Feed(user, followees)
	})
}

func (w *snapshotWalk) table(p []byte, visit func(*engine.Page) error) error {
	if err := parseRows(p, &w.page, false); err != nil {
		return err
	}
	return w.rowsOf(visit)
}

// cold visits a part of cold rows with its blocks.
func (w *snapshotWalk) cold(s *codec.StreamReader, kind byte, p []byte) error {
	if kind == codec.StreamCold {
		return fmt.Errorf("%w: it names cold rows, which are another file's", codec.ErrSnapshot)
	}
	if err := w.part.parse(p); err != nil {
		return err
	}
	if err := w.part.readBlocks(s, &w.base); err != nil {
		return err
	}
	if w.page.Merge(&w.part.over, &w.base); len(w.page.IDs) == 0 {
		return nil
	}
	return w.rowsOf(w.visitor.Rows)
}

// rowsOf visits the rows of page.
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

func (w *snapshotWalk) board(_ *codec.StreamReader, kind, last byte, p []byte) error {
	if kind != codec.StreamBoard || last != codec.StreamHead {
		return misplaced(kind, last)
	}
	view, err := parseBoard(p)
	if err != nil {
		return err
	}
	w.rows = uint64(view.names())
	if w.visitor.Board == nil {
		return nil
	}
	return w.visitor.Board(view)
}
