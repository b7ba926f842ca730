package raftfsm

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
)

var testLimits = Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5}

// limitedEntry returns an entry of one request that adds 1 to column 0 of key 1.
func limitedEntry(index uint64, now int64, limits Limits, id RequestID) *raft.Log {
	entry := AppendClock(BeginEntry(nil, KindCounters, 1), time.UnixMilli(now), limits)
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

// sums is a request that adds to column 0 of key 1, once for each delta.
type sums struct {
	id     RequestID
	deltas []int64
}

func summed(id RequestID, deltas ...int64) sums { return sums{id, deltas} }

// entry applies requests of one entry and returns what became of each.
func (h *history) entry(now int64, requests ...sums) (outcomes []Outcome) {
	h.index++
	entry := AppendClock(BeginEntry(nil, KindCounters, 1), time.UnixMilli(now), h.limits)
	for _, r := range requests {
		var w RequestWriter
		w.Reset(nil, &r.id)
		for _, delta := range r.deltas {
			w.Op(1, &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: delta}}})
		}
		entry = append(entry, w.Section()...)
	}
	result := h.c.Apply(&raft.Log{Index: h.index, Type: raft.LogCommand, Data: SealEntry(entry)}).(*Result)
	for i := range requests {
		outcomes = append(outcomes, result.Outcome(i))
	}
	return outcomes
}

func seq(name string, n uint64) RequestID { return ByProducer([]byte(name), n) }
func keyed(key, body string) RequestID    { return ByKey([]byte(key), []byte(body)) }
func minutes(n int64) int64               { return n * time.Minute.Milliseconds() }
func uuidv7(ms int64) string {
	return fmt.Sprintf("%08x-%04x-7000-8000-000000000001", ms>>16, ms&0xffff)
}
func (h *history) bytes() (state []byte) {
	v := h.c.once.capture()
	return v.appendKeys(v.appendGone(v.appendProducers(nil)))
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
	if o := h.c.once; o.producers.len != n-forgottenPerEntry-1 || o.keyRecords() != n-forgottenPerEntry {
		t.Errorf("the first entry left %d producers and %d keys", o.producers.len, o.keyRecords())
	}
	h.want(minutes(60)+1, keyed(last, ""), Applied, 2*n+1)
	for range 2 {
		h.want(minutes(60)+1, keyed(last, ""), Duplicate, 2*n+1)
	}
	if o := h.c.once; o.producers.len != 0 || o.gone.order.len() != n || o.keyRecords() != 1 || len(o.keys.at) != 1 {
		t.Errorf("%d producers, %d gone, %d keys", o.producers.len, o.gone.order.len(), o.keyRecords())
	}
}

// A request of which ops overflowed, each or some, says so again when it is
// repeated, in the same entry, in a later one and behind a snapshot.
func TestRefusedRequestsStayRefused(t *testing.T) {
	add := func(w *RequestWriter, key uint64, n int64) {
		w.Op(key, &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: n}}})
	}
	entry := func(index uint64, ids ...RequestID) *raft.Log {
		e := AppendClock(BeginEntry(nil, KindCounters, 1), time.UnixMilli(0), testLimits)
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
	first := []Outcome{Applied, Applied, Applied, Applied, Refused, Refused, PartlyRefused, Applied}
	again := []Outcome{PartlyRefused, Expired, Refused, Expired, Expired, Refused, PartlyRefused, Refused}
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
	for i, want := range []Outcome{Applied, PartlyRefused} {
		h.index++
		if got := h.c.Apply(entry(h.index, keyed("part", ""))).(*Result).Outcome(0); got != want {
			t.Errorf("a key in part, time %d: outcome %d, want %d", i, got, want)
		}
		h.reopen(t)
	}
	h.want(0, seq("part", 2), Applied, math.MaxInt64) // moves the window
	h.want(0, seq("part", 1), PartlyRefused, math.MaxInt64)
	h.want(0, seq("part", 2), Refused, math.MaxInt64)
	h.want(0, seq("p", 79), Applied, math.MaxInt64) // overflows, and by itself
	h.want(0, seq("p", 79), Refused, math.MaxInt64)
	h.want(0, seq("p", 81), Applied, math.MaxInt64)
	h.want(0, seq("p", 79), Refused, math.MaxInt64)
	h.want(0, seq("p", 78), Applied, math.MaxInt64)
}

// A repeat that carries when its key was met, as the first had no need to, is told that
// its ops overflowed, in the same entry as in a later one.
func TestRefusedRepeatThatTellsWhenItWasMade(t *testing.T) {
	h := newHistory(t)
	h.entry(0, summed(seq("fills", 1), math.MaxInt64))
	section := func(made int64) []byte {
		var w RequestWriter
		id := keyed("k", "body")
		w.Reset(nil, &id)
		w.Op(1, &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: math.MaxInt64}}})
		w.SetMade(made)
		return w.Section()
	}
	for round, want := range [][]Outcome{{Applied, Refused, Refused}, {Refused, Refused, Refused}} {
		e := AppendClock(BeginEntry(nil, KindCounters, 1), time.UnixMilli(0), testLimits)
		e = append(append(append(e, section(0)...), section(1)...), section(2)...)
		h.index++
		r := h.c.Apply(&raft.Log{Index: h.index, Type: raft.LogCommand, Data: SealEntry(e)}).(*Result)
		for request, outcome := range want {
			if got := r.Outcome(request); got != outcome {
				t.Errorf("round %d, request %d: outcome %d, want %d", round, request, got, outcome)
			}
		}
	}
}

