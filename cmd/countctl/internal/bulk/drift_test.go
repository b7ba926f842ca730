package bulk

import (
	"context"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/client"
)

// cluster is a model of a cluster that counts a source during a comparison. Its shards count
// independently of each other, even during reads.
type cluster struct {
	t      *rapid.T
	queue  map[uint32][]Event
	at     []map[uint32]uint64 // by shard and partition
	rows   map[client.ID][]int64
	lazy   bool // goOn does nothing
	writes uint64
}

func (c *cluster) shardOf(id client.ID) int { return numberOf(id) % len(c.at) }

func numberOf(id client.ID) int {
	n, _ := id.Number()
	return int(n)
}

// count makes a shard count up to n messages of a partition.
func (c *cluster) count(shard int, partition uint32, n uint64) {
	for ; n > 0 && c.at[shard][partition] < uint64(len(c.queue[partition])); n-- {
		e := c.queue[partition][c.at[shard][partition]]
		if c.shardOf(e.ID) == shard {
			row := c.row(e.ID)
			row[e.Column], _ = e.apply(row[e.Column])
		}
		c.at[shard][partition]++
	}
}

func (c *cluster) row(id client.ID) []int64 {
	if c.rows[id] == nil {
		c.rows[id] = make([]int64, 2)
	}
	return c.rows[id]
}

// goOn adds some messages to the source and makes shards count some.
func (c *cluster) goOn() {
	if c.lazy {
		return
	}
	for range rapid.IntRange(0, 3).Draw(c.t, "steps") {
		partition := uint32(rapid.IntRange(0, len(c.queue)-1).Draw(c.t, "partition"))
		if c.writes > 0 && rapid.Bool().Draw(c.t, "write") {
			c.writes--
			c.write(partition)
		}
		c.count(rapid.IntRange(0, len(c.at)-1).Draw(c.t, "shard"), partition, uint64(rapid.IntRange(0, 5).Draw(c.t, "messages")))
	}
}

func (c *cluster) write(partition uint32) {
	e := Event{
		Position: SourcePosition{Lo: uint64(len(c.queue[partition]))},
		ID:       client.Number(uint64(rapid.IntRange(0, 5).Draw(c.t, "id"))), Column: rapid.IntRange(0, 1).Draw(c.t, "column"),
		Value: int64(rapid.IntRange(-3, 5).Draw(c.t, "value")),
	}
	c.queue[partition] = append(c.queue[partition], e)
}

func (c *cluster) Past(_ context.Context, partition uint32, from SourcePosition) ([]Event, SourcePosition, error) {
	all := c.queue[partition]
	to := min(uint64(len(all)), from.Lo+uint64(rapid.IntRange(1, 4).Draw(c.t, "page")))
	return all[from.Lo:to], SourcePosition{Lo: to}, nil
}

func (c *cluster) Rows(_ context.Context, ids []client.ID) (rows []Row, shards map[int][]Window, err error) {
	shards = map[int][]Window{}
	for s := range c.at {
		for p := range c.queue {
			shards[s] = append(shards[s], Window{Partition: p, From: SourcePosition{Lo: c.at[s][p]}})
		}
	}
	c.goOn()
	for _, id := range ids {
		rows = append(rows, Row{id, append([]int64(nil), c.row(id)...), c.shardOf(id)})
	}
	c.goOn()
	for s := range shards {
		for i := range shards[s] {
			shards[s][i].To = SourcePosition{Lo: c.at[s][shards[s][i].Partition]}
		}
	}
	return rows, shards, nil
}

// Wait makes all shards count all messages. No more messages are added after it.
func (c *cluster) Wait(context.Context) error {
	c.writes = 0
	for s := range c.at {
		for p := range c.queue {
			c.count(s, p, math.MaxUint64)
		}
	}
	return nil
}

