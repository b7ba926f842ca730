package counters

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

var testLimits = dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5}

// limitedEntry returns an entry of one request that adds 1 to column 0 of key 1.
func limitedEntry(index uint64, now int64, limits dedup.Limits, id dedup.RequestID) *raft.Log {
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 1), time.UnixMilli(now), limits)
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &id)
	Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: 1}}}}.AppendTo(&w, 1, 0)
	return &raft.Log{Index: index, Type: raft.LogCommand, Data: codec.AppendChecksum(append(entry, w.Section()...))}
}

// history applies requests at given log times.
type history struct {
	t      testing.TB
	c      *Machine
	limits dedup.Limits
	index  uint64
}

func newHistory(t testing.TB) *history {
	return &history{t: t, c: New(raftfsm.Places{}), limits: testLimits}
}

func (h *history) request(now int64, id dedup.RequestID) (dedup.Outcome, int64) {
	h.index++
	r := h.c.Apply(limitedEntry(h.index, now, h.limits, id)).(*raftfsm.Result)
	return r.Outcome(0), r.Rows[0]
}

func (h *history) want(now int64, id dedup.RequestID, outcome dedup.Outcome, count int64) {
	h.t.Helper()
	if o, n := h.request(now, id); o != outcome || n != count {
		h.t.Errorf("at %d: outcome %d and count %d, want %d and %d", now, o, n, outcome, count)
	}
}

// sums is a request with one op for each delta. The op adds the delta to column 0 of key 1.
type sums struct {
	id     dedup.RequestID
	deltas []int64
}

func summed(id dedup.RequestID, deltas ...int64) sums { return sums{id, deltas} }

// entry applies requests in one entry and returns their outcomes.
func (h *history) entry(now int64, requests ...sums) (outcomes []dedup.Outcome) {
	h.index++
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 1), time.UnixMilli(now), h.limits)
	for _, r := range requests {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &r.id)
		for _, delta := range r.deltas {
			Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: delta}}}}.AppendTo(&w, 1, 0)
		}
		entry = append(entry, w.Section()...)
	}
	result := h.c.Apply(&raft.Log{Index: h.index, Type: raft.LogCommand, Data: codec.AppendChecksum(entry)}).(*raftfsm.Result)
	for i := range requests {
		outcomes = append(outcomes, result.Outcome(i))
	}
	return outcomes
}

func seq(name string, n uint64) dedup.RequestID { return dedup.ByProducer([]byte(name), n) }
func keyed(key, body string) dedup.RequestID    { return dedup.ByKey([]byte(key), []byte(body)) }

// judged returns the id of a part of a request with a key. The shard of group 7 has accepted the
// key at the time met, and had no other key then.
func judged(key string, met int64) dedup.RequestID {
	id := keyed(key, "body")
	return id.JudgedBy(7, dedup.Use{Met: met, Floor: met})
}
func minutes(n int64) int64 { return n * time.Minute.Milliseconds() }
func uuidv7(ms int64) string {
	return fmt.Sprintf("%08x-%04x-7000-8000-000000000001", ms>>16, ms&0xffff)
}

func (h *history) bytes() (state []byte) { return bytes.Join(h.memory(), nil) }

// memory returns the sections of the request memory in a snapshot: producers, forgotten producers,
// and keys.
func (h *history) memory() (all [][]byte) {
	for _, section := range rafttest.SectionsOf(h.t, rafttest.Persisted(h.t, h.c)) {
		if section[0] >= codec.StreamProducers && section[0] <= codec.StreamKeys {
			all = append(all, section)
		}
	}
	return all
}

