// Package names owns the state machine of shards of names. A shard of names gives each text that it
// is asked for a number: 1, 2, 3 and so on, in the order of the log. Keyspaces whose ids are texts
// use the numbers in place of ids.
//
// It never counts anything, and never learns which keyspaces use a number.
//
// Invariant: a number has one text, and a text one number, for ever. Only Erase ends a pair, and
// then the number is never given again.
package names

import (
	"time"

	"github.com/countd/countd/raftfsm"
)

// Answer implements raftfsm.Query.
func (q *NumbersQuery) Answer(raftfsm.Machine, *raftfsm.Part, bool, time.Time) error {
	return raftfsm.ErrOtherKind
}

// Answer implements raftfsm.Query.
func (q *TextsQuery) Answer(raftfsm.Machine, *raftfsm.Part, bool, time.Time) error {
	return raftfsm.ErrOtherKind
}
