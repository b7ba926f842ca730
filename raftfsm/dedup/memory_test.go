package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// If many records expire at once, several entries drop them, but all count as absent from the first
// of these entries on.
func TestDroppingIsBoundedByEntry(t *testing.T) {
	h := newHistory(t)
	h.limits.KeysMax, h.limits.ProducersMax = 3*droppedPerEntryMax, 3*droppedPerEntryMax
	const n = 2*droppedPerEntryMax + 1
	for i := range int64(n) {
		h.request(0, keyed(fmt.Sprint(i), ""))
		h.request(0, seq(fmt.Sprint(i), 1))
	}
	last := fmt.Sprint(n - 1)
	h.want(minutes(10), keyed(last, ""), Duplicate, 2*n)
	h.want(minutes(60)+1, seq(last, 1), Expired, 2*n)
	if o := h.m; o.producers.len != n-droppedPerEntryMax-1 || o.keyRecords() != n-droppedPerEntryMax {
		t.Errorf("the first entry left %d producers and %d keys", o.producers.len, o.keyRecords())
	}
	h.want(minutes(60)+1, keyed(last, ""), Applied, 2*n+1)
	for range 2 {
		h.want(minutes(60)+1, keyed(last, ""), Duplicate, 2*n+1)
	}
	if o := h.m; o.producers.len != 0 || o.forgotten.order.len() != n || o.keyRecords() != 1 || len(o.keys.at.own) != 1 {
		t.Errorf("%d producers, %d gone, %d keys", o.producers.len, o.forgotten.order.len(), o.keyRecords())
	}
}

// The test judges requests of few producers and keys in random order and at random times. No
// request is applied twice, and a producer's next number is always applied. Two replicas have the
// same bytes, even if one loads snapshots.
func TestOnceAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		h, replica := newHistory(t), newHistory(t)
		applied, highest, count, now := map[string]bool{}, map[string]uint64{}, int64(0), minutes(1<<20)
		for range rapid.IntRange(1, 400).Draw(rt, "requests") {
			now += []int64{0, 0, 1, -5, minutes(1), minutes(30)}[r.IntN(6)]
			var name string
			var id RequestID
			next := false // whether the request's number is above all earlier ones of its producer
			if r.IntN(2) == 0 {
				name = uuidv7(now - minutes(10) + r.Int64N(minutes(20))/minutes(1)*minutes(1))
				id = keyed(name, "")
			} else {
				p, n := r.IntN(8), 1+r.Uint64N(100)
				name, id = fmt.Sprint(p, "/", n), seq(fmt.Sprint(p), n)
				next = n > highest[fmt.Sprint(p)]
				highest[fmt.Sprint(p)] = max(n, highest[fmt.Sprint(p)])
			}
			outcome, got := h.request(now, id)
			if next && outcome != Applied {
				rt.Fatalf("%s is above all before it: outcome %d", name, outcome)
			}
			if outcome == Applied {
				if applied[name] {
					rt.Fatalf("%s applied twice", name)
				}
				applied[name] = true
				count++
			} else if outcome == Duplicate && !applied[name] {
				rt.Fatalf("%s called a duplicate, was never applied", name)
			}
			if got != count {
				rt.Fatalf("count %d, want %d", got, count)
			}
			if replica.request(now, id); !bytes.Equal(h.bytes(), replica.bytes()) {
				rt.Fatal("replicas differ")
			}
			if r.IntN(50) == 0 {
				replica.reopen(rt)
			}
		}
	})
}

// The first write of a restore makes the memory forget the requests of clients and nothing else.
// Times and floors stay. The memory still refuses earlier writes of restores. A repeat of this
// first write does not make the memory forget again. A snapshot contains what is left.
func TestFirstWriteOfARestoreForgetsClients(t *testing.T) {
	o := New()
	o.Tick(10_000_000, testLimits)
	judge := func(id RequestID, want Outcome) {
		t.Helper()
		if got := o.Judge(&id); got != want {
			t.Errorf("%+v: outcome %d, want %d", id, got, want)
		}
	}
	clients := []RequestID{keyed("k", ""), seq("p", 7)}
	for _, id := range clients {
		judge(id, Applied)
	}
	judge(ByRestore(100, false), Applied)
	keyFloor, idleFloor := o.keyFloor, o.idleFloor
	judge(ByRestore(1000, true), Applied)
	if o.now != 10_000_000 || o.keyFloor != keyFloor || o.idleFloor != idleFloor || o.keyRecords() != 0 || o.producers.len != 1 {
		t.Errorf("left are %d keys and %d producers at %d", o.keyRecords(), o.producers.len, o.now)
	}
	for _, id := range clients {
		judge(id, Applied)
	}
	for _, id := range []RequestID{ByRestore(1000, true), ByRestore(1000, false)} {
		judge(id, Duplicate)
	}
	for _, id := range []RequestID{ByRestore(100, false), ByRestore(101, true)} {
		judge(id, Expired)
	}
	again := New()
	v := o.Capture()
	if err := errors.Join(again.restoreProducers(v.appendProducers(nil)), again.restoreForgotten(v.appendForgotten(nil)), again.restoreKeys(v.appendKeys(nil, 0))); err != nil {
		t.Fatal(err)
	}
	again.limits, o = o.limits, again
	judge(ByRestore(1000, true), Duplicate)
	for _, id := range clients {
		judge(id, Duplicate)
	}
}