// A repeat that is spelled otherwise is told that its ops overflowed, in the same entry
// too.
func TestRefusedRepeatInOtherWords(t *testing.T) {
	h := newHistory(t)
	h.entry(0, summed(seq("fills", 1), math.MaxInt64))
	in := func(bytes string) sums {
		id := ByKey([]byte("k"), []byte(bytes))
		id.SetMeaning([]byte("meaning"))
		id.CompareMeaning()
		return summed(id, 1)
	}
	for round, want := range [][]Outcome{{Applied, Refused}, {Refused, Refused}} {
		if got := h.entry(0, in("{}"), in("{ }")); !slices.Equal(got, want) {
			t.Errorf("round %d: outcomes %d, want %d", round, got, want)
		}
	}
}

// A producer whose request overflowed is forgotten and comes back in the same entry:
// what is remembered of it is that it is back.
func TestRefusedProducerIsBackInTheSameEntry(t *testing.T) {
	h := newHistory(t)
	h.limits.ProducersMax = 2
	h.entry(0, summed(seq("fills", 1), math.MaxInt64))
	outcomes := h.entry(0, summed(seq("p", 5), 1), summed(seq("a", 1), 0), summed(seq("b", 1), 0), summed(seq("p", 6), 0))
	if want := []Outcome{Applied, Applied, Applied, Applied}; !slices.Equal(outcomes, want) {
		t.Errorf("outcomes %d, want %d", outcomes, want)
	}
	h.reopen(t)
	outcomes = h.entry(0, summed(seq("p", 5), 1), summed(seq("p", 6), 0))
	if want := []Outcome{Expired, Duplicate}; !slices.Equal(outcomes, want) {
		t.Errorf("repeated: outcomes %d, want %d", outcomes, want)
	}
}

// Whatever requests an entry has, and however little may be remembered, the state
// is that of its snapshot.
func TestSnapshotAfterAnyEntry(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHistory(t)
		h.limits.ProducersMax = rapid.IntRange(1, 3).Draw(rt, "producers")
		h.limits.KeysMax = rapid.IntRange(1, 3).Draw(rt, "keys")
		request := rapid.Custom(func(rt *rapid.T) sums {
			name := fmt.Sprint(rapid.IntRange(0, 4).Draw(rt, "name"))
			s := sums{id: keyed(name, "")}
			if rapid.Bool().Draw(rt, "by producer") {
				s.id = seq(name, 1+rapid.Uint64Range(0, 2*seqWindow).Draw(rt, "number"))
			}
			s.deltas = rapid.SliceOfN(rapid.SampledFrom([]int64{0, math.MaxInt64}), 1, 2).Draw(rt, "sums")
			return s
		})
		now := minutes(1 << 20)
		for _, requests := range rapid.SliceOfN(rapid.SliceOfN(request, 1, 8), 1, 20).Draw(rt, "entries") {
			now += rapid.SampledFrom([]int64{0, minutes(9), minutes(70)}).Draw(rt, "later")
			h.entry(now, requests...)
			before := h.bytes()
			if h.reopen(rt); !bytes.Equal(h.bytes(), before) {
				rt.Fatal("the snapshot restores to another state")
			}
		}
	})
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
	table := tableSnapshot{h.c.Table().Snapshot(), nil}
	defer table.release()
	if err := writeShard(&b, KindCounters, h.index, table, h.c.once.capture()); err != nil {
		t.Fatal(err)
	}
	h.c = NewCounters()
	index, once, err := readShard(&b, KindCounters, h.c.held)
	if err != nil || index != h.index {
		t.Fatalf("index %d: %v", index, err)
	}
	h.c.once = once
}

// The first write of a restore makes the memory forget the requests of clients and
// nothing else: 1. time and what is too old stay; 2. its number and those of earlier
// restores are remembered, also when it comes late; 3. it forgets once; 4. a snapshot
// holds what is left.
func TestFirstWriteOfARestoreForgetsClients(t *testing.T) {
	o := newOnce()
	o.tick(10_000_000, testLimits)
	judge := func(id RequestID, want Outcome) {
		t.Helper()
		if got := o.judge(&id); got != want {
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
	again := newOnce()
	v := o.capture()
	if err := errors.Join(again.restoreProducers(v.appendProducers(nil)), again.restoreGone(v.appendGone(nil)), again.restoreKeys(v.appendKeys(nil))); err != nil {
		t.Fatal(err)
	}
	again.limits, o = o.limits, again
	judge(ByRestore(1000, true), Duplicate)
	for _, id := range clients {
		judge(id, Duplicate)
	}
}

// An entry has the first write of a restore in a form of its own, and no other bytes
// have that form.
func TestSectionOfARestore(t *testing.T) {
	id := ByRestore(1<<60, true)
	var w RequestWriter
	w.Reset(nil, &id)
	w.Op(0, &engine.Op{Kind: engine.OpAdd, Cells: []engine.Cell{{}}})
	kind, payload, _, err := nextSection(w.Section())
	if err != nil || kind != sectionRestore {
		t.Fatalf("section %d, %v", kind, err)
	}
	if got, _, err := parseIdentity(kind, payload); err != nil || got.kind != byRestore || got.seq != id.seq || string(got.producer) != restoreProducer {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, _, err := parseIdentity(kind, payload[:restoreSize-1]); !errors.Is(err, errEntry) {
		t.Errorf("a number that is cut: %v", err)
	}
	if ops, _, err := CheckSection(KindCounters, w.Section(), SectionVisitor{}); err != nil || ops != 1 {
		t.Errorf("%d ops, %v", ops, err)
	}
}
