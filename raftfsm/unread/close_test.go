package unread

import (
	"errors"
	"testing"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// A closed machine parts no rows, so that its node can close.
func TestClosedMachinePartsNothing(t *testing.T) {
	t.Parallel()
	u := New()
	u.Close()
	if _, err := u.Part(raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 2}); !errors.Is(err, raftfsm.ErrReplaced) {
		t.Error(err)
	}
}
