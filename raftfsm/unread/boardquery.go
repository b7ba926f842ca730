package unread

import (
	"time"

	"github.com/countd/countd/internal/wire"

	"github.com/countd/countd/raftfsm"
)

// BoardQuery reads the board. Its read has no ids.
type BoardQuery struct {
	raftfsm.Defaults
	View *BoardView // the answer
}

// Number implements Query.
func (*BoardQuery) Number() byte { return 0 }

// Limits implements Query.
func (*BoardQuery) Limits(int) raftfsm.Limits { return raftfsm.LimitsOfJSON() }

// Split implements Query.
func (*BoardQuery) Split(read *raftfsm.Read) { read.Parts[0].Keys = append(read.Parts[0].Keys, 0) }

// Answer implements Query.
func (q *BoardQuery) Answer(m raftfsm.Machine, _ *raftfsm.Part, _ bool, _ time.Time) error {
	b, is := m.(*BoardMachine)
	if !is {
		return raftfsm.ErrOtherKind
	}
	q.View = b.View()
	return nil
}

// AppendAnswer implements Query.
func (q *BoardQuery) AppendAnswer(dst []byte, _ *raftfsm.Part) ([]byte, error) {
	return raftfsm.AppendJSON(dst, q.View)
}

// ParseAnswer implements Query.
func (q *BoardQuery) ParseAnswer(r *wire.Reader, _ *raftfsm.Part) {
	view := raftfsm.ParseJSON[BoardView](r)
	q.View = &view
}
