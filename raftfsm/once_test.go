package raftfsm

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
)

var testLimits = Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5}

// limitedEntry returns an entry of one request that adds 1 to column 0 of key 1.
func limitedEntry(index uint64, now int64, limits Limits, id RequestID) *raft.Log {
	entry := AppendClock(BeginEntry(nil, 1), time.UnixMilli(now), limits)
	var w RequestWriter
	w.Reset(nil, &id)
	w.Op(1, &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: 1}}})
	return &raft.Log{Index: index, Type: raft.LogCommand, Data: SealEntry(append(entry, w.Section()...))}
}

// history applies requests at given log times.
type history struct {
	t      testing.TB
	c      *Counters
	limits Limits
	index  uint64
}

func newHistory(t testing.TB) *history {
	return &history{t: t, c: NewCounters(), limits: testLimits}
}

func (h *history) request(now int64, id RequestID) (Outcome, int64) {
	h.index++
	r := h.c.Apply(limitedEntry(h.index, now, h.limits, id)).(*Result)
	return r.Outcome(0), r.Rows[0]
}

func (h *history) want(now int64, id RequestID, outcome Outcome, count int64) {
	h.t.Helper()
	if o, n := h.request(now, id); o != outcome || n != count {
		h.t.Errorf("at %d: outcome %d and count %d, want %d and %d", now, o, n, outcome, count)
	}
}

func seq(name string, n uint64) RequestID { return ByProducer([]byte(name), n) }
func keyed(key, body string) RequestID    { return ByKey([]byte(key), []byte(body)) }
func minutes(n int64) int64               { return n * time.Minute.Milliseconds() }
func uuidv7(ms int64) string {
	return fmt.Sprintf("%08x-%04x-7000-8000-000000000001", ms>>16, ms&0xffff)
}
func (h *history) bytes() (state []byte) {
	s := h.c.once.state()
	return bytes.Join([][]byte{s.producers, s.gone, s.keys}, nil)
}

func TestProducerWindow(t *testing.T) {
	h := newHistory(t)
	h.want(0, seq("p", 100), Applied, 1)
	h.want(0, seq("p", 100), Duplicate, 1)
	h.want(0, seq("p", 37), Applied, 2) // the oldest of the window
	h.want(0, seq("p", 37), Duplicate, 2)
	h.want(0, seq("p", 36), Expired, 2)
	h.want(0, seq("p", 163), Applied, 3)
	h.want(0, seq("p", 100), Duplicate, 3)
	h.want(0, seq("p", 99), Expired, 3)
	h.want(0, seq("p", 101), Applied, 4)
	h.want(0, seq("p", 1<<63), Applied, 5)
	h.want(0, seq("p", 163), Expired, 5)
	h.want(0, seq("q", 163), Applied, 6) // another stream
}

func TestProducerExpiresByLogTime(t *testing.T) {
	h := newHistory(t)
	h.want(minutes(1), seq("p", 1), Applied, 1)
	h.want(minutes(60), seq("p", 1), Duplicate, 1) // in use again
	h.want(minutes(119), seq("p", 2), Applied, 2)
	h.want(minutes(180), seq("q", 1), Applied, 3)
	h.want(minutes(180), seq("p", 2), Expired, 3)
	if len(h.c.once.producers) != 1 || h.c.once.gone.order.len() != 1 {
		t.Errorf("%d producers, %d gone", len(h.c.once.producers), h.c.once.gone.order.len())
	}
	h.want(minutes(2), seq("q", 2), Applied, 4) // a leader whose clock is behind
	if h.c.once.now != minutes(180) {
		t.Errorf("log time went back to %d", h.c.once.now)
	}
}

