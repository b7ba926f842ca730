package raftfsm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// Replicas that apply one log hold equal bytes, whatever their clocks (inside a
// bubble it is another year), however raft batches the entries, and whether they
// began with a snapshot.
func TestReplicasAgreeWhateverTheirClocks(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 0))
	now := time.Now().UnixMilli()
	var log []*raft.Log
	for i := range 3000 {
		now += []int64{0, 1, -1000, minutes(1), minutes(40)}[r.IntN(5)]
		id := seq(fmt.Sprint("p", r.IntN(20)), 1+r.Uint64N(200))
		if r.IntN(2) == 0 {
			id = keyed(uuidv7(now-r.Int64N(minutes(12))/1000*1000), fmt.Sprint(r.IntN(2)))
		}
		limits := testLimits
		if r.IntN(20) == 0 { // as of a leader with other settings
			limits = Limits{KeyHorizon: time.Minute, KeysMax: 3, ProducerIdle: time.Minute, ProducersMax: 2}
		}
		log = append(log, limitedEntry(uint64(i+1), now, limits, id))
	}
	for i, id := range []RequestID{seq("last", 1), keyed(uuidv7(now), "b")} {
		log = append(log, limitedEntry(uint64(3001+i), now, testLimits, id))
	}
	oneByOne := newHistory(t)
	for _, entry := range log {
		oneByOne.c.Apply(entry)
	}
	want := oneByOne.bytes()
	replay := func(t *testing.T) {
		replica := newHistory(t)
		for from := 0; from < len(log); {
			n := min(1+r.IntN(64), len(log)-from)
			replica.c.ApplyBatch(log[from : from+n])
			from += n
			if replica.index = uint64(from); r.IntN(10) == 0 {
				replica.reopen(t)
			}
		}
		if !bytes.Equal(replica.bytes(), want) {
			t.Error("another state")
		}
	}
	t.Run("now", replay)
	t.Run("years ago", func(t *testing.T) { synctest.Test(t, replay) })
	if s := oneByOne.c.once; s.gone.order.len() == 0 || s.producers.len == 0 || s.keyRecords() == 0 {
		t.Errorf("%d gone, %d producers, %d keys: the log shows too little", s.gone.order.len(), s.producers.len, s.keyRecords())
	}
}

// A memory of every kind of record, as entries and a snapshot have it.
func TestOnceBytesAreGolden(t *testing.T) {
	h := newHistory(t)
	h.limits = Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 2}
	now := minutes(1 << 20)
	mustBeGolden(t, "entry-producer.bin", limitedEntry(1, now, h.limits, seq("p", 7)).Data)
	mustBeGolden(t, "entry-keyed.bin", limitedEntry(1, now, h.limits, keyed(uuidv7(now), "body")).Data)
	for i, id := range []RequestID{
		seq("gone", 1<<40), seq("p", 7), seq("p", 9), seq("back", 3), seq("other", 1), seq("back", 5),
		keyed("k", "body"), keyed(uuidv7(now+minutes(1)), "body"), keyed(uuidv7(now-minutes(1)), "body"),
	} {
		if o, _ := h.request(now+int64(i), id); o != Applied {
			t.Fatalf("request %d: outcome %d", i, o)
		}
	}
	for _, refusal := range []struct {
		id    RequestID
		again Outcome
	}{
		{seq("back", 3), PartlyRefused}, {seq("back", 5), Refused},
		{keyed("k", "body"), Refused}, {keyed(uuidv7(now+minutes(1)), "body"), PartlyRefused},
	} {
		h.c.once.refuse(&refusal.id, refusal.again)
	}
	mustBeGolden(t, "snapshot-once.bin", persisted(t, h.c))
}

// What restores is what was written, byte by byte, and anything else is refused
// without a panic.
func FuzzRestoreOnce(f *testing.F) {
	h := newHistory(f)
	for i := range int64(40) {
		h.request(i, seq(fmt.Sprint("p", i%9), uint64(i+1)))
		h.request(i, keyed(fmt.Sprint(i), ""))
		for _, id := range []RequestID{seq(fmt.Sprint("p", i%9), uint64(i+1)), keyed(fmt.Sprint(i), "")} {
			if i%3 > 0 {
				h.c.once.refuse(&id, []Outcome{Refused, PartlyRefused}[i%2])
			}
		}
	}
	for _, o := range []*once{newOnce(), h.c.once} {
		v := o.capture()
		f.Add(v.appendProducers(nil), v.appendGone(nil), v.appendKeys(nil))
	}
	f.Fuzz(func(t *testing.T, producers, gone, keys []byte) {
		o := newOnce()
		if o.restoreProducers(producers) != nil || o.restoreGone(gone) != nil || o.restoreKeys(keys) != nil {
			return
		}
		v := o.capture()
		if !bytes.Equal(v.appendProducers(nil), producers) || !bytes.Equal(v.appendGone(nil), gone) || !bytes.Equal(v.appendKeys(nil), keys) {
			t.Fatal("other bytes")
		}
		o.tick(o.now+1, testLimits)
		id := seq("p", 1)
		o.judge(&id)
		id = keyed("k", "")
		o.judge(&id)
	})
}

// fullOnce is a memory of as much as it may ever hold.
func fullOnce(b *testing.B) *once {
	o, l := newOnce(), Limits{KeyHorizon: 10 * time.Minute, KeysMax: KeysMaxMax, ProducerIdle: 24 * time.Hour, ProducersMax: ProducersMaxMax}
	o.tick(1, l)
	for i := range (1 + gonePerProducer) * ProducersMaxMax {
		id := seq(fmt.Sprintf("0193f0a5-7c1e-7b1a-8f00-%012d", i), 1)
		o.judge(&id)
	}
	for i := range KeysMaxMax {
		id := keyed(fmt.Sprint(i), "")
		o.judge(&id)
	}
	b.ResetTimer()
	return o
}

// BenchmarkOnceState is what a snapshot keeps the state machine for.
func BenchmarkOnceState(b *testing.B) {
	o := fullOnce(b)
	for b.Loop() {
		o.capture()
	}
}

// BenchmarkOnceTick is the entry at which all is due.
func BenchmarkOnceTick(b *testing.B) {
	o := fullOnce(b)
	now := int64(1) + 24*time.Hour.Milliseconds()
	for b.Loop() {
		if o.keyRecords() == 0 {
			b.StopTimer()
			o = fullOnce(b)
			b.StartTimer()
		}
		o.tick(now, o.limits)
	}
}
