package names

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

func entry(index uint64, id dedup.RequestID, ops ...Op) *raft.Log {
	return clockedEntry(index, 1000, id, ops...)
}

// clockedEntry returns an entry with a clock in Unix milliseconds.
func clockedEntry(index uint64, now int64, id dedup.RequestID, ops ...Op) *raft.Log {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &id)
	for i := range ops {
		Ops(ops).AppendTo(&w, 0, i)
	}
	data := dedup.AppendClock(codec.BeginEntry(nil, codec.KindNames, 1), time.UnixMilli(now), dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5})
	return rafttest.Command(index, codec.AppendChecksum(append(data, w.Section()...)))
}

func apply(m *Machine, ops ...Op) *raftfsm.Result {
	return m.Apply(entry(m.Applied()+1, dedup.RequestID{}, ops...)).(*raftfsm.Result)
}

// texts of every form: raw, UUID, ULID, and those that only look like a UUID or a ULID.
var someTexts = []string{
	"a", "ß", "1", "0", "\x00", "post:17:x", strings.Repeat("x", BytesMax), "129", string(rune(0x10FFFF)),
	"0f8fad5b-d9cb-469f-a165-70867728950e", "0F8FAD5B-D9CB-469F-A165-70867728950E", "0f8fad5bxd9cb-469f-a165-70867728950e", "0f8fad5b-d9cb-469f-a165-70867728950g",
	"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "0f8fad5b0d9cb0469f0a165070867728950e",
	"01ARZ3NDEKTSV4RRFFQ69G5FAV", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "01arz3ndektsv4rrffq69g5fav", "01ARZ3NDEKTSV4RRFFQ69G5FAU", "00000000000000000000000000", "01ARZ3NDEKTSV4RRFFQ69G5FAI",
}

// A text comes back byte for byte, and takes 17 bytes if it is a UUID or ULID in canonical form.
func TestTextsComeBack(t *testing.T) {
	short := 0
	for _, text := range someTexts {
		slot := appendSlot(nil, text)
		if got := string(appendText(nil, slot)); got != text {
			t.Errorf("%q comes back as %q", text, got)
		}
		if len(slot) == 1+binBytes && len(text) > binBytes {
			short++
		}
	}
	if short != 6 {
		t.Errorf("%d texts have a short form", short)
	}
}

// FuzzSlot writes and reads texts. Slots are equal only for equal texts.
func FuzzSlot(f *testing.F) {
	for i, text := range someTexts {
		f.Add(text, someTexts[(i+1)%len(someTexts)])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if !Valid(a) || !Valid(b) {
			return
		}
		slotA, slotB := appendSlot(nil, a), appendSlot(nil, b)
		if string(appendText(nil, slotA)) != a || (string(slotA) == string(slotB)) != (a == b) {
			t.Errorf("%q and %q: % x and % x", a, b, slotA, slotB)
		}
	})
}

// FuzzBlock reads arbitrary bytes as a block. setSlot writes an accepted block again, slot by slot.
func FuzzBlock(f *testing.F) {
	var body []byte
	for i, text := range someTexts {
		body = setSlot(nil, body, i*2+1, appendSlot(nil, text))
		f.Add(slices.Clone(body), uint64(1))
	}
	f.Add([]byte{1, 0}, uint64(2))
	f.Add([]byte{1, 1, 'a'}, uint64(1))
	f.Fuzz(func(t *testing.T, p []byte, key uint64) {
		pairs := map[uint64]string{}
		got, err := checkBlock(&wire.Reader{Rest: p}, key, 200, func(number uint64, slot []byte) { pairs[number] = string(appendText(nil, slot)) })
		if err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		var again []byte
		for _, number := range slices.Sorted(maps.Keys(pairs)) {
			k, at := blockOf(number)
			if k != key || number == 0 || number >= 200 || !Valid(pairs[number]) {
				t.Fatalf("number %d with %q in block %d", number, pairs[number], key)
			}
			again = setSlot(nil, again, at, appendSlot(nil, pairs[number]))
		}
		if string(again) != string(got) {
			t.Fatalf("% x was read as %v, which is % x", p, pairs, again)
		}
	})
}

