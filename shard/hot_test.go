package shard

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rankings"
)

// While leaders hand over, increments go on. Afterwards each node answers the same hot list and the same largest
// counts, which equal the counts of the increments.
func TestHotThroughLeaders(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	ks := all[0].Keyspace("posts")
	want := map[uint64]int64{}
	for round := range 3 {
		for id := uint64(1); id <= 40; id++ {
			delta := int64(id) * int64(1+round)
			mustDo(t, all[round].Write(ks, once(&Write{Ops: counters.Ops{addTo(id, 2, delta)}, Deadline: soon()})))
			want[id] += delta
		}
		ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
		_ = all[round].HandOver(ctx) // the next node may lead already
		cancel()
	}
	for _, n := range all {
		opt := &ReadOptions{Consistency: Linearizable, Deadline: soon()}
		q := counters.HotQuery{Column: 2, Window: rankings.Minute, Now: time.Now().UnixMilli(), Limit: 20}
		mustDo(t, n.Read(ks, &q, nil, opt))
		top := counters.TopQuery{Column: 2, Limit: 20}
		mustDo(t, n.Read(ks, &top, nil, opt))
		if len(q.Gains) != 20 || q.OthersAtMost(20) != want[21] || top.Scanning {
			t.Fatalf("%s: %+v, scanning %v", n.cfg.NodeName, q.Hottest, top.Scanning)
		}
		for i := range q.Gains {
			id := uint64(40 - i)
			if q.Gains[i] != (rankings.Gain{Key: id, Gained: want[id]}) {
				t.Errorf("%s: gain %d is %+v, want %d of %d", n.cfg.NodeName, i, q.Gains[i], want[id], id)
			}
		}
		places := slices.Collect(func(yield func(engine.Place) bool) {
			for i := range 20 {
				if id := uint64(40 - i); !yield(engine.Place{Count: want[id], ID: id}) {
					return
				}
			}
		})
		if !slices.Equal(top.Top, places) {
			t.Errorf("%s: top %v, want %v", n.cfg.NodeName, top.Top, places)
		}
	}
}
