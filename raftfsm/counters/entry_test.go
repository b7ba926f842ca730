package counters

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
)

func goldenOps() [][]engine.Op {
	return [][]engine.Op{
		{
			add(1116776909237658, 2, 1),
			{ID: 1<<64 - 1, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 0, Value: -1 << 63}, {Column: 63, Value: 1<<63 - 1}}},
		},
		{},
		{{ID: 7, Kind: engine.OpDelete}, add(7, 0, -3)},
	}
}

func TestEntryBytesAreGolden(t *testing.T) {
	rafttest.Golden(t, "entry-counters.bin", entryOf(4, goldenOps()...))
}

// Apply gives the same results as a simple model:
//
//  1. Each result row has the state right after its op.
//  2. Refusals have the column, and are in the order of the ops.
//  3. The table equals the model's.
//  4. An engine.Table gives the same results without a log.
func TestEntriesApplyAsTheModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, direct, want := New(raftfsm.Places{}), engine.New(), model{}
		for index := range uint64(rapid.IntRange(1, 5).Draw(rt, "entries")) {
			width := rapid.SampledFrom([]int{0, 1, 4, 5, engine.ColumnsMax}).Draw(rt, "width")
			var requests [][]engine.Op
			for range rapid.IntRange(0, 4).Draw(rt, "requests") {
				requests = append(requests, drawOps(rt, "ops"))
			}
			ops := slices.Concat(requests...)
			got := c.Apply(rafttest.Command(index+1, entryOf(width, requests...))).(*raftfsm.Result)

			if got.Index != index+1 || got.Width != width || c.Applied() != index+1 || len(got.Rows) != len(ops)*width {
				rt.Fatalf("result %d of width %d with %d counts, applied %d", got.Index, got.Width, len(got.Rows), c.Applied())
			}
			var refused []engine.Overflow
			for i := range ops {
				if column, ok := want.apply(&ops[i]); !ok {
					refused = append(refused, engine.Overflow{Op: i, Column: column})
				}
				if row := got.Rows[i*width : (i+1)*width]; !slices.Equal(row, want.row(ops[i].ID)[:width]) {
					rt.Fatalf("op %d: row %v, want %v", i, row, want.row(ops[i].ID)[:width])
				}
			}
			if !slices.Equal(got.Overflows, refused) {
				rt.Fatalf("refused %v, want %v", got.Overflows, refused)
			}
			direct.Apply(ops, 0, nil, nil)
		}
		want.mustEqual(rt, c.Table())
		if c.Table().Digest() != direct.Digest() {
			rt.Fatalf("digest %016x, the engine alone has %016x", c.Table().Digest(), direct.Digest())
		}
	})
}

func TestOpsWithoutAFormAreNotWritten(t *testing.T) {
	for name, op := range map[string]engine.Op{
		"no kind":             {},
		"unknown kind":        {Kind: 200, Cells: []engine.Cell{{}}},
		"add without a cell":  {Kind: engine.OpAdd},
		"set without a cell":  {Kind: engine.OpSet},
		"delete with a cell":  {Kind: engine.OpDelete, Cells: []engine.Cell{{}}},
		"column out of range": {Kind: engine.OpAdd, Cells: []engine.Cell{{Column: engine.ColumnsMax}}},
	} {
		t.Run(name, func(t *testing.T) {
			mustNotBeWritten(t, func(w *raftfsm.RequestWriter) { Ops{op}.AppendTo(w, 1, 0) })
		})
	}
}

// mustNotBeWritten checks that fill panics.
func mustNotBeWritten(t *testing.T, fill func(*raftfsm.RequestWriter)) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("it was written")
		}
	}()
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	fill(&w)
}

