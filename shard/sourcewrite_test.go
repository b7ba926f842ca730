package shard

import (
	"testing"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/source/sink"
)

// A position survives the encoding for other nodes. Truncated or changed bytes are refused.
func TestPositionAnswer(t *testing.T) {
	t.Parallel()
	for _, at := range []dedup.PositionAnswer{
		{},
		{Closed: true},
		{Deleted: true, Full: true},
		{Known: true, Checkpoint: dedup.Checkpoint{Epoch: 1<<32 - 1, At: sink.Position{Hi: 1<<64 - 1, Lo: 1}, Mark: sink.Mark{Position: sink.Position{Hi: 1<<64 - 2, Lo: 1<<64 - 1}, Sum: 1<<64 - 1}}},
	} {
		q := propose.Settled(nil)
		q.Result = raftfsm.NewResult(1, 0, nil, nil, dedup.Moved)
		q.Result.SetPosition(at)
		body := propose.AppendPosition(nil, q)
		if len(body) > propose.PositionAnswerMax {
			t.Errorf("%d bytes, the bound is %d", len(body), propose.PositionAnswerMax)
		}
		for n := range len(body) + 1 {
			r := wire.Reader{Rest: body[:n]}
			got := propose.ParsePosition(&r)
			if err := r.End(); (err == nil) != (n == len(body)) || err == nil && got != at {
				t.Errorf("%d bytes of %+v: %+v, %v", n, at, got, err)
			}
		}
	}
	r := wire.Reader{Rest: []byte{16}}
	if propose.ParsePosition(&r); r.End() == nil {
		t.Error("an unknown flag is taken")
	}
}