// A producer that one group forgot while it wrote to others goes on where it
// was. Of its old numbers none is applied again, also inside the new window,
// after it was forgotten twice, and behind a snapshot.
func TestForgottenProducerGoesOn(t *testing.T) {
	h := newHistory(t)
	h.want(minutes(0), seq("p", 5), Applied, 1)
	h.want(minutes(0), seq("p", 7), Applied, 2)
	h.want(minutes(61), seq("p", 7), Expired, 2)
	h.want(minutes(61), seq("p", 6), Expired, 2) // never applied, but who knows
	h.want(minutes(61), seq("p", 10), Applied, 3)
	h.reopen(t)
	h.want(minutes(61), seq("p", 10), Duplicate, 3)
	h.want(minutes(61), seq("p", 9), Applied, 4)
	h.want(minutes(61), seq("p", 8), Applied, 5)
	h.want(minutes(61), seq("p", 7), Expired, 5)
	h.want(minutes(61), seq("p", 6), Expired, 5)
	h.want(minutes(130), seq("p", 10), Expired, 5)
	h.reopen(t)
	h.want(minutes(130), seq("p", 8), Expired, 5)
	h.want(minutes(130), seq("p", 11), Applied, 6)
	h.want(minutes(130), seq("p", 10), Expired, 6)
}

// Two names of one hash: none of them has a number applied twice.
func TestGoneProducersOfOneHash(t *testing.T) {
	g := newGoneProducers()
	for i, high := range []uint64{100, 5, 200} {
		g.add(goneProducer{7, high})
		if got, known := g.high(7); !known || got != []uint64{100, 100, 200}[i] {
			t.Errorf("after %d: %d %v", high, got, known)
		}
	}
	for _, want := range []bool{true, true, false} {
		g.drop()
		if _, known := g.high(7); known != want {
			t.Errorf("with %d left: known %v", g.order.len(), known)
		}
	}
}

func TestProducersAreBounded(t *testing.T) {
	h := newHistory(t)
	for i := range int64(1000) {
		h.want(i, seq(fmt.Sprint("p", i), 1), Applied, i+1)
	}
	if len(h.c.once.producers) != testLimits.ProducersMax || h.c.once.gone.order.len() != gonePerProducer*testLimits.ProducersMax {
		t.Errorf("%d producers, %d gone", len(h.c.once.producers), h.c.once.gone.order.len())
	}
	h.want(1000, seq("p994", 1), Expired, 1000)
	h.want(1000, seq("p955", 1), Expired, 1000) // the first that is known to have gone
	h.want(1000, seq("p954", 1), Applied, 1001)
	h.want(1000, seq("p999", 1), Duplicate, 1001)
}

func TestKeys(t *testing.T) {
	h := newHistory(t)
	h.want(0, keyed("k", "body"), Applied, 1)
	h.want(minutes(9), keyed("k", "body"), Duplicate, 1)
	h.want(minutes(9), keyed("k", "other"), Conflict, 1)
	now := minutes(1 << 20)
	h.want(now, keyed(uuidv7(now), "b"), Applied, 2)
	h.want(now, keyed(uuidv7(now-minutes(10)-1), "b"), Expired, 2)
	h.want(now, keyed(uuidv7(now+minutes(10)+1), "b"), Expired, 2)
	ahead := uuidv7(now + minutes(10)) // made by a clock that is ahead
	h.want(now, keyed(ahead, "b"), Applied, 3)
	h.want(now+minutes(20)-1, keyed(ahead, "b"), Duplicate, 3)
	h.want(now+minutes(20), keyed(ahead, "b"), Duplicate, 3)
	h.want(now+minutes(20)+1, keyed(ahead, "b"), Expired, 3)
}

// A key that was forgotten under a short horizon is not taken again under a
// longer one, and one that outlives a shorter horizon is kept for as long as it
// would be taken.
func TestKeysOutliveChangesOfTheHorizon(t *testing.T) {
	h, now := newHistory(t), minutes(1<<20)
	within := func(horizon time.Duration) { h.limits.KeyHorizon = horizon }
	h.want(now, keyed(uuidv7(now), "b"), Applied, 1)
	h.want(now+minutes(21), keyed("other", ""), Applied, 2) // forgets it
	within(time.Hour)
	h.want(now+minutes(21), keyed(uuidv7(now), "b"), Expired, 2)
	h.want(now+minutes(22), keyed(uuidv7(now+minutes(21)), "b"), Applied, 3)
	ahead := uuidv7(now + minutes(80))
	h.want(now+minutes(23), keyed(ahead, "b"), Applied, 4)
	within(time.Minute)
	for _, at := range []int64{30, 78, 79, 80, 81} {
		h.want(now+minutes(at), keyed(ahead, "b"), Duplicate, 4)
	}
	h.want(now+minutes(82), keyed(ahead, "b"), Expired, 4)
	if n := h.c.once.keyRecords(); n != 0 {
		t.Errorf("%d keys are kept", n)
	}
}

