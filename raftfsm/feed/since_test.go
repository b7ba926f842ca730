package feed

import (
	"testing"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// A stamp that was read by another route is no stamp of this log, so the op has a Since of 1.
func TestSinceOfAnotherRoute(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		since   uint64
		modulus uint32
		want    uint64
	}{{0, 6, 0}, {1, 2, 1}, {70, 6, 70}, {70, 2, 1}, {70, 0, 1}} {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Route{Modulus: 6, Residue: 3}, &dedup.RequestID{})
		at := len(w.Buffer())
		ops := Ops{{Kind: Read, User: 3, Since: c.since, Modulus: c.modulus, Followees: []Followee{{ID: 1, Posts: 2}}}}
		ops.AppendTo(&w, 0, 0)
		var sent contents
		if n, err := sent.Decode(nil, w.Section()[at:], false); n != 1 || err != nil || sent.batch.ops[0].Since != c.want || ops[0].Since != c.since {
			t.Errorf("%+v: %d ops, %v", c, n, err)
		}
	}
}
