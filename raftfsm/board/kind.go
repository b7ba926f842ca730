package board

import (
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Kind is raftfsm.Kind of the board.
type Kind struct{}

func (Kind) Number() codec.Kind                             { return codec.KindBoard }
func (Kind) New(raftfsm.Places) raftfsm.Machine             { return New() }
func (Kind) TakesSources() bool                             { return false }
func (Kind) Walk(see *raftfsm.SnapshotVisitor) raftfsm.Walk { return &walk{see: see} }

// Check implements raftfsm.Kind.
func (Kind) Check(id *dedup.RequestID, p []byte, _ *raftfsm.SectionVisitor) (ops int, clocked bool, err error) {
	var b contents
	ops, err = b.Decode(id, p, true)
	return ops, false, err
}

// walk visits a snapshot. Its body is a *View under the key 0.
type walk struct {
	see  *raftfsm.SnapshotVisitor
	rows uint64
}

func (w *walk) Section(_ *codec.StreamReader, kind byte, p []byte) error {
	if kind != codec.StreamBoard {
		return raftfsm.Misplaced(kind)
	}
	s, err := parseSnapshot(p)
	if err != nil {
		return err
	}
	w.rows = s.Rows()
	if w.see.Body == nil {
		return nil
	}
	return w.see.Body(0, s.clone())
}

func (w *walk) Facts(f *raftfsm.SnapshotFacts) { f.Rows = w.rows }
