package kinds

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
)

var allKinds = append([]codec.Kind{codec.KindCounters}, shardKinds...)

// routed returns a section for a route with one op of a kind. A section of a source has no ops.
func routed(kind codec.Kind, route codec.Route, id dedup.RequestID) []byte {
	var w raftfsm.RequestWriter
	w.Reset(nil, route, &id)
	switch {
	case id.IsSource():
	case kind == codec.KindCounters:
		counters.Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 1, Value: 5}}}}.AppendTo(&w, 7, 0)
	default:
		goldenRequest(kind, &w)
	}
	return w.Section()
}

// A replica refuses the whole section if its route differs, and does not remember the request:
//
//  1. the digest, the rows and the request memory are as before;
//  2. if the request is sent again with the right route, it is applied and is not a duplicate;
//  3. other sections of the same entry are applied.
func TestSectionsOfAnotherRouteChangeNothing(t *testing.T) {
	mine := codec.Route{Modulus: 7, Residue: 3}
	source := dedup.BySource(dedup.SourceSection{PositionKey: dedup.PositionKey{Source: 9}, Mode: dedup.SectionBegin, Epoch: 1})
	for _, kind := range allKinds {
		ids := map[string]dedup.RequestID{
			"no identity": {}, "a producer": dedup.ByProducer([]byte("p"), 1), "a key": dedup.ByKey([]byte("k"), []byte("body")),
			"a restore": dedup.ByRestore(5, true),
		}
		if kind == codec.KindCounters || kind == codec.KindUnread {
			ids["a source"] = source
		}
		for name, id := range ids {
			for _, other := range []codec.Route{{Modulus: 21, Residue: 3}, {Modulus: 7, Residue: 4}, {Modulus: 1}} {
				t.Run(fmt.Sprintf("%s by %s of %s", kind, name, other), func(t *testing.T) {
					m := All.New(kind, raftfsm.Places{})
					m.SetRoute(mine)
					apply := func(sections ...[]byte) *raftfsm.Result {
						entry := dedup.AppendClock(codec.BeginEntry(nil, kind, 1), time.UnixMilli(20_000*(24*time.Hour).Milliseconds()), testLimits)
						return m.Apply(rafttest.Next(m, codec.AppendChecksum(append(entry, bytes.Join(sections, nil)...)))).(*raftfsm.Result)
					}
					apply(routed(kind, mine, dedup.RequestID{}))
					apply() // the time alone
					before, snapshot := m.State(), rafttest.Persisted(t, m)
					if r := apply(routed(kind, other, id)); r.Outcome(0) != dedup.Misrouted || len(r.Overflows)+len(r.Cuts)+len(r.Changed) > 0 {
						t.Errorf("outcome %d, %+v", r.Outcome(0), r)
					}
					keys, producers := m.Remembered()
					if after := m.State(); after.Digest != before.Digest || after.Rows != before.Rows || keys+producers != 0 || len(m.Sources()) != 0 {
						t.Errorf("%+v, %d keys, %d producers, sources %v; before, %+v", after, keys, producers, m.Sources(), before)
					}
					after := rafttest.SectionsOf(t, rafttest.Persisted(t, m))
					for i, section := range rafttest.SectionsOf(t, snapshot)[1:] { // skip the head, which contains the index
						if !bytes.Equal(after[i+1], section) {
							t.Errorf("section %d of the snapshot is % x, it was % x", i+1, after[i+1], section)
						}
					}
					r := apply(routed(kind, other, id), routed(kind, mine, id))
					if r.Outcome(0) != dedup.Misrouted || r.Outcome(1) != dedup.Applied {
						t.Errorf("outcomes %d and %d", r.Outcome(0), r.Outcome(1))
					}
					if _, _, err := All.CheckSection(kind, mine, routed(kind, other, id), nil); !errors.Is(err, codec.ErrRoute) || !strings.Contains(err.Error(), other.String()) {
						t.Errorf("checked: %v", err)
					}
					if ops, _, err := All.CheckSection(kind, mine, routed(kind, mine, id), nil); err != nil || ops == 0 != id.IsSource() {
						t.Errorf("of its own route: %d ops, %v", ops, err)
					}
				})
			}
		}
	}
}