// What comes of age at once is dropped over several entries, and is unknown from
// the first of them on.
func TestDroppingIsBoundedByEntry(t *testing.T) {
	h := newHistory(t)
	h.limits.KeysMax, h.limits.ProducersMax = 3*forgottenPerEntry, 3*forgottenPerEntry
	const n = 2*forgottenPerEntry + 1
	for i := range int64(n) {
		h.request(0, keyed(fmt.Sprint(i), ""))
		h.request(0, seq(fmt.Sprint(i), 1))
	}
	last := fmt.Sprint(n - 1)
	h.want(minutes(10), keyed(last, ""), Duplicate, 2*n)
	h.want(minutes(60)+1, seq(last, 1), Expired, 2*n)
	if o := h.c.once; len(o.producers) != n-forgottenPerEntry-1 || o.keyRecords() != n-forgottenPerEntry {
		t.Errorf("the first entry left %d producers and %d keys", len(o.producers), o.keyRecords())
	}
	h.want(minutes(60)+1, keyed(last, ""), Applied, 2*n+1)
	for range 2 {
		h.want(minutes(60)+1, keyed(last, ""), Duplicate, 2*n+1)
	}
	if o := h.c.once; len(o.producers) != 0 || o.gone.order.len() != n || o.keyRecords() != 1 || len(o.keys.at) != 1 {
		t.Errorf("%d producers, %d gone, %d keys", len(o.producers), o.gone.order.len(), o.keyRecords())
	}
}

// A full memory whose keys may go makes room for as many as come in an entry.
func TestFullMemoryForgetsWhatIsDue(t *testing.T) {
	o, l := newOnce(), testLimits
	l.KeysMax = 2 * forgottenPerEntry
	o.tick(0, l)
	fill := func(round int) {
		for i := range l.KeysMax {
			id := keyed(fmt.Sprint(round, " ", i), "")
			if outcome := o.judge(&id); outcome != Applied {
				t.Fatalf("round %d, key %d: outcome %d", round, i, outcome)
			}
		}
	}
	fill(0)
	o.tick(minutes(20), l)
	fill(1)
	if id := keyed("one more", ""); o.judge(&id) != Full || o.keyRecords() != l.KeysMax {
		t.Errorf("%d keys", o.keyRecords())
	}
}

// A request of which every op overflowed says so again when it is repeated, in
// the same entry, in a later one and behind a snapshot.
func TestRefusedRequestsStayRefused(t *testing.T) {
	add := func(w *RequestWriter, key uint64, n int64) {
		w.Op(key, &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: n}}})
	}
	entry := func(index uint64, ids ...RequestID) *raft.Log {
		e := AppendClock(BeginEntry(nil, 1), time.UnixMilli(0), testLimits)
		for i, id := range ids {
			var w RequestWriter
			w.Reset(nil, &id)
			add(&w, 1, math.MaxInt64)
			if i == 0 {
				add(&w, 2, 1) // of the first, one op is applied
			} else {
				add(&w, 1, math.MaxInt64)
			}
			e = append(e, w.Section()...)
		}
		return &raft.Log{Index: index, Type: raft.LogCommand, Data: SealEntry(e)}
	}
	h := newHistory(t)
	if h.index++; h.c.Apply(entry(h.index, seq("fills", 1))).(*Result).Outcome(0) != Applied {
		t.Fatal("the first was not applied")
	}
	ids := []RequestID{seq("part", 1), seq("p", 7), keyed("k", ""), seq("p", 6), seq("p", 7), keyed("k", ""), seq("part", 1), seq("p", 80)}
	first := []Outcome{Applied, Applied, Applied, Applied, Refused, Refused, Duplicate, Applied}
	again := []Outcome{Duplicate, Expired, Refused, Expired, Expired, Refused, Duplicate, Refused}
	for i, want := range [][]Outcome{first, again, again} {
		h.index++
		r := h.c.Apply(entry(h.index, ids...)).(*Result)
		for request := range ids {
			if got := r.Outcome(request); got != want[request] {
				t.Errorf("time %d, request %d: outcome %d, want %d", i, request, got, want[request])
			}
		}
		if r.Rows[2] != math.MaxInt64 || r.Rows[1] != 2 {
			t.Errorf("time %d: rows %v", i, r.Rows)
		}
		h.reopen(t)
	}
	h.want(0, seq("p", 79), Applied, math.MaxInt64) // overflows, and by itself
	h.want(0, seq("p", 79), Refused, math.MaxInt64)
	h.want(0, seq("p", 81), Applied, math.MaxInt64)
	h.want(0, seq("p", 79), Refused, math.MaxInt64)
	h.want(0, seq("p", 78), Applied, math.MaxInt64)
}