func TestDamagedEntriesStopTheStateMachine(t *testing.T) {
	good := entryOf(4, goldenOps()...)
	damaged := map[string][]byte{"nil": nil, "a catalog entry": codec.AppendChecksum([]byte{1, byte(codec.KindCatalog), 0})}
	for i := range good {
		damaged[fmt.Sprintf("cut at %d", i)] = good[:i]
		flipped := bytes.Clone(good)
		flipped[i] ^= 1 << (i % 8)
		damaged[fmt.Sprintf("bit %d of byte %d", i%8, i)] = flipped
	}
	sealed := func(head string, sections string) []byte { return codec.AppendChecksum([]byte(head + sections)) }
	damaged["version 2"] = sealed("\x02\x01\x00", "")
	damaged["65 columns"] = sealed("\x01\x01\x41", "")
	damaged["unknown kind"] = sealed("\x01\x03\x00", "")
	damaged["unknown section"] = sealed("\x01\x01\x00", "\x10\x02\x00\x00\x00\x01\x00")
	damaged["section longer than the entry"] = sealed("\x01\x01\x00", "\x03\xff\xff\xff\xff")
	damaged["no route"] = sealed("\x01\x01\x00", "\x03\x01\x00\x00\x00\x01")
	damaged["shard 1 of 1"] = sealed("\x01\x01\x00", "\x03\x02\x00\x00\x00\x01\x01")
	damaged["a shard of none"] = sealed("\x01\x01\x00", "\x03\x02\x00\x00\x00\x00\x00")
	damaged["op kind 0"] = sealed("\x01\x01\x00", "\x03\x0d\x00\x00\x00\x01\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x02")
	damaged["bytes behind the ops"] = sealed("\x01\x01\x00", "\x03\x0c\x00\x00\x00\x01\x00\x03\x07\x00\x00\x00\x00\x00\x00\x00\x00")
	for name, entry := range damaged {
		t.Run(name, func(t *testing.T) {
			c := newCounters(t)
			c.Apply(rafttest.Command(1, entryOf(0, []engine.Op{add(1, 0, 5)})))
			before := c.State()
			err := rafttest.ApplyError(c, rafttest.Command(2, entry))
			if err == nil || err.Index != 2 || !errors.Is(err, codec.ErrEntry) {
				t.Fatalf("panicked with %v", err)
			}
			if c.State() != before {
				t.Errorf("state %+v, was %+v", c.State(), before)
			}
		})
	}
}

func TestApplyAllocates(t *testing.T) {
	c := newCounters(t)
	var ops []engine.Op
	for id := range uint64(100) {
		ops = append(ops, add(id, uint8(id%4), 1))
	}
	for _, test := range []struct {
		name  string
		width int
		most  float64
	}{
		{"want none", 0, 3}, // allocations for the responses, the Result and a batch of one entry
		{"want rows", 4, 4}, // also the rows
	} {
		t.Run(test.name, func(t *testing.T) {
			entry := rafttest.Command(1, entryOf(test.width, ops))
			c.Apply(entry)
			if got := testing.AllocsPerRun(200, func() { c.Apply(entry) }); got > test.most {
				t.Errorf("%v allocations for 100 ops, want %v at most", got, test.most)
			}
		})
	}
}

// FuzzEntry applies sections of any bytes in a valid frame. If the shard accepts them, encoding the
// decoded ops yields the same sections.
func FuzzEntry(f *testing.F) {
	for _, ops := range goldenOps() {
		f.Add(uint8(4), appendRequest(nil, ops))
	}
	for _, id := range []dedup.RequestID{seq("p", 1), keyed("k", "body"), keyed(uuidv7(minutes(1)), "body")} {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &id)
		Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 1, Value: -1}}}}.AppendTo(&w, 7, 0)
		f.Add(uint8(2), append(dedup.AppendClock(nil, time.UnixMilli(minutes(1)), testLimits), w.Section()...))
	}
	for _, ops := range flooredOps() {
		f.Add(uint8(8), appendRequest(nil, ops))
	}
	f.Add(uint8(64), []byte("\x03\x04\x00\x00\x00\x01\x00\xff\xff"))
	f.Fuzz(func(t *testing.T, width uint8, sections []byte) {
		frame := append([]byte{1, byte(codec.KindCounters), width}, sections...)
		c := newCounters(t)
		rafttest.ApplyError(c, rafttest.Command(1, frame)) // without a checksum
		c = newCounters(t)
		refused := rafttest.ApplyError(c, rafttest.Command(1, codec.AppendChecksum(frame)))
		held, _ := decoded(sections)
		ops, cells := held.batch.Ops, held.batch.Cells
		if len(ops) > len(sections)/rows.OpSizeMin || len(cells) > len(sections)*2/3 {
			t.Fatalf("%d ops and %d cells of %d bytes", len(ops), len(cells), len(sections))
		}
		if refused != nil {
			return
		}
		held.batch.Link()
		again := reencoded(t, sections)
		// A varint may be longer than necessary. So the sections must be equal only if they have
		// the same length.
		if len(again) > len(sections) || len(again) == len(sections) && !bytes.Equal(again, sections) {
			t.Fatalf("% x was taken for % x", sections, again)
		}
		if held, err := decoded(again); err != nil || !sameOps(held.batch.Ops, ops) {
			t.Fatalf("ops %v, decoded again %v, %v", ops, held.batch.Ops, err)
		}
	})
}