func FuzzOp(f *testing.F) {
	for _, op := range []Op{{Kind: Assign, Text: "a"}, {Kind: Erase, Text: "ß"}, {Kind: Put, Text: "x", Number: 300}, {Kind: Put, Number: NumberMax}, {Kind: Put, Number: 5, At: timeMax}} {
		f.Add(op.appendTo(nil))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 {
			return
		}
		op, rest, err := parseOp(p)
		if err != nil {
			if !errors.Is(err, codec.ErrEntry) {
				t.Fatal(err)
			}
			return
		}
		if err := op.check(); err != nil {
			t.Fatal(err)
		}
		if again, left, err := parseOp(op.appendTo(nil)); err != nil || again != op || len(left) > 0 || len(rest) >= len(p) {
			t.Fatalf("%+v becomes %+v, %v", op, again, err)
		}
	})
}

// FuzzQuery parses queries and answers as another node might send them.
func FuzzQuery(f *testing.F) {
	f.Add(byte(0), (&NumbersQuery{Texts: []string{"a", "bc"}}).AppendTo(nil, nil))
	f.Add(byte(1), (&TextsQuery{Numbers: []uint64{1, NumberMax}}).AppendTo(nil, nil))
	f.Add(byte(2), (&AgeQuery{Until: 1000}).AppendTo(nil, nil))
	f.Fuzz(func(t *testing.T, number byte, p []byte) {
		r := wire.Reader{Rest: p}
		q := Kind{}.ParseQuery(number, &r)
		if r.End() != nil {
			return
		}
		must.Do(t, q.Answer(New(spill.Place{}), nil, false, time.Now()))
		answer, err := q.AppendAnswer(nil, nil)
		must.Do(t, err)
		again := wire.Reader{Rest: answer}
		if q.ParseAnswer(&again, nil); again.End() != nil || len(answer) > q.Limits(1).Answer {
			t.Fatalf("an answer of %d bytes: %v", len(answer), again.Err)
		}
	})
}

// A repeat of a request gets the numbers of the first one, and changes nothing.
func TestRepeatedRequest(t *testing.T) {
	m := New(spill.Place{})
	id := dedup.ByProducer([]byte("p"), 1)
	ops := []Op{{Kind: Assign, Text: "a"}, {Kind: Erase, Text: "b"}, {Kind: Put, Text: "c", Number: 9}}
	apply(m, Op{Kind: Assign, Text: "b"})
	first := m.Apply(entry(2, id, ops...)).(*raftfsm.Result)
	apply(m, Op{Kind: Assign, Text: "b"})
	was := m.State().Digest
	again := m.Apply(entry(4, id, ops...)).(*raftfsm.Result)
	if !slices.Equal(first.Rows, []int64{2, 1, 9}) || again.Outcome(0) != dedup.Duplicate || !slices.Equal(again.Rows, []int64{2, 10, 9}) || m.State().Digest != was {
		t.Errorf("first %d, then %d: %v", first.Rows, again.Rows, again.Outcome(0))
	}
}

// A shard refuses a Put that would change a pair, and an Assign once all numbers are given.
func TestRefusals(t *testing.T) {
	m := New(spill.Place{})
	apply(m, Op{Kind: Assign, Text: "a"}, Op{Kind: Assign, Text: "b"})
	for _, test := range []struct {
		op     Op
		number int64
		why    Refusal
		not    bool
	}{
		{Op{Kind: Put, Text: "a", Number: 1}, 1, 0, false},
		{Op{Kind: Put, Text: "a", Number: 2}, 1, RefusedTaken, true},
		{Op{Kind: Put, Text: "c", Number: 2}, 0, RefusedTaken, true},
		{Op{Kind: Put, Text: "a", Number: 7}, 1, RefusedTaken, true},
		{Op{Kind: Put, Number: 2}, 2, 0, false},
		{Op{Kind: Assign, Text: "c"}, 3, 0, false},
		{Op{Kind: Put, Number: NumberMax - 1}, NumberMax - 1, 0, false},
		{Op{Kind: Assign, Text: "last"}, NumberMax, 0, false},
		{Op{Kind: Assign, Text: "none"}, 0, RefusedFull, true},
		{Op{Kind: Assign, Text: "last"}, NumberMax, 0, false},
	} {
		r := apply(m, test.op)
		if r.Rows[0] != test.number || (len(r.Overflows) > 0) != test.not || test.not && r.Overflows[0] != (engine.Overflow{Column: test.why}) {
			t.Errorf("%+v: %d, %+v", test.op, r.Rows, r.Overflows)
		}
	}
	restored := New(spill.Place{})
	must.Do(t, rafttest.Restore(restored, rafttest.Persisted(t, m)))
	if r := apply(restored, Op{Kind: Assign, Text: "none"}, Op{Kind: Assign, Text: "last"}); r.Rows[1] != NumberMax || len(r.Overflows) != 1 || restored.State().Digest != m.State().Digest {
		t.Errorf("restored: %d, %+v", r.Rows, r.Overflows)
	}
}

