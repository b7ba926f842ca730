package counters

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Replicas that apply one log have the same request memory, byte for byte. This does not depend on
// their clocks (in a synctest bubble, the clock is years behind), on the batches in which raft
// applies the entries, or on restored snapshots.
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
		if r.IntN(20) == 0 { // this entry is from a leader with other settings
			limits = dedup.Limits{KeyHorizon: time.Minute, KeysMax: 3, ProducerIdle: time.Minute, ProducersMax: 2}
		}
		log = append(log, limitedEntry(uint64(i+1), now, limits, id))
	}
	for i, id := range []dedup.RequestID{seq("last", 1), keyed(uuidv7(now), "b")} {
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
	keys, producers := oneByOne.c.Remembered()
	if gone := len(oneByOne.memory()[1]) - codec.SectionHeadSize - codec.ChecksumSize; gone == 0 || producers == 0 || keys == 0 {
		t.Errorf("%d bytes of gone producers, %d producers, %d keys: the log shows too little", gone, producers, keys)
	}
}

// The encodings of requests in entries, and of a request memory with every kind of record in a
// snapshot, must not change.
func TestOnceBytesAreGolden(t *testing.T) {
	h := newHistory(t)
	h.limits = dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 2}
	now := minutes(1 << 20)
	rafttest.Golden(t, "entry-producer.bin", limitedEntry(1, now, h.limits, seq("p", 7)).Data)
	rafttest.Golden(t, "entry-keyed.bin", limitedEntry(1, now, h.limits, keyed(uuidv7(now), "body")).Data)
	rafttest.Golden(t, "entry-judged.bin", limitedEntry(1, now, h.limits, judged("k", now-1)).Data)
	h.request(now-minutes(20), judged("dropped", now-minutes(20)))
	partly, refused := []int64{1, math.MaxInt64}, []int64{math.MaxInt64}
	for i, r := range []sums{
		summed(seq("gone", 1<<40), 1), summed(seq("p", 7), 1), summed(seq("p", 9), 1), summed(seq("back", 3), partly...),
		summed(seq("other", 1), 1), summed(seq("back", 5), refused...), summed(keyed("k", "body"), refused...),
		summed(keyed(uuidv7(now+minutes(1)), "body"), partly...), summed(keyed(uuidv7(now-minutes(1)), "body"), 1),
		summed(judged("judged", now-minutes(15)), 1), summed(judged("judged", now+minutes(30)), 1),
	} {
		requests := []sums{r}
		if len(r.deltas) == 1 && r.deltas[0] > 1 { // add a second request, so that the count rises by 1
			requests = append(requests, summed(dedup.RequestID{}, 1))
		}
		if o := h.entry(now+int64(i), requests...); o[0] != dedup.Applied {
			t.Fatalf("request %d: outcome %d", i, o[0])
		}
	}
	rafttest.Golden(t, "snapshot-once.bin", rafttest.Persisted(t, h.c))
}