// After the corrections, and once all messages are counted, each row is the sum of all its
// messages. This holds whatever the row's drift was, and whatever messages were counted meanwhile.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &cluster{t: t, queue: map[uint32][]Event{}, rows: map[client.ID][]int64{}, writes: 30}
		for range rapid.IntRange(1, 3).Draw(t, "shards") {
			c.at = append(c.at, map[uint32]uint64{})
		}
		partitions := rapid.IntRange(1, 2).Draw(t, "partitions")
		for p := range uint32(partitions) {
			c.queue[p] = nil
			for range rapid.IntRange(0, 20).Draw(t, "messages") {
				c.write(p)
			}
		}
		truth, at := NewTruth(2), map[uint32]SourcePosition{}
		for p := range c.queue {
			at[p] = SourcePosition{Lo: uint64(rapid.IntRange(0, len(c.queue[p])).Draw(t, "truth"))}
			for _, e := range c.queue[p][:at[p].Lo] {
				row := truth.Row(e.ID)
				row[e.Column], _ = e.apply(row[e.Column])
			}
		}
		c.goOn()
		for id := range uint64(6) {
			if rapid.Bool().Draw(t, "drifted") {
				c.row(client.Number(id))[0] += int64(rapid.IntRange(-9, 9).Draw(t, "drift"))
			}
			truth.Row(client.Number(id))
		}
		out, err := Compare(t.Context(), c, truth, at)
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Unsettled) > 0 {
			t.Fatalf("%v are not settled", out.Unsettled)
		}
		c.goOn()
		for _, d := range out.Drifts {
			c.row(d.ID)[d.Column] += d.Add
		}
		c.goOn()
		if err := c.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := NewTruth(2)
		for p := range c.queue {
			for _, e := range c.queue[p] {
				row := want.Row(e.ID)
				row[e.Column], _ = e.apply(row[e.Column])
			}
		}
		for id := range uint64(6) {
			for column, n := range want.Row(client.Number(id)) {
				if got := c.row(client.Number(id))[column]; got != n {
					t.Fatalf("column %d of row %d is %d, want %d", column, id, got, n)
				}
			}
		}
	})
}

// A row that has a message in the window at every try is unsettled and has no drift.
func TestUnsettled(t *testing.T) {
	c := &hot{}
	truth := NewTruth(1)
	truth.Row(client.Number(1))[0] = 0
	out, err := Compare(t.Context(), c, truth, map[uint32]SourcePosition{0: {}})
	if err != nil || len(out.Unsettled) != 1 || len(out.Drifts) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
}

// hot is a DriftReader with a message for row 1 in each window.
type hot struct{ at uint64 }

func (h *hot) Past(_ context.Context, _ uint32, from SourcePosition) ([]Event, SourcePosition, error) {
	return []Event{{Position: from, ID: client.Number(1), Value: 1}}, SourcePosition{Lo: from.Lo + 1}, nil
}

func (h *hot) Rows(_ context.Context, ids []client.ID) ([]Row, map[int][]Window, error) {
	h.at++
	w := map[int][]Window{0: {{From: SourcePosition{Lo: h.at}, To: SourcePosition{Lo: h.at + 1}}}}
	var rows []Row
	for _, id := range ids {
		rows = append(rows, Row{ID: id, Counts: []int64{int64(h.at)}})
	}
	return rows, w, nil
}

func (h *hot) Wait(context.Context) error { return nil }

func TestBehindAndMovedBack(t *testing.T) {
	h := &hot{}
	truth := NewTruth(1)
	truth.Row(client.Number(1))
	if _, err := Compare(t.Context(), h, truth, map[uint32]SourcePosition{0: {Lo: 1000}}); !errors.Is(err, errBehind) {
		t.Error(err)
	}
	if _, err := Compare(t.Context(), h, truth, map[uint32]SourcePosition{0: {}, 1: {}}); err == nil || err.Error() != "the source has no partition 1" {
		t.Error(err)
	}
	if _, err := Compare(t.Context(), h, truth, map[uint32]SourcePosition{1: {}}); err == nil || err.Error() != "the truth has no position of partition 0" {
		t.Error(err)
	}
	if _, err := Compare(t.Context(), &back{hot{at: 10}}, truth, map[uint32]SourcePosition{0: {}}); !errors.Is(err, errMovedBack) {
		t.Error(err)
	}
}

// back is a DriftReader whose shard moves back when rows are read.
type back struct{ hot }

func (b *back) Rows(ctx context.Context, ids []client.ID) ([]Row, map[int][]Window, error) {
	if len(ids) > 0 {
		b.at = 0
	}
	return b.hot.Rows(ctx, ids)
}

