package feed

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// A user follows at most FolloweesMax. An op that would exceed that changes nothing, and its repeat
// gets the same refusal.
func TestFolloweesAreBounded(t *testing.T) {
	f := New(spill.Place{})
	apply := func(id dedup.RequestID, kind OpKind, from, n int) *raftfsm.Result {
		op := Op{Kind: kind, User: 1}
		for i := range n {
			op.Followees = append(op.Followees, Followee{uint64(from + i), 0})
		}
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &id)
		Ops{op}.AppendTo(&w, 1, 0)
		entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindFeed, 1), time.UnixMilli(1000), dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5})
		return f.Apply(&raft.Log{Index: f.Applied() + 1, Type: raft.LogCommand, Data: codec.AppendChecksum(append(entry, w.Section()...))}).(*raftfsm.Result)
	}
	apply(dedup.RequestID{}, Reset, 0, FolloweesMax-1)
	for range 2 {
		r := apply(dedup.ByKey([]byte("k"), []byte("b")), Follow, FolloweesMax-2, 3)
		if r.Rows[0] != FolloweesMax-1 || len(r.Overflows) == 0 && r.Outcome(0) != dedup.Refused {
			t.Errorf("one too many: %+v", r)
		}
	}
	if r := apply(dedup.RequestID{}, Follow, FolloweesMax-2, 2); r.Rows[0] != FolloweesMax || len(r.Overflows) != 0 {
		t.Errorf("the last one: %+v", r)
	}
	if r := apply(dedup.RequestID{}, Clear, 0, 0); f.State().Rows != 0 || f.State().Digest != 0 {
		t.Errorf("cleared: %+v, %+v", r, f.State())
	}
}
