package raftfsm

import (
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// kindForm has the functions of one kind of shard.
type kindForm struct {
	kind codec.Kind
	// fresh returns the state machine before its first entry.
	fresh func() Machine
	// clocked means that every entry needs the leader's time, even if none of its requests has an
	// identity.
	clocked bool
	// check decodes the ops of a request and calls the visitor with each. It reports whether
	// one of them needs the leader's time.
	check func(id *dedup.RequestID, ops []byte, see SectionVisitor) (n int, clocked bool, err error)
	// section visits one section of a snapshot, except those of the request memory.
	section func(w *snapshotWalk, s *codec.StreamReader, kind byte, p []byte) error
}

// kinds has every kind of shard. A new kind gets its number and its name in package
// codec, its method on RequestWriter, and a line here.
var kinds = [...]kindForm{
	{codec.KindCounters, func() Machine { return NewCounters(Tiers{}) }, false, checkCounts, (*snapshotWalk).counts},
	{codec.KindUnread, func() Machine { return NewUnread() }, true, checkUnread, (*snapshotWalk).unread},
	{codec.KindFeed, func() Machine { return NewFeed(spill.Place{}) }, false, checkFeed, (*snapshotWalk).feed},
	{codec.KindBoard, func() Machine { return NewBoard() }, false, checkBoard, (*snapshotWalk).board},
}

// formOf returns the form of a kind, or false if no shard is of that kind.
func formOf(kind codec.Kind) (kindForm, bool) {
	for i := range kinds {
		if kinds[i].kind == kind {
			return kinds[i], true
		}
	}
	return kindForm{}, false
}

// New returns the state machine of a shard before its first entry. For an unknown kind,
// which the cluster version rules out, it returns a machine of counters.
func New(kind codec.Kind) Machine {
	if form, known := formOf(kind); known {
		return form.fresh()
	}
	return NewCounters(Tiers{})
}