func TestReports(t *testing.T) {
	drifts := []Drift{{ID: client.Number(1), Add: 5}, {ID: client.Number(2), Add: -7}, {ID: client.Number(3), Add: 1000}, {ID: client.Number(4), Add: math.MinInt64}}
	buckets := Histogram(drifts)
	want := []Bucket{{1, 9, 1, 1}, {1000, 9999, 0, 1}, {1e18, 9999999999999999999, 1, 0}}
	if len(buckets) != len(want) {
		t.Fatalf("%+v", buckets)
	}
	for i, b := range buckets {
		if b != want[i] {
			t.Errorf("bucket %+v, want %+v", b, want[i])
		}
	}
	if worst := Worst(drifts, 2); len(worst) != 2 || worst[0].ID != client.Number(4) || worst[1].ID != client.Number(3) {
		t.Errorf("%+v", worst)
	}
	if got := Largest(drifts); got != 1<<63 {
		t.Errorf("the largest is %d", got)
	}
}

func TestPositions(t *testing.T) {
	for _, text := range []string{"0", "812", "5-0"} {
		if p, err := ParsePosition(text); err != nil || p.String() != text {
			t.Errorf("%s: %v, %v", text, p, err)
		}
	}
	if _, err := ParsePosition("x"); err == nil {
		t.Error("x is a position")
	}
}

// A second comparison finds a row whose value was set between the comparison and the
// correction.
func TestSetMeanwhile(t *testing.T) {
	s := &settable{count: 1}
	truth := NewTruth(1)
	truth.Row(client.Number(1))
	out, err := Compare(t.Context(), s, truth, map[uint32]SourcePosition{0: {}})
	if err != nil || len(out.Drifts) != 1 || out.Drifts[0].Add != -1 {
		t.Fatalf("%+v, %v", out, err)
	}
	s.events = append(s.events, Event{ID: client.Number(1), Set: true, Value: 5})
	s.count = 5 + out.Drifts[0].Add
	if out, err = out.Again(t.Context()); err != nil || len(out.Drifts) != 1 || out.Drifts[0].Add != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	s.count++
	if out, err = out.Again(t.Context()); err != nil || len(out.Drifts) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
}

// Still returns a drift that is the same as before, even if the row has counted a message
// meanwhile. It leaves out a row that another run has corrected, completely or in part.
func TestCorrectedMeanwhile(t *testing.T) {
	s := &settable{count: 3}
	truth := NewTruth(1)
	truth.Row(client.Number(1))[0] = 5
	out, err := Compare(t.Context(), s, truth, map[uint32]SourcePosition{0: {}})
	if err != nil || len(out.Drifts) != 1 || out.Drifts[0].Add != 2 {
		t.Fatalf("%+v, %v", out, err)
	}
	s.events = append(s.events, Event{ID: client.Number(1), Value: 7})
	s.count += 7
	if still, err := out.Still(t.Context()); err != nil || len(still) != 1 || still[0] != (Drift{ID: client.Number(1), Want: 12, Row: 10, Add: 2}) {
		t.Errorf("after a message: %+v, %v", still, err)
	}
	for _, by := range []int64{2, 1} {
		s.count += by
		if still, err := out.Still(t.Context()); err != nil || len(still) != 0 {
			t.Errorf("after a correction: %+v, %v", still, err)
		}
	}
}

// settable is a DriftReader with one row. Its position is the end of events, and the test sets its
// count.
type settable struct {
	events []Event
	count  int64
}

func (s *settable) Past(_ context.Context, _ uint32, from SourcePosition) ([]Event, SourcePosition, error) {
	return s.events[from.Lo:], SourcePosition{Lo: uint64(len(s.events))}, nil
}

func (s *settable) Rows(_ context.Context, ids []client.ID) (rows []Row, shards map[int][]Window, err error) {
	at := SourcePosition{Lo: uint64(len(s.events))}
	for _, id := range ids {
		rows = append(rows, Row{ID: id, Counts: []int64{s.count}})
	}
	return rows, map[int][]Window{0: {{From: at, To: at}}}, nil
}

func (s *settable) Wait(context.Context) error { return nil }
