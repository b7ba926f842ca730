package unread

import (
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
)

// Kind is raftfsm.Kind of unread numbers.
type Kind struct{}

func (Kind) Number() codec.Kind                             { return codec.KindUnread }
func (Kind) New(raftfsm.Places) raftfsm.Machine             { return New() }
func (Kind) TakesSources() bool                             { return true }
func (Kind) Walk(see *raftfsm.SnapshotVisitor) raftfsm.Walk { return &walk{see: see} }

// Check implements raftfsm.Kind. Every entry needs the leader's time, even if none of its requests
// has an identity.
func (Kind) Check(id *dedup.RequestID, p []byte, see *raftfsm.SectionVisitor) (ops int, clocked bool, err error) {
	var u contents
	if ops, err = u.Decode(id, p, true); err != nil {
		return ops, false, err
	}
	return ops, true, u.batch.Visit(see.Op, func(i int) raftfsm.Table { return u.tables[i] })
}

// walk visits a snapshot.
type walk struct {
	rows.Walk
	see *raftfsm.SnapshotVisitor
}

func (w *walk) Section(_ *codec.StreamReader, kind byte, p []byte) error {
	switch kind {
	case codec.StreamRows:
		return w.Walk.Section(rows.Counts, p, w.see.Rows)
	case codec.StreamCursors:
		return w.Walk.Section(Cursors, p, w.see.Rows)
	case codec.StreamSweep:
		_, err := parseSweepState(p)
		return err
	}
	return raftfsm.Misplaced(kind)
}

func (w *walk) Facts(f *raftfsm.SnapshotFacts) { f.Rows = w.Rows }
