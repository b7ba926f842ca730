package counters

import (
	"log/slog"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rankings"
)

// hotNow is the log's time in tests of hot lists.
const hotNow = 1_790_000_000_000

// gains returns how much each key gained in a column within a minute. The test fails if a gain is
// not exact.
func gains(t interface{ Fatalf(string, ...any) }, c *Machine, column uint8) map[uint64]int64 {
	all := map[uint64]int64{}
	for _, g := range c.Hot().Hottest(rankings.Minute, column, c.LogTime().UnixMilli(), RankingMax).Gains {
		if all[g.Key] = g.Gained; g.Error != 0 {
			t.Fatalf("key %d gained %d±%d", g.Key, g.Gained, g.Error)
		}
	}
	return all
}

// The test checks what each kind of op adds to the gain of its row. At first the row has gained 6:
// 5 by an add, and 1 by a join.
func TestWhatIsGained(t *testing.T) {
	store, err := members.Open(members.Config{Dir: t.TempDir(), MemoryBytes: members.MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	id := dedup.ByProducer([]byte("p"), 1)
	for i, test := range []struct {
		name   string
		id     dedup.RequestID
		ops    Ops
		gained int64 // by key 7, including the first 6
	}{
		{"add", dedup.RequestID{}, Ops{add(7, 2, 3)}, 9},
		{"two adds", dedup.RequestID{}, Ops{add(7, 2, 3), add(7, 2, -1)}, 8},
		{"a loss", dedup.RequestID{}, Ops{add(7, 2, -4)}, 2},
		{"a loss that a floor cuts", dedup.RequestID{}, Ops{add(9, 2, 1), floored(7, 2, -9, 4)}, 4},
		{"losses that floors cut", dedup.RequestID{}, Ops{{ID: 7, Kind: engine.OpAdd, Cells: slices.Concat(floored(7, 2, -9, 4).Cells, floored(7, 0, -9, -1).Cells)}}, 4},
		{"an overflow", dedup.RequestID{}, Ops{add(7, 2, math.MaxInt64), add(7, 2, 1)}, 7},
		{"set", dedup.RequestID{}, Ops{{ID: 7, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 2, Value: 1000}}}}, 6},
		{"delete", dedup.RequestID{}, Ops{{ID: 7, Kind: engine.OpDelete}}, 6},
		{"delete and add", dedup.RequestID{}, Ops{{ID: 7, Kind: engine.OpDelete}, add(7, 2, 2)}, 8},
		{"a member joins", dedup.RequestID{}, Ops{engine.Join(7, 2, 2)}, 7},
		{"a member joins again", dedup.RequestID{}, Ops{engine.Join(7, 2, 1)}, 6},
		{"a member leaves", dedup.RequestID{}, Ops{engine.Leave(7, 2, 1)}, 5},
		{"a member who is not there leaves", dedup.RequestID{}, Ops{engine.Leave(7, 2, 2)}, 6},
		{"a member joins and leaves", dedup.RequestID{}, Ops{engine.Join(7, 2, 2), engine.Leave(7, 2, 2)}, 6},
		{"a restored member", dedup.RequestID{}, Ops{engine.Copy(7, 2, 3, 5)}, 6},
		{"a duplicate", id, Ops{add(7, 2, 3)}, 6},
		{"another column", dedup.RequestID{}, Ops{add(7, 1, 3)}, 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			sets, err := store.Group(uint32(i + 1))
			if err != nil {
				t.Fatal(err)
			}
			c := New(raftfsm.Places{Members: sets})
			defer c.Close()
			apply := func(id dedup.RequestID, ops Ops) {
				var w raftfsm.RequestWriter
				w.Reset(nil, codec.Whole, &id)
				for i := range ops {
					ops.AppendTo(&w, ops[i].ID, i)
				}
				data := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 3), time.UnixMilli(hotNow), testLimits)
				c.Apply(rafttest.Next(c, codec.AppendChecksum(append(data, w.Section()...))))
			}
			apply(id, Ops{add(7, 2, 5), engine.Join(7, 2, 1)})
			apply(test.id, test.ops)
			if got := gains(t, c, 2)[7]; got != test.gained {
				t.Errorf("gained %d, want %d", got, test.gained)
			}
			restored := New(raftfsm.Places{Members: sets})
			if err := rafttest.Restore(restored, rafttest.Persisted(t, c)); err != nil {
				t.Fatal(err)
			}
			if got := gains(t, restored, 2)[7]; got != test.gained {
				t.Errorf("gained %d after a restart, want %d", got, test.gained)
			}
		})
	}
}

// withFloors drops all cells but the first of each column. It inserts a floor before each negative
// one.
func withFloors(cells []engine.Cell) (all []engine.Cell) {
	var seen [engine.ColumnsMax]bool
	for i, c := range cells {
		if seen[c.Column] {
			continue
		}
		if seen[c.Column] = true; c.Value < 0 {
			all = append(all, engine.Cell{Column: engine.FloorMark | c.Column, Value: c.Value / int64(i+2)})
		}
		all = append(all, c)
	}
	return all
}

// Whatever the ops are, the gain of a row is the sum of what OpAdds have added to the row. No other
// op changes the gain.
func TestGainsEqualModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c, rows := New(raftfsm.Places{}), map[uint64][engine.ColumnsMax]int64{}
		want := [engine.ColumnsMax]map[uint64]int64{}
		for column := range want {
			want[column] = map[uint64]int64{}
		}
		for range rapid.IntRange(0, 4).Draw(rt, "entries") {
			ops := drawOps(rt, "ops")
			for i := range ops { // make the values small, because gains outside of int64 are not exact
				for j := range ops[i].Cells {
					ops[i].Cells[j].Value >>= 8
				}
				if ops[i].Kind == engine.OpAdd && rapid.Bool().Draw(rt, "floored") {
					ops[i].Cells = withFloors(ops[i].Cells)
				}
			}
			r := c.Apply(rafttest.Next(c, entryOf(engine.ColumnsMax, ops))).(*raftfsm.Result)
			for i := range ops {
				was, is := rows[ops[i].ID], [engine.ColumnsMax]int64(r.Rows[i*engine.ColumnsMax:])
				rows[ops[i].ID] = is
				for column := range is {
					if ops[i].Kind == engine.OpAdd {
						want[column][ops[i].ID] += is[column] - was[column]
					}
				}
			}
		}
		for column := range want {
			maps.DeleteFunc(want[column], func(_ uint64, gained int64) bool { return gained <= 0 })
			if got := gains(rt, c, uint8(column)); !maps.Equal(got, want[column]) {
				rt.Fatalf("column %d: %v, want %v", column, got, want[column])
			}
		}
	})
}
