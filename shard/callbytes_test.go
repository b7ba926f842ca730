package shard

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// The bytes of writes and reads between nodes are those that docs/FORMAT.md draws.
func TestBytesOfCallsAreGolden(t *testing.T) {
	t.Parallel()
	read := &remoteRead{
		group: 300, route: codec.Route{Modulus: 200, Residue: 7}, number: 2, query: []byte("query"),
		consistency: Linearizable, staleness: time.Microsecond, index: 5, disk: true, keys: []uint64{1, 1 << 56},
	}
	q := propose.Settled(nil)
	q.Ops, q.Width, q.Result = 2, 1, raftfsm.NewResult(7, 1, []int64{3, -1}, []engine.Overflow{{Op: 1, Column: 2}}, dedup.Duplicate)
	q.Result.Cuts, q.Result.Changed = []engine.Cut{{Op: 0, Column: 3, Added: -2}}, []int{0, 1}
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"read":    {read.appendTo(nil), "ac02c80107020201e807050571756572790201000000000000000000000000000001"},
		"part":    {propose.AppendPart(nil, &propose.ForwardedPart{Section: []byte("section"), Width: 4, Judges: true}), "01040773656374696f6e"},
		"settled": {propose.AppendOutcome(nil, q, nil), "00070102060101010201000303020000"},
		"refused": {propose.AppendOutcome(nil, q, errs.ErrNoLeader), "04001774686520736861726420686173206e6f206c6561646572"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
