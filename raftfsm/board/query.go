package board

import (
	"time"

	"github.com/countd/countd/internal/wire"

	"github.com/countd/countd/raftfsm"
)

// Query reads the board. Its read has no ids.
type Query struct {
	raftfsm.Defaults
	View *View // the answer
}

// Number implements Query.
func (*Query) Number() byte { return 0 }

// Limits implements Query.
func (*Query) Limits(int) raftfsm.Limits { return raftfsm.LimitsOfJSON() }

// Split implements Query.
func (*Query) Split(read *raftfsm.Read) { read.Parts[0].Keys = append(read.Parts[0].Keys, 0) }

// Answer implements Query.
func (q *Query) Answer(m raftfsm.Machine, _ *raftfsm.Part, _ bool, _ time.Time) error {
	b, is := m.(*Machine)
	if !is {
		return raftfsm.ErrOtherKind
	}
	q.View = b.View()
	return nil
}

// AppendAnswer implements Query.
func (q *Query) AppendAnswer(dst []byte, _ *raftfsm.Part) ([]byte, error) {
	return raftfsm.AppendJSON(dst, q.View)
}

// ParseAnswer implements Query.
func (q *Query) ParseAnswer(r *wire.Reader, _ *raftfsm.Part) {
	view := raftfsm.ParseJSON[View](r)
	q.View = &view
}
