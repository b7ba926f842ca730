package shard

import (
	"testing"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
)

// If a shard's answer is lost and the node proposes the part again, the request is a repeat, and its
// rows are the present ones. A part that another copy applied does not make it a repeat.
func TestLostAnswersMakeARepeat(t *testing.T) {
	t.Parallel()
	const shards = 4
	keyed := dedup.ByKey([]byte("k"))
	other := (keyed.Shard(shards) + 1) % shards
	for name, c := range map[string]struct {
		lost    bool
		outcome dedup.Outcome
		want    bool
	}{
		"lost, and applied before": {true, dedup.Duplicate, true},
		"lost, and applied now":    {true, dedup.Applied, false},
		"applied by another copy":  {false, dedup.Duplicate, false},
		"applied":                  {false, dedup.Applied, false},
	} {
		t.Run(name, func(t *testing.T) {
			ps := &parts{byShard: make([]part, shards), judge: keyed.Shard(shards)}
			settled := func(outcome dedup.Outcome) *propose.Proposal {
				q := propose.Settled(nil)
				q.Ops, q.Width, q.Result = 1, 1, raftfsm.NewResult(7, 1, []int64{9}, nil, outcome)
				return q
			}
			ps.byShard[keyed.Shard(shards)].proposal = settled(dedup.Applied)
			ps.byShard[other] = part{ops: []int{0}, unknown: c.lost, proposal: settled(c.outcome)}
			if got := ps.repeated(&Write{ID: keyed}); got != c.want {
				t.Errorf("repeated %v, want %v", got, c.want)
			}
		})
	}
}
