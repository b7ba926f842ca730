package kinds

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/raftfsm/unread"
)

// Fits accepts an op for a kind if and only if shards of that kind accept the section with the op.
// A visitor receives the same calls from the ops as from the section.
func TestOpsFitTheirKinds(t *testing.T) {
	cells := []engine.Cell{{Column: 1, Value: 1}}
	all := map[string]raftfsm.Ops{
		"add": counters.Ops{{Kind: engine.OpAdd, Cells: cells}}, "set": counters.Ops{{Kind: engine.OpSet, Cells: cells}},
		"delete": counters.Ops{{Kind: engine.OpDelete}}, "take": counters.Ops{{Kind: engine.OpTake, Cells: cells}},
		"join": counters.Ops{engine.Join(1, 1, 7)}, "leave": counters.Ops{engine.Leave(1, 1, 7)}, "clear members": counters.Ops{{Kind: engine.OpClearMembers}},
		"publish": counters.OutboxOps{{PostOp: counters.PostOp{Kind: counters.Publish, ID: 5, Limits: counters.OutboxLimits{Posts: 1}}}}, "clear outboxes": counters.OutboxOps{{PostOp: counters.PostOp{Kind: counters.ClearOutboxes}}},
		"raise": unread.CursorOps{{Kind: unread.Raise, Cells: cells}}, "begin": unread.CursorOps{{Kind: unread.Begin, Cells: cells}},
		"follow": feed.Ops{{Kind: feed.Follow}}, "clear feeds": feed.Ops{{Kind: feed.Clear}}, "fire": &unread.BoardOp{Kind: unread.Fire, Name: "d"},
		"assign": names.Ops{{Kind: names.Assign, Text: "a"}}, "erase": names.Ops{{Kind: names.Erase, Text: "a"}}, "put name": names.Ops{{Kind: names.Put, Number: 3}}, "skip names": names.Ops{{Kind: names.Skip, Number: 3}},
	}
	for name, ops := range all {
		for _, kind := range All {
			t.Run(fmt.Sprintf("%s/%s", name, kind.Number()), func(t *testing.T) {
				var w raftfsm.RequestWriter
				var ofSection, ofOps visits
				w.Reset(nil, codec.Whole, &dedup.RequestID{})
				key := uint64(1)
				if name == "clear members" || kind.Number() == codec.KindNames { // an op that clears all sets has the key 0; so have ops on names
					key = 0
				}
				ops.AppendTo(&w, key, 0)
				n, _, taken := All.CheckSection(kind.Number(), codec.Whole, w.Section(), &ofSection)
				fits := ops.Fits(kind.Number(), 0)
				if (fits == nil) != (taken == nil) || fits != nil && !errors.Is(fits, raftfsm.ErrOtherOps) || taken != nil && !errors.Is(taken, codec.ErrEntry) {
					t.Errorf("fits: %v; %d ops taken: %v", fits, n, taken)
				}
				err := ops.See(&ofOps, key, 0)
				slices.Sort(ofSection)
				if slices.Sort(ofOps); fits == nil && (err != nil || !slices.Equal(ofOps, ofSection)) {
					t.Errorf("a visitor receives %q of the ops, %v, and %q of the section", ofOps, err, ofSection)
				}
			})
		}
	}
}
