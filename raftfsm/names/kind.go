package names

import (
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Kind implements raftfsm.Kind for names.
type Kind struct{}

func (Kind) Number() codec.Kind                   { return codec.KindNames }
func (Kind) New(p raftfsm.Places) raftfsm.Machine { return New(p.Bodies) }
func (Kind) Traits() raftfsm.Traits               { return raftfsm.Traits{Undivided: true} }

// Check implements raftfsm.Kind. The visitor receives each *Op as a body.
func (Kind) Check(id *dedup.RequestID, p []byte, v raftfsm.Visitor) (ops int, clocked bool, err error) {
	var c contents
	ops, err = c.Decode(id, p, true)
	for i := 0; err == nil && i < ops; i++ {
		if clocked = clocked || c.ops[i].clocked(); v != nil {
			err = Ops{c.ops[i].Op}.See(v, 0, 0)
		}
	}
	return ops, clocked, err
}

// Walk implements raftfsm.Kind. The visitor receives each *Name as a body under its number.
func (Kind) Walk(see *raftfsm.SnapshotVisitor, facts *raftfsm.SnapshotFacts) raftfsm.Walk {
	var names reader
	return func(_ *codec.StreamReader, kind byte, p []byte) error {
		next := names.next
		err := names.section(kind, p, func(_ uint64, _ []byte, pairs []pair) error {
			for _, of := range pairs {
				facts.Rows++
				if err := see.SeeBody(of.number, &Name{Number: of.number, Text: string(appendText(nil, of.slot))}); err != nil {
					return err
				}
			}
			return nil
		})
		if next > 0 || err != nil {
			return err
		}
		given := uint64(1)
		for _, m := range names.marks {
			given = m.next
			if err := see.SeeBody(given-1, &Name{Number: given - 1, At: m.at}); err != nil {
				return err
			}
		}
		if given < names.next {
			return see.SeeBody(names.next-1, &Name{Number: names.next - 1})
		}
		return nil
	}
}

// Name is a body that the visitor of a snapshot receives: a text and its number. The first ones have no
// text: their numbers and all below were given, at or before At.
type Name struct {
	Number uint64
	Text   string
	At     int64 // as in Op
}

// ParseQuery implements raftfsm.Kind.
func (Kind) ParseQuery(number byte, r *wire.Reader) raftfsm.Query { return parseQuery(number, r) }
