package apitest

import (
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/unread"
)

// RowOps returns the ops of a write on rows, sets or cursors, and nil for other ops.
func RowOps(ops raftfsm.Ops) []engine.Op {
	switch ops := ops.(type) {
	case counters.Ops:
		return ops
	case *counters.Ops:
		return *ops
	case unread.CursorOps:
		return ops
	}
	return nil
}