// The lowest and the highest number have no special meaning, neither in a snapshot nor after the
// producer was forgotten.
func TestBoundsOfNumbers(t *testing.T) {
	const last = math.MaxUint64
	h := newHistory(t)
	h.want(0, seq("a", 0), Applied, 1)
	h.want(0, seq("b", last), Applied, 2)
	h.reopen(t)
	for _, repeat := range []RequestID{seq("a", 0), seq("b", last)} {
		h.want(0, repeat, Duplicate, 2)
	}
	h.want(0, seq("b", last-63), Applied, 3)
	h.want(0, seq("b", last-64), Expired, 3)
	h.want(0, seq("b", 0), Expired, 3)
	h.want(0, seq("c", 0), Applied, 4)
	h.want(0, seq("c", 63), Applied, 5)
	h.want(0, seq("c", 0), Duplicate, 5)
	h.want(0, seq("c", last), Applied, 6)
	h.want(0, seq("c", 63), Expired, 6)
	later := 2 * minutes(60)
	for _, gone := range []RequestID{seq("a", 0), seq("b", last), seq("b", 0), seq("c", last)} {
		h.want(later, gone, Expired, 6)
	}
	h.reopen(t)
	h.want(later, seq("a", 1), Applied, 7)
	h.want(later, seq("a", 0), Expired, 7)
}

// The memory loads only bytes that its own snapshot would have. It refuses others and does not
// panic.
func FuzzRestoreOnce(f *testing.F) {
	h := newHistory(f)
	for i := range int64(40) {
		h.request(i, seq(fmt.Sprint("p", i%9), uint64(i+1)))
		h.request(i, keyed(fmt.Sprint(i), ""))
		h.request(i, judgedKey(fmt.Sprint("judged", i/2), uint32(1+i%7/2), i+1, i+1))
		for _, id := range []RequestID{seq(fmt.Sprint("p", i%9), uint64(i+1)), keyed(fmt.Sprint(i), "")} {
			if i%3 > 0 {
				h.m.SetRepeat(&id, []Outcome{Refused, PartlyRefused}[i%2])
			}
		}
	}
	dropped := newHistory(f)
	dropped.request(0, judgedKey("k", 3, 5, 5))
	dropped.request(minutes(20), judgedKey("k", 1<<31, 6, 6))
	dropped.request(minutes(40), keyed("k", ""))
	for _, o := range []*Memory{New(), h.m, dropped.m} {
		v := o.Capture()
		f.Add(v.appendProducers(nil), v.appendForgotten(nil), v.appendKeys(nil, 0))
	}
	f.Fuzz(func(t *testing.T, producers, gone, keys []byte) {
		o := New()
		if o.restoreProducers(producers) != nil || o.restoreForgotten(gone) != nil || o.restoreKeys(keys) != nil {
			return
		}
		v := o.Capture()
		if !bytes.Equal(v.appendProducers(nil), producers) || !bytes.Equal(v.appendForgotten(nil), gone) || !bytes.Equal(v.appendKeys(nil, 0), keys) {
			t.Fatal("other bytes")
		}
		o.Tick(o.now+1, testLimits)
		id := seq("p", 1)
		o.Judge(&id)
		for _, id := range []RequestID{keyed("k", ""), judgedKey("k", 3, 7, 7), judgedKey("judged1", 1, 7, 7)} {
			o.Judge(&id)
		}
	})
}

// fullOnce returns a memory at the bounds of all limits.
func fullOnce(b *testing.B) *Memory {
	o, l := New(), Limits{KeyHorizon: 10 * time.Minute, KeysMax: KeysMaxMax, ProducerIdle: 24 * time.Hour, ProducersMax: ProducersMaxMax}
	o.Tick(1, l)
	for i := range (1 + forgottenPerProducer) * ProducersMaxMax {
		id := seq(fmt.Sprintf("0193f0a5-7c1e-7b1a-8f00-%012d", i), 1)
		o.Judge(&id)
	}
	for i := range KeysMaxMax {
		id := keyed(fmt.Sprint(i), "")
		o.Judge(&id)
	}
	b.ResetTimer()
	return o
}

// BenchmarkOnceState measures how long a snapshot blocks the state machine.
func BenchmarkOnceState(b *testing.B) {
	o := fullOnce(b)
	for b.Loop() {
		o.Capture()
	}
}

// BenchmarkOnceTick measures a Tick after all records have expired.
func BenchmarkOnceTick(b *testing.B) {
	o := fullOnce(b)
	now := int64(1) + 24*time.Hour.Milliseconds()
	for b.Loop() {
		if o.keyRecords() == 0 {
			b.StopTimer()
			o = fullOnce(b)
			b.StartTimer()
		}
		o.Tick(now, o.limits)
	}
}
