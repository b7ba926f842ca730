package shard

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
)

// A part with an identity gets the leader's time: an entry without it would end every replica.
func TestForwardedPartsHaveTheTimeTheyNeed(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
	groups, err := n.router.groupsOf(n.Keyspace("posts"))
	mustDo(t, err)
	eventually(t, "the shard is led", func() bool { _, err := groups[0].led(); return err == nil })
	ctx, cancel := context.WithDeadline(t.Context(), soon())
	defer cancel()
	for number := range 3 {
		var w raftfsm.RequestWriter
		id := dedup.ByProducer([]byte("p"), uint64(number+1))
		w.Reset(nil, groups[0].first, &id)
		counters.Ops{{ID: 1, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}.AppendTo(&w, 1, 0)
		request := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(groups[0].number)), 1)
		answer, err := n.writer.serveParts(ctx, propose.AppendPart(request, &propose.ForwardedPart{Section: w.Section(), Width: 1}))
		mustDo(t, err)
		r := wire.Reader{Rest: answer}
		q := propose.ParseOutcome(&r, 1)
		if err := r.End(); err != nil || q.Err != nil || q.Row(0, 1)[0] != int64(number+1) {
			t.Fatalf("part %d: %+v, %v", number, q, err)
		}
	}
}