// The texts that Restore refuses although the checksums are right.
func TestDamagedBlocks(t *testing.T) {
	next := binary.LittleEndian.AppendUint64(nil, 100)
	block := func(key uint64, body ...byte) []byte {
		return append(binary.LittleEndian.AppendUint64([]byte{1, 0, 0, 0}, key), body...)
	}
	once := rafttest.SectionsOf(t, rafttest.Persisted(t, New(spill.Place{})))
	for name, test := range map[string]struct {
		parts []rafttest.Part
		good  bool
	}{
		"good":              {[]rafttest.Part{{Kind: codec.StreamNames, Payload: next}, {Kind: codec.StreamTexts, Payload: block(1, 2, 0, 1, 'a')}}, true},
		"no next number":    {[]rafttest.Part{{Kind: codec.StreamTexts, Payload: block(1, 2, 0, 1, 'a')}}, false},
		"number 0":          {[]rafttest.Part{{Kind: codec.StreamNames, Payload: next}, {Kind: codec.StreamTexts, Payload: block(1, 1, 1, 'a')}}, false},
		"a number too high": {[]rafttest.Part{{Kind: codec.StreamNames, Payload: next}, {Kind: codec.StreamTexts, Payload: block(3, 1, 1, 'a')}}, false},
		"no text":           {[]rafttest.Part{{Kind: codec.StreamNames, Payload: next}, {Kind: codec.StreamTexts, Payload: block(1, 2, 0, 0)}}, false},
		"not UTF-8":         {[]rafttest.Part{{Kind: codec.StreamNames, Payload: next}, {Kind: codec.StreamTexts, Payload: block(1, 2, 0, 1, 0xff)}}, false},
		"next number 0":     {[]rafttest.Part{{Kind: codec.StreamNames, Payload: make([]byte, 8)}}, false},
		"a UUID as a text":  {[]rafttest.Part{{Kind: codec.StreamNames, Payload: next}, {Kind: codec.StreamTexts, Payload: block(1, append([]byte{2, 0, uuidBytes}, someTexts[9]...)...)}}, false},
	} {
		digest := uint64(0)
		if test.good {
			digest = pairDigest(1, []byte{1, 'a'}) + new(marks).digest(100)
		}
		for _, s := range once[len(once)-4 : len(once)-1] {
			test.parts = append(test.parts, rafttest.Part{Kind: s[0], Payload: rafttest.PayloadOf(s)})
		}
		err := rafttest.Restore(New(spill.Place{}), rafttest.StreamOf(codec.KindNames, 9, test.parts, 1, digest))
		if test.good && err != nil || !test.good && !errors.Is(err, codec.ErrSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// replica is a replica of names with a disk of its own.
type replica struct {
	t     rapid.TB
	fs    *vfs.MemFS
	store *cold.Store
	fsm   *Machine
	tight atomic.Bool
	now   uint32
}

// open starts a process with a snapshot, or with none if it is nil.
func (r *replica) open(snapshot []byte) {
	r.t.Helper()
	var err error
	r.store, err = cold.Open(cold.Config{Dir: "cold", FS: r.fs, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { r.t.Error(err) }})
	r.must(err)
	r.fsm = New(spill.Place{Store: r.store, Group: 1, Tight: r.tight.Load})
	if snapshot != nil {
		r.must(rafttest.Restore(r.fsm, snapshot))
	}
}

func (r *replica) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *replica) close() {
	r.t.Helper()
	r.fsm.Close()
	r.must(r.store.Close())
}

// kill ends the process as in a crash, which may lose unsynced data, and starts a new process.
func (r *replica) kill(snapshot []byte, seed uint64) {
	r.t.Helper()
	was := r.fs
	r.fs = was.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, seed))})
	r.close()
	r.open(snapshot)
}