// A replica refuses a snapshot whose route its shard can never have, and changes nothing. It
// accepts a snapshot with a route to which its shard grows. It then has that route.
func TestSnapshotsOfAnotherRouteAreRefused(t *testing.T) {
	for _, kind := range allKinds {
		m := All.New(kind, raftfsm.Places{})
		m.SetRoute(codec.Route{Modulus: 7, Residue: 3})
		m.Apply(rafttest.Next(m, codec.AppendChecksum(append(dedup.AppendClock(codec.BeginEntry(nil, kind, 1), time.UnixMilli((24*time.Hour).Milliseconds()), testLimits),
			routed(kind, codec.Route{Modulus: 7, Residue: 3}, dedup.RequestID{})...))))
		before := m.State()
		for _, other := range []codec.Route{{Modulus: 21, Residue: 4}, {Modulus: 7, Residue: 4}, {Modulus: 13, Residue: 3}, {Modulus: 4, Residue: 3}} {
			from := All.New(kind, raftfsm.Places{})
			from.SetRoute(other)
			stream := rafttest.Persisted(t, from)
			if err := rafttest.Restore(m, stream); !errors.Is(err, codec.ErrSnapshot) || !errors.Is(err, codec.ErrRoute) || m.State() != before {
				t.Errorf("%s of %s: %v", kind, other, err)
			}
			if _, err := All.OpenSnapshot(bytes.NewReader(stream), kind, codec.Route{Modulus: 7, Residue: 3}); !errors.Is(err, codec.ErrRoute) {
				t.Errorf("%s of %s: opened with %v", kind, other, err)
			}
			again := All.New(kind, raftfsm.Places{})
			again.SetRoute(other)
			if err := rafttest.Restore(again, stream); err != nil {
				t.Errorf("%s of its own route: %v", kind, err)
			}
		}
		later := codec.Route{Modulus: 21, Residue: 3}
		from := All.New(kind, raftfsm.Places{})
		from.SetRoute(later)
		stream := rafttest.Persisted(t, from)
		if err := rafttest.Restore(m, stream); err != nil || m.Route() != later || !bytes.Equal(rafttest.Persisted(t, m), stream) {
			t.Errorf("%s of %s: %v, it has %s", kind, later, err, m.Route())
		}
		opened, err := All.OpenSnapshot(bytes.NewReader(stream), kind, codec.Route{Modulus: 7, Residue: 3})
		if err != nil || opened.Route() != later {
			t.Errorf("%s of %s: opened with %v: it has %s", kind, later, err, opened.Route())
		}
	}
}

// Each number of an op has one meaning for shards of all kinds. A shard refuses an op that its kind
// does not accept.
func TestOpNumbersHaveOneMeaning(t *testing.T) {
	known := map[codec.Kind]int{}
	for op := range 256 {
		var of []codec.Kind
		for _, kind := range allKinds {
			section := append([]byte{codec.SectionRequest, 3, 0, 0, 0, 1, 0}, byte(op))
			_, _, err := All.CheckSection(kind, codec.Whole, section, nil)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("op %d in a shard of %s", op, kind)) {
				of = append(of, kind)
				known[kind]++
			}
		}
		if rows := []codec.Kind{codec.KindCounters, codec.KindUnread}; len(of) > 1 && (op > 3 || !slices.Equal(of, rows)) {
			t.Errorf("op %d is of %v", op, of)
		}
	}
	if want := map[codec.Kind]int{codec.KindCounters: 12, codec.KindUnread: 9, codec.KindFeed: 7, codec.KindBoard: 9, codec.KindNames: 4}; !maps.Equal(known, want) {
		t.Errorf("the kinds have %v ops, not %v", known, want)
	}
}

// A snapshot of a development version is refused, and the error says so.
func TestSnapshotsOfDevelopmentAreNamed(t *testing.T) {
	for _, version := range []byte{1, 2, 3} {
		head := rafttest.Framed(1, append(append([]byte("countd"), version, byte(codec.KindCounters)), make([]byte, 16)...))
		if err := rafttest.Restore(counters.New(raftfsm.Places{}), head); !errors.Is(err, codec.ErrSnapshot) || !strings.Contains(err.Error(), "never released") {
			t.Errorf("version %d: %v", version, err)
		}
	}
}
