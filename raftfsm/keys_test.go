package raftfsm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// keyModel remembers every key for ever and says what is to become of each.
type keyModel struct {
	limits     Limits
	now, floor int64
	known      map[string]keySeen
}

type keySeen struct {
	body string
	last int64
}

// outcome is what becomes of a key that says it was made at born, 0 if it does
// not.
func (m *keyModel) outcome(now int64, key, body string, born int64) Outcome {
	horizon := m.limits.KeyHorizon.Milliseconds()
	m.now = max(m.now, now)
	m.floor = max(m.floor, m.now-horizon)
	if seen, ok := m.known[key]; ok && seen.last >= m.floor {
		if seen.body != body {
			return Conflict
		}
		return Duplicate
	}
	if born != 0 && (born < m.floor || born > m.now+horizon) {
		return Expired
	}
	m.known[key] = keySeen{body, max(m.now, born)}
	return Applied
}

// Two shards that saw a key at the same times say the same of it, whatever else
// they were sent, whenever they were restored, and however the horizon is set:
// 1. inside its horizon a key is applied once; 2. a UUIDv7 is applied once at
// any time; 3. any other key is a new one as soon as it is out of the horizon.
func TestShardsAgreeOnKeys(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		limits := testLimits
		limits.KeysMax = 1 << 16 // never reached
		m := &keyModel{limits: limits, known: map[string]keySeen{}}
		quiet, busy := newOnce(), newOnce()
		applied := map[string]int{}
		now, others := minutes(1<<20), 0
		for i := range rapid.IntRange(1, 200).Draw(rt, "requests") {
			now += []int64{0, 1, -5, minutes(1), minutes(3), minutes(10)}[r.IntN(6)]
			if r.IntN(30) == 0 {
				m.limits.KeyHorizon = []time.Duration{time.Minute, 10 * time.Minute, time.Hour}[r.IntN(3)]
			}
			key, body, born := fmt.Sprint(r.IntN(5)), fmt.Sprint(r.IntN(8)/7), int64(0)
			if r.IntN(2) == 0 {
				born = (now - minutes(15) + r.Int64N(minutes(30))) / minutes(1) * minutes(1)
				key = uuidv7(born)
			}
			if r.IntN(50) == 0 { // more than one entry drops
				busy.tick(now, m.limits)
				for range forgottenPerEntry + 1000 {
					id := keyed(fmt.Sprint("other", others), "")
					busy.judge(&id)
					others++
				}
			}
			if r.IntN(30) == 0 {
				busy = restored(rt, busy)
			}
			want := m.outcome(now, key, body, born)
			for name, o := range map[string]*once{"quiet": quiet, "busy": busy} {
				o.tick(now, m.limits)
				id := keyed(key, body)
				if got := o.judge(&id); got != want {
					rt.Fatalf("request %d, key %s, %s shard: outcome %d, want %d", i, key, name, got, want)
				}
			}
			if want == Applied {
				if applied[key]++; born != 0 && applied[key] > 1 {
					rt.Fatalf("request %d: key %s is applied again", i, key)
				}
			}
		}
	})
}

// restored returns what a snapshot of a memory restores to.
func restored(t rapid.TB, o *once) *once {
	s, again := o.state(), newOnce()
	for _, err := range []error{again.restoreProducers(s.producers), again.restoreGone(s.gone), again.restoreKeys(s.keys)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return again
}