// find answers queries for all texts and numbers, from memory or disk.
func (r *replica) find(texts []string, numbers []uint64) (_ []uint64, _ []string, next uint64) {
	r.t.Helper()
	byText, byNumber := &NumbersQuery{Texts: texts}, &TextsQuery{Numbers: numbers}
	for _, q := range []raftfsm.Query{byText, byNumber} {
		err := q.Answer(r.fsm, nil, false, time.Time{})
		if errors.Is(err, raftfsm.ErrNotInMemory) {
			err = q.Answer(r.fsm, nil, true, time.Now().Add(time.Minute))
		}
		r.must(err)
	}
	return byText.Numbers, byNumber.Texts, byNumber.Next
}

// model is a naive map of names.
type model struct {
	numbers map[string]uint64
	ever    map[uint64]string // texts that a number has had, erased ones too
	next    uint64
	now     int64 // log time
	gifts   []gift
}

func (m *model) apply(op Op) (number int64, refused bool) {
	has := m.numbers[op.Text]
	switch op.Kind {
	case Assign:
		if has == 0 {
			has, m.next = m.next, m.next+1
			m.numbers[op.Text] = has
			m.gifts = append(m.gifts, gift{m.now, m.next})
		}
	case Erase:
		delete(m.numbers, op.Text)
	case Put:
		if op.Text != "" && has != op.Number {
			for _, taken := range m.numbers {
				if has > 0 || taken == op.Number {
					return int64(has), true
				}
			}
			m.numbers[op.Text] = op.Number
		}
		if has, m.next = op.Number, max(m.next, op.Number+1); op.At > 0 {
			m.gifts = append(m.gifts, gift{op.At, op.Number + 1})
		}
	}
	return int64(has), false
}

