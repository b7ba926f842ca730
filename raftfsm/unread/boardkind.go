package unread

import (
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// BoardKind implements raftfsm.Kind for the board.
type BoardKind struct{}

func (BoardKind) Number() codec.Kind                 { return codec.KindBoard }
func (BoardKind) New(raftfsm.Places) raftfsm.Machine { return NewBoard() }
func (BoardKind) Traits() raftfsm.Traits {
	return raftfsm.Traits{Everywhere: true, Undivided: true}
}

// Check implements raftfsm.Kind.
func (BoardKind) Check(id *dedup.RequestID, p []byte, _ raftfsm.Visitor) (ops int, clocked bool, err error) {
	var b boardContents
	ops, err = b.Decode(id, p, true)
	return ops, false, err
}

// Walk implements raftfsm.Kind. The visitor receives the *BoardView as a body under the key 0.
func (BoardKind) Walk(see *raftfsm.SnapshotVisitor, facts *raftfsm.SnapshotFacts) raftfsm.Walk {
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
func (BoardKind) ParseQuery(number byte, r *wire.Reader) raftfsm.Query {
	if number == 0 {
		return &BoardQuery{}
	}
	return raftfsm.NoQuery(number, r)
}