func TestKeysAreBounded(t *testing.T) {
	h := newHistory(t)
	for i := range int64(testLimits.KeysMax) {
		h.want(0, keyed(fmt.Sprint(i), ""), Applied, i+1)
	}
	h.want(0, keyed("one more", ""), Full, 50)
	h.want(0, keyed("7", ""), Duplicate, 50)
	h.want(minutes(10), keyed("one more", ""), Full, 50)
	h.want(minutes(10)+1, keyed("one more", ""), Applied, 51)
	if o := h.c.once; o.keyRecords() != 1 || len(o.keys.at) != 1 {
		t.Errorf("%d keys, %d by name", o.keyRecords(), len(o.keys.at))
	}
}

// As many keys as a memory may hold, less two, in each horizon are taken for
// ever, also behind one that a clock ahead has made.
func TestKeysOfAHorizonFit(t *testing.T) {
	h, now := newHistory(t), minutes(1<<20)
	h.want(now, keyed(uuidv7(now+minutes(9)), ""), Applied, 1)
	step := testLimits.KeyHorizon.Milliseconds() / int64(testLimits.KeysMax-2)
	for i := range int64(1000) {
		h.want(now+i*step, keyed(fmt.Sprint(i), ""), Applied, i+2)
	}
}

func TestBornAt(t *testing.T) {
	for key, want := range map[string]int64{
		"01890a5d-ac96-774b-bcce-b302099a8057": 0x01890a5dac96,
		"01890A5D-AC96-774B-BCCE-B302099A8057": 0x01890a5dac96,
		"01890a5d-ac96-474b-bcce-b302099a8057": 0, // version 4
		"01890a5d-ac96-774b-bcce-b302099a805":  0,
		"01890a5d-ac96-774b-bcce-b302099a805g": 0,
		"01890a5dxac96-774b-bcce-b302099a8057": 0,
		"k":                                    0,
	} {
		if got := bornAt([]byte(key)); got != want {
			t.Errorf("%s: %x, want %x", key, got, want)
		}
	}
}

// Requests of few producers and keys, in any order and at any times, against a
// model that remembers all: none is applied twice, a producer can always go on,
// replicas agree byte by byte, and a snapshot anywhere changes nothing.
func TestOnceAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		h, replica := newHistory(t), newHistory(t)
		applied, highest, count, now := map[string]bool{}, map[string]uint64{}, int64(0), minutes(1<<20)
		for range rapid.IntRange(1, 400).Draw(rt, "requests") {
			now += []int64{0, 0, 1, -5, minutes(1), minutes(30)}[r.IntN(6)]
			var name string
			var id RequestID
			next := false // above all numbers of its producer
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

// reopen replaces the state by what a snapshot of it restores to.
func (h *history) reopen(t rapid.TB) {
	var b bytes.Buffer
	table, state := h.c.Table().Snapshot(), h.c.once.state()
	defer table.Close()
	if err := writeCounters(&b, h.index, table, &state); err != nil {
		t.Fatal(err)
	}
	index, restored, once, err := readCounters(&b)
	if err != nil || index != h.index {
		t.Fatalf("index %d: %v", index, err)
	}
	h.c = NewCounters()
	h.c.table.Store(restored)
	h.c.once = once
}
