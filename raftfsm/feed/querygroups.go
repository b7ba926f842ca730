package feed

import (
	"context"
	"time"

	"github.com/countd/countd/internal/wire"

	"github.com/countd/countd/raftfsm"
)

// GroupsQuery reads the groups of one user.
type GroupsQuery struct {
	raftfsm.Defaults
	Groups []Group // the answer, ascending by name
}

// Number implements Query.
func (*GroupsQuery) Number() byte { return 1 }

// Limits implements Query.
func (*GroupsQuery) Limits(int) raftfsm.Limits { return raftfsm.LimitsOfJSON() }

// Answer implements Query.
func (q *GroupsQuery) Answer(m raftfsm.Machine, p *raftfsm.Part, disk bool, deadline time.Time) error {
	f, is := m.(*Machine)
	if !is {
		return raftfsm.ErrOtherKind
	}
	groups, inMemory := f.Groups(p.Keys[0])
	if q.Groups = groups; inMemory {
		return nil
	}
	if !disk {
		return raftfsm.ErrNotInMemory
	}
	return raftfsm.EachRead(1, deadline, func(ctx context.Context, _ int) (err error) {
		q.Groups, err = f.FetchGroups(ctx, p.Keys[0])
		return err
	})
}

// AppendAnswer implements Query.
func (q *GroupsQuery) AppendAnswer(dst []byte, _ *raftfsm.Part) ([]byte, error) {
	return raftfsm.AppendJSON(dst, q.Groups)
}

// ParseAnswer implements Query.
func (q *GroupsQuery) ParseAnswer(r *wire.Reader, _ *raftfsm.Part) {
	q.Groups = raftfsm.ParseJSON[[]Group](r)
}
