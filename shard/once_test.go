package shard

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/countd/countd/engine"
)

// A producer that writes all the time, but to one shard only, is not refused
// when it comes back to the others.
func TestProducerIdleOnOneShardGoesOn(t *testing.T) {
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	limits := LimitsDefault
	limits.ProducerIdle = time.Millisecond
	for _, g := range n.groups.Load().all {
		g.replica.Load().proposer.limits = limits // before its first write
	}
	ks, seq := n.Keyspace("posts"), uint64(0)
	send := func(ops ...engine.Op) {
		t.Helper()
		seq++
		w := &Write{Ops: ops, ID: ByProducer([]byte("p"), seq), Deadline: soon()}
		if mustDo(t, n.Write(ks, w)); w.Duplicate {
			t.Errorf("number %d is called a duplicate", seq)
		}
	}
	send(addTo(0, 0, 1), addTo(1, 0, 1))
	for began := time.Now(); time.Since(began) < 10*limits.ProducerIdle; {
		send(addTo(0, 0, 1))
	}
	send(addTo(0, 0, 1), addTo(1, 0, 1))
	if got := mustGet(t, n, ks, ReadOptions{}, 0, 1); got[0] != int64(seq) || got[4] != 2 {
		t.Errorf("%d writes to both, or to the first: counts %v", seq, got)
	}
}

// A key that is refused for its own time says which way that lies.
func TestRefusedKeysTellTheirTime(t *testing.T) {
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	for name, c := range map[string]struct {
		born  time.Duration // from now
		ahead bool
	}{"old": {-time.Hour, false}, "ahead": {time.Hour, true}} {
		t.Run(name, func(t *testing.T) {
			key := fmt.Sprintf("%012x70008000000000000000", time.Now().Add(c.born).UnixMilli())
			w := &Write{Ops: []engine.Op{addTo(0, 0, 1)}, ID: ByKey([]byte(key)), Deadline: soon()}
			if err := n.Write(n.Keyspace("posts"), w); !errors.Is(err, ErrExpired) || errors.Is(err, ErrKeyAhead) != c.ahead {
				t.Errorf("told %v", err)
			}
		})
	}
}
