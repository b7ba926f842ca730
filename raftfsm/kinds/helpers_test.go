package kinds

import (
	"testing"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

var testLimits = dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5}

// sums is a request that adds to column 0 of key 1, once for each delta.
type sums struct {
	id     dedup.RequestID
	deltas []int64
}

func summed(id dedup.RequestID, deltas ...int64) sums { return sums{id, deltas} }

// mustNotBeWritten checks that RequestWriter panics on a request that no entry may contain.
func mustNotBeWritten(t *testing.T, fill func(*raftfsm.RequestWriter)) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("it was written")
		}
	}()
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	fill(&w)
}
