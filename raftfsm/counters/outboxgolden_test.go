package counters

import (
	"slices"
	"testing"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// The encodings of ops on outboxes and groups, and of snapshots that contain these, must not
// change.
func TestTimelineBytesAreGolden(t *testing.T) {
	limits := OutboxLimits{Posts: 10_000, Keep: 30 * 24 * 3600, Shift: 22, UnitMicros: 1_000_000, Epoch: 515483463, First: 3_070_000_000_000_000}
	const now = 1_790_000_000_000
	entry := outboxEntry(now, outboxSection(&dedup.RequestID{}, raftfsm.SettingsOf([]string{"posts"}, column.Settings[int64]{Floors: map[string]int64{"posts": 0}}),
		outboxAct{key: 7, op: PostOp{Kind: PutOutbox, Outbox: Outbox{IDs: []uint64{9, 4}, Trimmed: 3}}},
		outboxAct{key: 7, op: PostOp{Kind: Publish, ID: 4467107636950632, Limits: limits}},
		outboxAct{key: 7, op: PostOp{Kind: Publish, ID: 5, Limits: OutboxLimits{Posts: 1000}}},
		outboxAct{key: 7, op: PostOp{Kind: Unpublish, ID: 9}},
		outboxAct{key: 8, op: PostOp{Kind: Publish, ID: 1<<64 - 1, Limits: limits}},
	))
	rafttest.Golden(t, "entry-outbox.bin", entry)
	c := newCounters(t)
	r := c.Apply(rafttest.Command(1, entry)).(*raftfsm.Result)
	if !slices.Equal(r.Rows, []int64{0, 1, 2, 1, 1}) || len(r.Cuts)+len(r.Overflows) > 0 {
		t.Errorf("rows %v, cuts %v, refused %v", r.Rows, r.Cuts, r.Overflows)
	}
	rafttest.Golden(t, "snapshot-outbox.bin", rafttest.Persisted(t, c))
}

// If an entry has a damaged op on an outbox, the replica stops and applies nothing of the entry.
func TestBadOutboxOps(t *testing.T) {
	good := PostOp{Kind: Publish, ID: 5, Limits: OutboxLimits{Posts: 1000}}
	section := outboxSection(&dedup.RequestID{}, nil, outboxAct{key: 7, op: good})
	ops := codec.SectionHeadSize + 2 // after the route
	for name, change := range map[string]func([]byte) []byte{
		"kind 0":     func(s []byte) []byte { s[ops] = 0; return s },
		"kind 20":    func(s []byte) []byte { s[ops] = 20; return s },
		"no posts":   func(s []byte) []byte { s[len(s)-3], s[len(s)-2] = 0x80, 0; return s },
		"cut off":    func(s []byte) []byte { s = s[:len(s)-1]; s[1]--; return s },
		"more":       func(s []byte) []byte { s[1]++; return append(s, 0) },
		"keep alone": func(s []byte) []byte { s[len(s)-1] = 1; return s },
	} {
		bad := change(slices.Clone(section))
		c := newCounters(t)
		c.Apply(rafttest.Command(1, outboxEntry(1, outboxSection(&dedup.RequestID{}, nil, outboxAct{key: 7, op: PostOp{Kind: Publish, ID: 4, Limits: good.Limits}}))))
		before := c.State().Digest
		if err := rafttest.ApplyError(c, rafttest.Command(2, outboxEntry(1, bad))); err == nil || c.State().Digest != before {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := self.CheckSection(codec.KindCounters, codec.Whole, bad, nil); err == nil {
			t.Errorf("%s: the section was accepted", name)
		}
	}
	if ops, clocked, err := self.CheckSection(codec.KindCounters, codec.Whole, section, nil); ops != 1 || !clocked || err != nil {
		t.Errorf("%d ops, clocked %v, %v", ops, clocked, err)
	}
	if _, _, err := self.CheckSection(codec.KindUnread, codec.Whole, section, nil); err == nil {
		t.Error("accepted by a shard of unread numbers")
	}
	var row [1]int64
	c := newCounters(t)
	c.Apply(rafttest.Command(1, outboxEntry(1, section)))
	if c.Table().Get(7, row[:]); row != [1]int64{1} {
		t.Errorf("row %v", row)
	}
}