// Properties, against a naive map, for replicas of which one keeps all in memory and the others move
// blocks to disk, restore each other's snapshots, and are killed:
//
//  1. Answers of entries, refusals, numbers of texts and texts of numbers are those of the map.
//  2. A number never has two texts, unless a Put gives an erased number a text.
//  3. States and digests of replicas are equal, and those of an index that was built anew.
//  4. A snapshot has the state of its moment, whatever is written or moved meanwhile.
func TestNamesEqualAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plain := &replica{t: t, fs: vfs.NewCrashableMem()}
		replicas := []*replica{plain, {t: t, fs: vfs.NewCrashableMem()}, {t: t, fs: vfs.NewCrashableMem()}}
		for _, r := range replicas {
			r.open(nil)
			defer func() { r.close() }()
		}
		m := model{numbers: map[string]uint64{}, ever: map[uint64]string{}, next: 1, now: 1000}
		which := rapid.SampledFrom(replicas[1:])
		text := rapid.OneOf(rapid.SampledFrom(someTexts), rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("text %d", rapid.IntRange(0, 300).Draw(t, "text"))
		}))
		draw := func(t *rapid.T) Op {
			op := Op{Kind: rapid.SampledFrom([]OpKind{Assign, Assign, Assign, Assign, Erase, Put}).Draw(t, "kind"), Text: text.Draw(t, "of")}
			if op.Kind == Put {
				op.Number = rapid.Uint64Range(1, m.next+100).Draw(t, "number")
				if rapid.IntRange(0, 3).Draw(t, "without a text") == 0 {
					op.Text, op.At = "", max(0, m.now+rapid.Int64Range(-3*markMillis, markMillis).Draw(t, "at"))
				}
			}
			return op
		}
		index := uint64(0)
		write := func(ops ...Op) {
			index++
			var rows []int64
			var refused []int
			for i, op := range ops {
				row, not := m.apply(op)
				if rows = append(rows, row); not {
					refused = append(refused, i)
				}
				if was, had := m.ever[m.numbers[op.Text]]; had && was != op.Text && op.Kind == Assign {
					t.Fatalf("number %d had %q, and has %q", m.numbers[op.Text], was, op.Text)
				}
				if number := m.numbers[op.Text]; number > 0 {
					m.ever[number] = op.Text
				}
			}
			for _, r := range replicas {
				got, ok := r.fsm.Apply(clockedEntry(index, m.now, dedup.RequestID{}, ops...)).(*raftfsm.Result)
				if !ok || !slices.Equal(got.Rows, rows) || len(got.Overflows) != len(refused) {
					t.Fatalf("%+v: answered %+v, want %d, refused %d", ops, got, rows, refused)
				}
			}
		}
		many := 0
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				ops := make([]Op, rapid.IntRange(1, 6).Draw(t, "ops"))
				for i := range ops {
					ops[i] = draw(t)
				}
				write(ops...)
			},
			"many": func(t *rapid.T) {
				ops := make([]Op, rapid.IntRange(50, 200).Draw(t, "ops"))
				for i := range ops {
					many++
					ops[i] = Op{Kind: Assign, Text: fmt.Sprintf("many %d", many)}
				}
				write(ops...)
			},
			"time":  func(t *rapid.T) { m.now += rapid.Int64Range(1, 2*markMillis).Draw(t, "passes") },
			"tick":  func(t *rapid.T) { r := which.Draw(t, "replica"); r.now++; r.fsm.Bodies().Tick(r.now) },
			"tight": func(t *rapid.T) { r := which.Draw(t, "replica"); r.tight.Store(!r.tight.Load()) },
			"spill": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				_, err := r.fsm.Bodies().Spill(rapid.Uint32Range(0, 2).Draw(t, "idle"), math.MaxInt64, func() bool { return true })
				r.must(err)
			},
			"restore": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				r.must(rafttest.Restore(r.fsm, rafttest.Persisted(t, rapid.SampledFrom(replicas).Draw(t, "from").fsm)))
			},
			"restart": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				r.kill(rafttest.Persisted(t, r.fsm), rapid.Uint64().Draw(t, "seed"))
			},
			"snapshot": func(t *rapid.T) {
				r := which.Draw(t, "replica")
				snapshot, err := r.fsm.Snapshot()
				r.must(err)
				defer snapshot.Release()
				state := r.fsm.State()
				write(draw(t), draw(t))
				_, err = r.fsm.Bodies().Spill(0, math.MaxInt64, func() bool { return true })
				r.must(err)
				write(draw(t))
				var s rafttest.Sink
				r.must(snapshot.Persist(&s))
				other := New(spill.Place{})
				r.must(rafttest.Restore(other, s.Bytes()))
				if got := other.State(); got.Digest != state.Digest || got.Rows != state.Rows || got.Index != state.Index {
					t.Fatalf("the snapshot has %+v, want %+v", got, state)
				}
			},
			"read": func(t *rapid.T) {
				texts := rapid.SliceOfN(text, 0, 10).Draw(t, "texts")
				numbers := rapid.SliceOfN(rapid.Uint64Range(0, m.next+3), 0, 10).Draw(t, "numbers")
				got, gotTexts, next := which.Draw(t, "replica").find(texts, numbers)
				for i, text := range texts {
					if got[i] != m.numbers[text] {
						t.Fatalf("%q has number %d, want %d", text, got[i], m.numbers[text])
					}
				}
				for i, number := range numbers {
					if text := gotTexts[i]; text != "" && m.numbers[text] != number || text == "" && m.numbers[m.ever[number]] == number && number > 0 {
						t.Fatalf("number %d has text %q, of %d", number, text, m.numbers[text])
					}
				}
				if next != m.next {
					t.Fatalf("the next number is %d, want %d", next, m.next)
				}
				age := &AgeQuery{Until: rapid.Int64Range(0, m.now+markMillis).Draw(t, "until")}
				r := which.Draw(t, "replica")
				r.must(age.Answer(r.fsm, nil, false, time.Time{}))
				if want := wantYoung(m.gifts, age.Until); age.Young != want {
					t.Fatalf("until %d, number %d is young, want %d, of %v", age.Until, age.Young, want, m.gifts)
				}
			},
			"": func(t *rapid.T) {
				want := uint64(0)
				for text, number := range m.numbers {
					want += pairDigest(number, appendSlot(nil, text))
				}
				var all marks
				for _, g := range m.gifts {
					all.add(mark(g))
				}
				want += all.digest(m.next)
				for _, r := range replicas {
					if s := r.fsm.State(); s.Digest != want || s.Rows != uint64(len(m.numbers)) {
						t.Fatalf("%+v, want %d names of digest %x", s, len(m.numbers), want)
					}
				}
			},
		})
		texts, numbers := slices.Collect(maps.Keys(m.numbers)), slices.Collect(maps.Values(m.numbers))
		for _, r := range replicas {
			got, gotTexts, _ := r.find(texts, numbers)
			for i := range texts {
				if got[i] != m.numbers[texts[i]] || m.numbers[gotTexts[i]] != numbers[i] {
					t.Fatalf("%q has number %d, number %d has text %q", texts[i], got[i], numbers[i], gotTexts[i])
				}
			}
		}
	})
}