// If some or all ops of a request were refused, a repeat of the request has that outcome too. This
// holds for repeats in the same entry, in a later one, and after a restore of a snapshot.
func TestRefusedRequestsStayRefused(t *testing.T) {
	add := func(w *raftfsm.RequestWriter, key uint64, n int64) {
		Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: n}}}}.AppendTo(w, key, 0)
	}
	entry := func(index uint64, ids ...dedup.RequestID) *raft.Log {
		e := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 1), time.UnixMilli(0), testLimits)
		for i, id := range ids {
			var w raftfsm.RequestWriter
			w.Reset(nil, codec.Whole, &id)
			add(&w, 1, math.MaxInt64)
			if i == 0 {
				add(&w, 2, 1) // the other op of the first request is applied
			} else {
				add(&w, 1, math.MaxInt64)
			}
			e = append(e, w.Section()...)
		}
		return &raft.Log{Index: index, Type: raft.LogCommand, Data: codec.AppendChecksum(e)}
	}
	h := newHistory(t)
	if h.index++; h.c.Apply(entry(h.index, seq("fills", 1))).(*raftfsm.Result).Outcome(0) != dedup.Applied {
		t.Fatal("the first was not applied")
	}
	ids := []dedup.RequestID{seq("part", 1), seq("p", 7), keyed("k", ""), seq("p", 6), seq("p", 7), keyed("k", ""), seq("part", 1), seq("p", 80)}
	first := []dedup.Outcome{dedup.Applied, dedup.Applied, dedup.Applied, dedup.Applied, dedup.Refused, dedup.Refused, dedup.PartlyRefused, dedup.Applied}
	again := []dedup.Outcome{dedup.PartlyRefused, dedup.Expired, dedup.Refused, dedup.Expired, dedup.Expired, dedup.Refused, dedup.PartlyRefused, dedup.Refused}
	for i, want := range [][]dedup.Outcome{first, again, again} {
		h.index++
		r := h.c.Apply(entry(h.index, ids...)).(*raftfsm.Result)
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
	for i, want := range []dedup.Outcome{dedup.Applied, dedup.PartlyRefused} {
		h.index++
		if got := h.c.Apply(entry(h.index, keyed("part", ""))).(*raftfsm.Result).Outcome(0); got != want {
			t.Errorf("a key in part, time %d: outcome %d, want %d", i, got, want)
		}
		h.reopen(t)
	}
	h.want(0, seq("part", 2), dedup.Applied, math.MaxInt64) // moves the window
	h.want(0, seq("part", 1), dedup.PartlyRefused, math.MaxInt64)
	h.want(0, seq("part", 2), dedup.Refused, math.MaxInt64)
	h.want(0, seq("p", 79), dedup.Applied, math.MaxInt64) // this request overflows, and is the only one in its entry
	h.want(0, seq("p", 79), dedup.Refused, math.MaxInt64)
	h.want(0, seq("p", 81), dedup.Applied, math.MaxInt64)
	h.want(0, seq("p", 79), dedup.Refused, math.MaxInt64)
	h.want(0, seq("p", 78), dedup.Applied, math.MaxInt64)
}

// Another shard has judged the key of a part, and all ops of the part overflow. Repeats, in the
// same entry or a later one, have the outcome Refused.
func TestRefusedRepeatThatAnotherShardJudged(t *testing.T) {
	h := newHistory(t)
	h.entry(0, summed(seq("fills", 1), math.MaxInt64))
	section := func(floor int64) []byte {
		var w raftfsm.RequestWriter
		id := keyed("k", "body")
		id = id.JudgedBy(7, dedup.Use{})
		w.Reset(nil, codec.Whole, &id)
		Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: math.MaxInt64}}}}.AppendTo(&w, 1, 0)
		w.SetUse(dedup.Use{Met: 5, Floor: floor})
		return w.Section()
	}
	for round, want := range [][]dedup.Outcome{{dedup.Applied, dedup.Refused, dedup.Refused}, {dedup.Refused, dedup.Refused, dedup.Refused}} {
		e := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 1), time.UnixMilli(0), testLimits)
		e = append(append(append(e, section(0)...), section(1)...), section(2)...)
		h.index++
		r := h.c.Apply(&raft.Log{Index: h.index, Type: raft.LogCommand, Data: codec.AppendChecksum(e)}).(*raftfsm.Result)
		for request, outcome := range want {
			if got := r.Outcome(request); got != outcome {
				t.Errorf("round %d, request %d: outcome %d, want %d", round, request, got, outcome)
			}
		}
	}
}