// FuzzOpenEntry passes any bytes to OpenEntry.
func FuzzOpenEntry(f *testing.F) {
	f.Add(entryOf(4, goldenOps()...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, entry []byte) {
		kind, width, sections, err := codec.OpenEntry(entry)
		if err != nil {
			if !errors.Is(err, codec.ErrEntry) {
				t.Fatal(err)
			}
			return
		}
		again := codec.AppendChecksum(append([]byte{1, kind, byte(width)}, sections...))
		if !bytes.Equal(again, entry) {
			t.Fatalf("% x was taken for % x", entry, again)
		}
		for len(sections) > 0 {
			before := len(sections)
			_, payload, rest, err := codec.NextSection(sections)
			if err != nil {
				return
			}
			if len(payload)+len(rest)+codec.SectionHeadSize != before || int(binary.LittleEndian.Uint32(sections[1:])) != len(payload) {
				t.Fatalf("section of %d bytes, %d left of %d", len(payload), len(rest), before)
			}
			sections = rest
		}
	})
}

// decoded decodes the sections of an entry, and returns the contents whose batch has their ops.
func decoded(sections []byte) (*contents, error) {
	held, clocked := &contents{}, false
	held.Begin()
	for len(sections) > 0 {
		kind, payload, rest, err := codec.NextSection(sections)
		if err != nil {
			return held, err
		}
		if sections = rest; kind == codec.SectionClock {
			clocked = true
			continue
		}
		id, _, ops, err := parsed(kind, payload)
		if err == nil {
			_, err = held.Decode(&id, ops, clocked)
		}
		if err != nil {
			return held, err
		}
	}
	held.batch.Link()
	return held, nil
}

// parsed splits the payload of a request into request id, route and ops.
func parsed(kind byte, p []byte) (id dedup.RequestID, of codec.Route, ops []byte, err error) {
	of, ops, ok := codec.ParseRoute(p)
	if !ok {
		return id, of, nil, codec.ErrEntry
	}
	id, ops, err = dedup.ParseIdentity(kind, ops)
	return id, of, ops, err
}

// reencoded decodes sections and encodes them again.
func reencoded(t testing.TB, sections []byte) (again []byte) {
	clocked := []byte(nil)
	for len(sections) > 0 {
		kind, payload, rest, err := codec.NextSection(sections)
		if err != nil {
			t.Fatal(err)
		}
		section := sections[:len(sections)-len(rest)]
		sections = rest
		if kind == codec.SectionClock {
			now, limits, err := dedup.ParseClock(payload)
			if err != nil {
				t.Fatal(err)
			}
			clocked = dedup.AppendClock(nil, time.UnixMilli(now), limits)
			again = append(again, clocked...)
			continue
		}
		id, of, _, err := parsed(kind, payload)
		if err != nil {
			t.Fatal(err)
		}
		held, err := decoded(slices.Concat(clocked, section))
		if err != nil {
			t.Fatal(err)
		}
		var w raftfsm.RequestWriter
		w.Reset(nil, of, &id)
		for i := range held.batch.Ops {
			Ops{held.batch.Ops[i]}.AppendTo(&w, held.batch.Ops[i].ID, 0)
		}
		again = append(again, w.Section()...)
	}
	return again
}
