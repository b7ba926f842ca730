package feed

import (
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Kind implements raftfsm.Kind for feeds.
type Kind struct{}

func (Kind) Number() codec.Kind                   { return codec.KindFeed }
func (Kind) New(p raftfsm.Places) raftfsm.Machine { return New(p.Bodies) }
func (Kind) Traits() raftfsm.Traits               { return raftfsm.Traits{} }

// Check implements raftfsm.Kind. The visitor receives each *Op as a body.
func (Kind) Check(id *dedup.RequestID, p []byte, v raftfsm.Visitor) (ops int, clocked bool, err error) {
	var f contents
	ops, err = f.Decode(id, p, true)
	f.batch.link()
	for i := 0; err == nil && v != nil && i < ops; i++ {
		err = Ops(f.batch.ops).See(v, f.batch.ops[i].User, i)
	}
	return ops, false, err
}

// Walk implements raftfsm.Kind. The visitor receives each *Feed as a body.
func (Kind) Walk(see *raftfsm.SnapshotVisitor, facts *raftfsm.SnapshotFacts) raftfsm.Walk {
	var feeds reader
	return func(_ *codec.StreamReader, kind byte, p []byte) error {
		if kind != codec.StreamFeeds {
			return raftfsm.Misplaced(kind)
		}
		return feeds.section(p, func(user uint64, feed *Feed) error {
			facts.Rows++
			return see.SeeBody(user, feed)
		})
	}
}

// ParseQuery implements raftfsm.Kind.
func (Kind) ParseQuery(number byte, r *wire.Reader) raftfsm.Query {
	switch number {
	case 0:
		return &Query{}
	case 1:
		return &GroupsQuery{}
	}
	return raftfsm.NoQuery(number, r)
}
