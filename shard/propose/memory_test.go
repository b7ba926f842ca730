package propose

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
)

// A log whose stamps come from a clock that was a year ahead continues to forget keys. A memory of
// five keys accepts one key a minute for ever.
func TestMemoryExpiresBehindAWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newFakeProposer(t)
		defer p.Close()
		g.prompt = true
		p.limits = func() dedup.Limits {
			return dedup.Limits{KeyHorizon: time.Minute, KeysMax: 5, ProducerIdle: time.Hour, ProducersMax: 5}
		}
		send := func(key int) {
			t.Helper()
			var w raftfsm.RequestWriter
			id := dedup.ByKey([]byte{byte(key)})
			w.Reset(nil, codec.Whole, &id)
			op := engine.Op{ID: 1, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}
			counters.Ops{op}.AppendTo(&w, 1, 0)
			q, err := p.Submit(w.Section(), w.Ops(), true, 0)
			if err == nil {
				err = q.Wait(time.NewTimer(time.Minute))
			}
			if err != nil {
				t.Fatalf("key %d: %v", key, err)
			}
		}
		right := p.clock.mu.at
		p.clock.mu.at = right.AddDate(1, 0, 0)
		send(0)
		p.clock.mu.at = right // as after a restart with a correct clock
		for key := range 100 {
			time.Sleep(time.Minute)
			send(key + 1)
		}
		if ahead := time.Until(g.fsm.BatchingFSM.(*counters.Machine).LogTime()); ahead < 364*24*time.Hour {
			t.Errorf("the log is ahead by %v", ahead)
		}
	})
}
