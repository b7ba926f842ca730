package board

import (
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Kind is raftfsm.Kind of the board.
type Kind struct{}

func (Kind) Number() codec.Kind                 { return codec.KindBoard }
func (Kind) New(raftfsm.Places) raftfsm.Machine { return New() }
func (Kind) TakesSources() bool                 { return false }

// Check implements raftfsm.Kind.
func (Kind) Check(id *dedup.RequestID, p []byte, _ *raftfsm.SectionVisitor) (ops int, clocked bool, err error) {
	var b contents
	ops, err = b.Decode(id, p, true)
	return ops, false, err
}

// Walk implements raftfsm.Kind. The body is a *View under the key 0.
func (Kind) Walk(see *raftfsm.SnapshotVisitor, facts *raftfsm.SnapshotFacts) raftfsm.Walk {
	return func(_ *codec.StreamReader, kind byte, p []byte) error {
		if kind != codec.StreamBoard {
			return raftfsm.Misplaced(kind)
		}
		s, err := parseSnapshot(p)
		if err != nil {
			return err
		}
		facts.Rows = s.Rows()
		return see.SeeBody(0, s.clone())
	}
}

// ParseQuery implements raftfsm.Kind.
func (Kind) ParseQuery(number byte, r *wire.Reader) raftfsm.Query {
	if number == 0 {
		return &Query{}
	}
	return raftfsm.NoQuery(number, r)
}