// The ops of a use overflow. In the same entry there is a second use with a later time: a restore
// has made the judge forget the first, so it accepted the key again. The second use is refused too.
func TestRefusedUseThatItsJudgeAcceptsAnew(t *testing.T) {
	h := newHistory(t)
	h.entry(0, summed(seq("fills", 1), math.MaxInt64))
	part := func(met int64) sums {
		id := keyed("k", "body")
		return summed(id.JudgedBy(7, dedup.Use{Met: met}), 1)
	}
	for round, want := range [][]dedup.Outcome{{dedup.Applied, dedup.Refused}, {dedup.Expired, dedup.Refused}} {
		if got := h.entry(0, part(5), part(6)); !slices.Equal(got, want) {
			t.Errorf("round %d: outcomes %d, want %d", round, got, want)
		}
		h.reopen(t)
	}
}

// If a restore is between two copies of a request in one entry, the shard applies the second copy
// too. Later repeats have the outcome of the second copy.
func TestRefusedRequestsThatARestoreForgetsInTheirEntry(t *testing.T) {
	id := keyed("k", "body")
	part := id.JudgedBy(7, dedup.Use{Met: 5})
	for name, id := range map[string]dedup.RequestID{"producer": seq("p", 5), "key": id, "part": part} {
		for _, c := range []struct {
			first, second []int64
			repeat        dedup.Outcome
		}{
			{[]int64{1}, []int64{0}, dedup.Duplicate},
			{[]int64{1, 0}, []int64{1}, dedup.Refused},
			{[]int64{1}, []int64{1, 0}, dedup.PartlyRefused},
		} {
			h := newHistory(t)
			h.entry(0, summed(seq("fills", 1), math.MaxInt64))
			got := h.entry(0, summed(id, c.first...), summed(dedup.ByRestore(1, true), 0), summed(id, c.second...), summed(id, 0))
			if want := []dedup.Outcome{dedup.Applied, dedup.Applied, dedup.Applied, c.repeat}; !slices.Equal(got, want) {
				t.Errorf("%s %v: outcomes %d, want %d", name, c, got, want)
			}
			h.reopen(t)
			if got := h.entry(0, summed(id, 0)); got[0] != c.repeat {
				t.Errorf("%s %v: repeat %d, want %d", name, c, got[0], c.repeat)
			}
		}
	}
}

// If the ops of a request overflowed, a repeat in the same entry has the outcome Refused.
func TestRefusedRepeat(t *testing.T) {
	h := newHistory(t)
	h.entry(0, summed(seq("fills", 1), math.MaxInt64))
	once := func() sums { return summed(dedup.ByKey([]byte("k"), []byte("meaning")), 1) }
	for round, want := range [][]dedup.Outcome{{dedup.Applied, dedup.Refused}, {dedup.Refused, dedup.Refused}} {
		if got := h.entry(0, once(), once()); !slices.Equal(got, want) {
			t.Errorf("round %d: outcomes %d, want %d", round, got, want)
		}
	}
}

// The request of a producer overflows. In the same entry the producer is forgotten and sends
// another request. Then the memory has only the producer's new record.
func TestRefusedProducerIsBackInTheSameEntry(t *testing.T) {
	h := newHistory(t)
	h.limits.ProducersMax = 2
	h.entry(0, summed(seq("fills", 1), math.MaxInt64))
	outcomes := h.entry(0, summed(seq("p", 5), 1), summed(seq("a", 1), 0), summed(seq("b", 1), 0), summed(seq("p", 6), 0))
	if want := []dedup.Outcome{dedup.Applied, dedup.Applied, dedup.Applied, dedup.Applied}; !slices.Equal(outcomes, want) {
		t.Errorf("outcomes %d, want %d", outcomes, want)
	}
	h.reopen(t)
	outcomes = h.entry(0, summed(seq("p", 5), 1), summed(seq("p", 6), 0))
	if want := []dedup.Outcome{dedup.Expired, dedup.Duplicate}; !slices.Equal(outcomes, want) {
		t.Errorf("repeated: outcomes %d, want %d", outcomes, want)
	}
}

