package unread

import (
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
)

// Kind implements raftfsm.Kind for unread numbers.
type Kind struct{}

func (Kind) Number() codec.Kind                 { return codec.KindUnread }
func (Kind) New(raftfsm.Places) raftfsm.Machine { return New() }
func (Kind) Traits() raftfsm.Traits {
	return raftfsm.Traits{Sources: true, Columns: true, FloorZero: true}
}

// Check implements raftfsm.Kind. Every entry needs a clock section, even if none of its requests
// has an identity.
func (Kind) Check(id *dedup.RequestID, p []byte, v raftfsm.Visitor) (ops int, clocked bool, err error) {
	var u contents
	if ops, err = u.Decode(id, p, true); err == nil && v != nil {
		err = u.batch.Visit(v, func(i int) raftfsm.Table { return u.tables[i] })
	}
	return ops, true, err
}

// Walk implements raftfsm.Kind.
func (Kind) Walk(see *raftfsm.SnapshotVisitor, facts *raftfsm.SnapshotFacts) raftfsm.Walk {
	w := rows.Walk{See: see, Facts: facts}
	return func(_ *codec.StreamReader, kind byte, p []byte) error {
		switch kind {
		case codec.StreamRows:
			return w.Section(rows.Counts, p)
		case codec.StreamCursors:
			return w.Section(Cursors, p)
		case codec.StreamSweep:
			_, err := parseSweepState(p)
			return err
		}
		return raftfsm.Misplaced(kind)
	}
}

// ParseQuery implements raftfsm.Kind.
func (Kind) ParseQuery(number byte, r *wire.Reader) raftfsm.Query { return rows.ParseQuery(number, r) }