// The index finds each number whose text has the hash, after splits of pages, for texts of one hash, and
// for high numbers.
func TestIndexEqualsAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x, want := newIndex(), map[uint32][]uint64{}
		hash := rapid.OneOf(rapid.Uint32Range(0, 3), rapid.Uint32Range(1<<31, 1<<31+200), rapid.Uint32())
		number, count, bytes := uint64(0), 0, 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "times") {
					h := hash.Draw(t, "hash")
					number = min(number+rapid.Uint64Range(1, 1<<20).Draw(t, "gap"), NumberMax-1) + 1
					x.add(h, number)
					want[h] = append(want[h], number)
					count++
				}
			},
			"remove": func(t *rapid.T) {
				h := hash.Draw(t, "hash")
				if n := len(want[h]); n > 0 {
					x.remove(h, want[h][n-1])
					want[h] = want[h][:n-1]
					count--
				}
				x.remove(h, NumberMax+1)
			},
			"": func(t *rapid.T) {
				for h, numbers := range want {
					got := x.candidates(nil, h)
					slices.Sort(got)
					sorted := slices.Sorted(slices.Values(numbers))
					if !slices.Equal(got, sorted) {
						t.Fatalf("hash %x: %d, want %d", h, got, sorted)
					}
				}
				bytes = 0
				for i, page := range x.mu.pages {
					if n := 1 << (x.mu.bits - page[0]); i%n == 0 {
						bytes += cap(page)
					}
				}
				if x.mu.entries != count || x.mu.bytes != bytes || len(x.mu.pages) > 2*slotsFree+2*count {
					t.Fatalf("%d entries in %d bytes of %d pages, want %d in %d", x.mu.entries, x.mu.bytes, len(x.mu.pages), count, bytes)
				}
			},
		})
	})
}

// Skip never gives the numbers that it passes over, and leaves half of those left however often it is repeated.
func TestSkip(t *testing.T) {
	m := New(spill.Place{})
	apply(m, Op{Kind: Assign, Text: "a"})
	if got := apply(m, Op{Kind: Skip, Number: 1000}, Op{Kind: Assign, Text: "b"}, Op{Kind: Assign, Text: "a"}).Rows; !slices.Equal(got, []int64{0, 1002, 1}) {
		t.Errorf("%v", got)
	}
	last := int64(1002)
	for range 10 {
		got := apply(m, Op{Kind: Skip, Number: NumberMax}, Op{Kind: Assign, Text: fmt.Sprint("after ", last)}).Rows[1]
		if half := last + 1 + (NumberMax-last)/2; got != half {
			t.Errorf("after %d: %d, want %d", last, got, half)
		}
		last = got
	}
	if got := apply(m, Op{Kind: Put, Text: "last", Number: NumberMax}, Op{Kind: Skip, Number: 1}, Op{Kind: Assign, Text: "full"}); len(got.Overflows) != 1 || got.Rows[2] != 0 {
		t.Errorf("with no number left: %+v", got)
	}
}