// Whatever requests an entry has, and however small the request memory is, a snapshot restores the
// same state. The requests have the same outcomes as in entries of their own.
func TestSnapshotAfterAnyEntry(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		h, oneByOne := newHistory(t), newHistory(t)
		h.limits.ProducersMax = rapid.IntRange(1, 3).Draw(rt, "producers")
		h.limits.KeysMax = rapid.IntRange(1, 3).Draw(rt, "keys")
		request := rapid.Custom(func(rt *rapid.T) sums {
			name := fmt.Sprint(rapid.IntRange(0, 4).Draw(rt, "name"))
			s := sums{id: keyed(name, "")}
			switch rapid.IntRange(0, 9).Draw(rt, "identity") {
			case 0, 1, 2:
				s.id = seq(name, 1+rapid.Uint64Range(0, 2*64).Draw(rt, "number"))
			case 3, 4, 5:
				met := minutes(rapid.Int64Range(1, 100).Draw(rt, "met"))
				use := dedup.Use{Met: met, Floor: met - minutes(rapid.Int64Range(0, 10).Draw(rt, "horizon"))}
				s.id = s.id.JudgedBy(rapid.Uint32Range(7, 8).Draw(rt, "judge"), use)
			case 6:
				s.id = dedup.ByRestore(rapid.Uint64Range(1, 40).Draw(rt, "restore"), true)
			}
			s.deltas = rapid.SliceOfN(rapid.SampledFrom([]int64{0, math.MaxInt64}), 1, 2).Draw(rt, "sums")
			return s
		})
		now := minutes(1 << 20)
		for _, requests := range rapid.SliceOfN(rapid.SliceOfN(request, 1, 8), 1, 20).Draw(rt, "entries") {
			now += rapid.SampledFrom([]int64{0, minutes(9), minutes(70)}).Draw(rt, "later")
			got, want := h.entry(now, requests...), []dedup.Outcome(nil)
			oneByOne.limits = h.limits
			for _, r := range requests {
				want = append(want, oneByOne.entry(now, r)...)
			}
			if !slices.Equal(got, want) {
				rt.Fatalf("outcomes %d, one by one %d", got, want)
			}
			before := h.bytes()
			if h.reopen(rt); !bytes.Equal(h.bytes(), before) {
				rt.Fatal("the snapshot restores to another state")
			}
		}
	})
}

// reopen replaces the state machine by a new one that has restored its snapshot.
func (h *history) reopen(t rapid.TB) {
	again := New(raftfsm.Places{})
	if err := rafttest.Restore(again, rafttest.Persisted(t, h.c)); err != nil || again.Applied() != h.index {
		t.Fatalf("index %d: %v", again.Applied(), err)
	}
	h.c = again
}

// The first write of a restore has a section kind of its own, with only one valid encoding.
func TestSectionOfARestore(t *testing.T) {
	id := dedup.ByRestore(1<<60, true)
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &id)
	Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{}}}}.AppendTo(&w, 0, 0)
	kind, payload, _, err := codec.NextSection(w.Section())
	if err != nil || kind != codec.SectionRestore {
		t.Fatalf("section %d, %v", kind, err)
	}
	if got, _, err := dedup.ParseIdentity(kind, payload[2:]); err != nil || !got.ForgetsClients() || !reflect.DeepEqual(got, id) {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, _, err := dedup.ParseIdentity(kind, payload[2:9]); !errors.Is(err, codec.ErrEntry) {
		t.Errorf("a number that is cut: %v", err)
	}
	if ops, _, err := self.CheckSection(codec.KindCounters, codec.Whole, w.Section(), nil); err != nil || ops != 1 {
		t.Errorf("%d ops, %v", ops, err)
	}
}
