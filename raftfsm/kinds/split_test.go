package kinds

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/raftfsm/unread"
)

const (
	splitWidth = 8 // columns of answers
	splitIdle  = 3 * 24 * time.Hour
)

// splitOp writes one op. The op may depend on the machine, because each machine has its own stamps
// of feeds.
type splitOp struct {
	key   uint64
	write func(w *raftfsm.RequestWriter, m raftfsm.Machine)
}

// splitWorld contains an undivided shard and a replica of it with a disk. After the split, it
// contains the parts of two replicas.
type splitWorld struct {
	kind      codec.Kind
	now       time.Time
	undivided raftfsm.Machine
	onDisk    raftfsm.Machine // the replica, with packed rows, and rows and bodies on disk
	store     *cold.Store
	split     *raftfsm.Split
	parts     []raftfsm.Machine // parts of onDisk
	again     []raftfsm.Machine // parts of a machine that a snapshot restored
	learned   map[stampOf]uint64
	small     bool // no op has a huge value, so all gains are exact
}

// stampOf identifies a feed of a machine.
type stampOf struct {
	machine raftfsm.Machine
	user    uint64
}

func newSplitWorld(t rapid.TB, kind codec.Kind) *splitWorld {
	w := &splitWorld{kind: kind, now: time.UnixMilli(20_000 * 24 * time.Hour.Milliseconds()), undivided: All.New(kind, raftfsm.Places{}), learned: map[stampOf]uint64{}}
	var err error
	if w.store, err = cold.Open(cold.Config{Dir: "cold", FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }}); err != nil {
		t.Fatal(err)
	}
	rows, err := w.store.Group(1)
	if err != nil {
		t.Fatal(err)
	}
	w.onDisk = All.New(kind, raftfsm.Places{Cold: rows, Bodies: spill.Place{Store: w.store, Group: 1}})
	w.begin(t, w.machines()...)
	return w
}

func (w *splitWorld) close(t rapid.TB) {
	w.onDisk.Close()
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
}

// entry applies ops to a machine.
func (w *splitWorld) entry(t rapid.TB, m raftfsm.Machine, ops ...splitOp) *raftfsm.Result {
	var req raftfsm.RequestWriter
	req.Reset(nil, m.Route(), &dedup.RequestID{})
	for _, op := range ops {
		op.write(&req, m)
	}
	data := dedup.AppendClock(codec.BeginEntry(nil, w.kind, splitWidth), w.now, testLimits)
	r, ok := m.Apply(rafttest.Next(m, codec.AppendChecksum(append(data, req.Section()...)))).(*raftfsm.Result)
	if !ok || r.Outcome(0) != dedup.Applied {
		t.Fatalf("%s: %v", m.Route(), m.Stuck())
	}
	return r
}

// answer returns all parts of a result that belong to an op, as text.
func answer(r *raftfsm.Result, op int) string {
	s := fmt.Sprint(r.Rows[op*splitWidth:(op+1)*splitWidth], slices.Contains(r.Changed, op))
	for _, o := range r.Overflows {
		if o.Op == op {
			s += fmt.Sprint(" refused ", o.Column)
		}
	}
	for _, c := range r.Cuts {
		if c.Op == op {
			s += fmt.Sprint(" cut ", c.Column, c.Added)
		}
	}
	return s
}

// begin applies two entries without ops, with which each log begins.
func (w *splitWorld) begin(t rapid.TB, machines ...raftfsm.Machine) {
	for _, m := range machines {
		w.entry(t, m)
		w.entry(t, m)
	}
}

// apply applies ops to the undivided shard, and to its replica or the parts. All answers must be equal.
func (w *splitWorld) apply(t rapid.TB, ops ...splitOp) {
	want := w.entry(t, w.undivided, ops...)
	if w.split == nil {
		got := w.entry(t, w.onDisk, ops...)
		for i := range ops {
			if answer(got, i) != answer(want, i) {
				t.Fatalf("op %d on key %d: %s, want %s", i, ops[i].key, answer(got, i), answer(want, i))
			}
		}
		return
	}
	for part := range w.parts {
		var mine []splitOp
		var at []int
		for i, op := range ops {
			if w.split.PartOf(op.key) == part {
				mine, at = append(mine, op), append(at, i)
			}
		}
		for _, m := range []raftfsm.Machine{w.parts[part], w.again[part]} {
			got := w.entry(t, m, mine...)
			for i := range mine {
				if answer(got, i) != answer(want, at[i]) {
					t.Fatalf("op %d on key %d of %s: %s, want %s", at[i], mine[i].key, m.Route(), answer(got, i), answer(want, at[i]))
				}
			}
		}
	}
}

// machines returns all machines that are in use.
func (w *splitWorld) machines() []raftfsm.Machine {
	if w.split == nil {
		return []raftfsm.Machine{w.undivided, w.onDisk}
	}
	return slices.Concat([]raftfsm.Machine{w.undivided}, w.parts, w.again)
}

// tier moves rows and bodies of the replica out of memory, or packs them.
func (w *splitWorld) tier(t rapid.TB) {
	all := func(_, _ uint64) bool { return true }
	if c, is := w.onDisk.(*counters.Machine); is {
		c.Watch(all, true)
		idle := c.Watch(all, true)
		if _, err := c.FreezeSome(idle, max(1, idle.Segments()/2)); err != nil {
			t.Fatal(err)
		}
		pack(c)
	}
	w.spill(t, w.onDisk)
}

// spill moves the bodies of a machine out of memory. A part shares the records of the undivided shard.
func (w *splitWorld) spill(t rapid.TB, m raftfsm.Machine) {
	if bodies := m.Bodies(); bodies != nil {
		if _, err := bodies.Spill(0, math.MaxInt64, func() bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
}

// pack packs rows of a machine.
func pack(c *counters.Machine) {
	for range 2 {
		for next, more := uint64(0), true; more; {
			_, next, more, _ = c.Seal(next, func(_, _ uint64) bool { return true })
		}
	}
}

// part moves some rows of the replica to the tables of the parts of a coming split. If they cannot be parted any more, it
// returns false.
func (w *splitWorld) part(t rapid.TB, by raftfsm.Partition) bool {
	more, err := w.onDisk.Part(by)
	if err != nil && !errors.Is(err, engine.ErrParted) {
		t.Fatal(err)
	}
	return more
}

// divide splits the replica with a disk, and a machine that a snapshot of the undivided shard restored. If
// copies is set, this machine copies its rows.
func (w *splitWorld) divide(t rapid.TB, by raftfsm.Partition, copies bool) {
	parts := int(by.Parts)
	before := w.undivided.State()
	from := All.New(w.kind, raftfsm.Places{})
	from.SetRoute(w.onDisk.Route())
	if err := rafttest.Restore(from, rafttest.Persisted(t, w.undivided)); err != nil {
		t.Fatal(err)
	}
	clear(w.learned)
	w.split = &raftfsm.Split{Index: before.Index + 1, Attempt: 1, From: codec.Whole, Group: 1, PartOf: by.Of, By: by}
	for i := range parts {
		w.split.Parts = append(w.split.Parts, dedup.Part{Route: codec.Route{Modulus: uint32(parts), Residue: uint32(i)}, Judge: 10 + uint32(i)})
	}
	open, err := w.onDisk.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer open.Release()
	for m, to := range map[raftfsm.Machine]*[]raftfsm.Machine{w.onDisk: &w.parts, from: &w.again} {
		*to = []raftfsm.Machine{m}
		for range parts - 1 {
			*to = append(*to, All.New(w.kind, raftfsm.Places{}))
		}
		s := *w.split
		s.Copies = copies && m == from
		if err := m.Split(&s, (*to)[1:]); err != nil {
			t.Fatal(err)
		}
		w.begin(t, (*to)[1:]...)
	}
	sum := engine.Stats{}
	digest := uint64(0)
	for i, part := range w.parts {
		s := part.State()
		digest += s.Digest
		sum.Rows += s.Rows
		if bytes := part.Bytes(); bytes < s.Bytes { // what readers see is the table of the contents
			t.Fatalf("part %d has %d bytes, but shows %d", i, s.Bytes, bytes)
		}
		if part.Route() != w.split.Parts[i].Route {
			t.Fatalf("part %d is of %s: %+v", i, part.Route(), s)
		}
		if u, is := part.(*unread.Machine); is && u.Sweep() != w.undivided.(*unread.Machine).Sweep() {
			t.Fatalf("part %d sweeps from %+v", i, u.Sweep())
		}
	}
	if digest != before.Digest || sum.Rows != before.Rows {
		t.Fatalf("the parts have %d rows, digest %x, the shard %d, %x", sum.Rows, digest, before.Rows, before.Digest)
	}
	var s rafttest.Sink
	if err := open.Persist(&s); err != nil {
		t.Fatal(err)
	}
	w.check(t)
}

// stored identifies one part of the contents of a snapshot: a row in a table, an outbox or a feed.
type stored struct {
	key  uint64
	what string
}

// sent returns a snapshot of a machine with its rows on disk.
func (w *splitWorld) sent(t rapid.TB, m raftfsm.Machine) []byte {
	stored := rafttest.Persisted(t, m)
	if w.kind != codec.KindCounters {
		return stored
	}
	rows, err := w.store.Group(1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := counters.CarryBlocks(bytes.NewReader(stored), rows, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// visited returns the contents of a machine, as VisitSnapshot reports them.
func visited(t rapid.TB, kind codec.Kind, m raftfsm.Machine) map[stored]string {
	return visitedStream(t, kind, m.Route(), rafttest.Persisted(t, m))
}

func visitedStream(t rapid.TB, kind codec.Kind, route codec.Route, stream []byte) map[stored]string {
	all := map[stored]string{}
	_, err := All.VisitSnapshot(bytes.NewReader(stream), kind, route, raftfsm.SnapshotVisitor{
		Rows: func(table raftfsm.Table, p *engine.Page) error {
			for i, id := range p.IDs {
				row := append(slices.Clone(p.Row(i)), make([]int64, engine.ColumnsMax-p.Width)...)
				all[stored{id, fmt.Sprint("table ", table)}] = fmt.Sprint(row)
			}
			return nil
		},
		Body: func(key uint64, body any) error {
			switch b := body.(type) {
			case *counters.Outbox:
				all[stored{key, "outbox"}] = fmt.Sprint(*b)
			case *feed.Feed:
				all[stored{key, "feed"}] = fmt.Sprint(*b)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// check compares each part with the undivided shard, without the keys of the other parts. It also
// compares each part with the same part of the other replica.
func (w *splitWorld) check(t rapid.TB) {
	whole := visited(t, w.kind, w.undivided)
	digest := uint64(0)
	for i, part := range w.parts {
		want := maps.Clone(whole)
		maps.DeleteFunc(want, func(s stored, _ string) bool { return w.split.PartOf(s.key) != i })
		if got := visitedStream(t, w.kind, part.Route(), w.sent(t, part)); !maps.Equal(got, want) {
			t.Fatalf("part %d has %v, want %v", i, got, want)
		}
		if part.State().ColdRows == 0 && !bytes.Equal(rafttest.Persisted(t, part), rafttest.Persisted(t, w.again[i])) || part.State().Digest != w.again[i].State().Digest {
			t.Fatalf("part %d of two equal replicas differs", i)
		}
		digest += part.State().Digest
		for _, table := range []raftfsm.Table{0, 1} {
			if rows := part.TableOf(table); rows != nil {
				if err := rafttest.CheckTable(rows); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if digest != w.undivided.State().Digest {
		t.Fatalf("the digests add up to %x, want %x", digest, w.undivided.State().Digest)
	}
	w.checkRankings(t)
}

// gained identifies a gain of a key in a list.
type gained struct {
	key    uint64
	column uint8
	window string
}

// gains returns the exact gains in the hot lists of a machine.
func (w *splitWorld) gains(m raftfsm.Machine) map[gained]int64 {
	all := map[gained]int64{}
	var q counters.HotQuery
	for q.Column = range uint8(splitWidth) {
		for q.Window = range 3 {
			for _, g := range m.(*counters.Machine).Hot().Hottest(q.Window, q.Column, w.now.UnixMilli(), counters.RankingMax).Gains {
				if g.Error == 0 {
					all[gained{g.Key, q.Column, q.Window.String()}] = g.Gained
				}
			}
		}
	}
	return all
}

// top returns the counts in the list of the largest counts of a column.
func top(t rapid.TB, m raftfsm.Machine, column uint8) (all []engine.Place) {
	q, p := &counters.TopQuery{Column: column, Limit: counters.RankingMax}, &raftfsm.Part{Route: m.Route(), Keys: []uint64{0}}
	if err := raftfsm.Answer(q, m, p, true, time.Now().Add(must.BecomeMax)); err != nil || p.Words[0] >= 0 {
		t.Fatal(err, p.Words)
	}
	for row := range slices.Chunk(p.Words[2:], 2) {
		all = append(all, engine.Place{ID: uint64(row[0]), Count: row[1]})
	}
	return all
}

// checkRankings compares the rankings of each part with those of the undivided shard.
func (w *splitWorld) checkRankings(t rapid.TB) {
	if w.kind != codec.KindCounters {
		return
	}
	whole := w.gains(w.undivided)
	for i, part := range slices.Concat(w.parts, w.again) {
		i %= len(w.parts)
		got := w.gains(part)
		for of, gain := range whole {
			if w.split.PartOf(of.key) == i && got[of] != gain && w.small {
				t.Fatalf("part %d: %+v gained %d, want %d", i, of, got[of], gain)
			}
		}
		for of := range got {
			if _, is := whole[of]; w.split.PartOf(of.key) != i || !is && w.small {
				t.Fatalf("part %d has a gain of %+v", i, of)
			}
		}
		for column := range uint8(splitWidth) {
			all := top(t, w.undivided, column)
			full := len(all) == counters.RankingMax
			want := slices.DeleteFunc(all, func(row engine.Place) bool { return w.split.PartOf(row.ID) != i })
			got := top(t, part, column)
			if full && len(got) > len(want) {
				got = got[:len(want)] // the part may have more rows in its list
			}
			if !slices.Equal(got, want) {
				t.Fatalf("part %d, column %d: the largest counts are %v, want %v", i, column, got, want)
			}
		}
	}
}

// learn reads the stamps of feeds, as proposers do. A stamp that was read before a split is useless
// after it.
func (w *splitWorld) learn(t *rapid.T) {
	for _, user := range splitKeys {
		for _, m := range w.machines() {
			if f, is := m.(*feed.Machine); is {
				_, stamp, err := f.Fetch(t.Context(), nil, user)
				if err != nil {
					t.Fatal(err)
				}
				w.learned[stampOf{m, user}] = stamp
			}
		}
	}
}

// splitKeys are the keys of ops. It is read only.
var splitKeys = []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1 << 32, 1<<64 - 2, math.MaxUint64}

// draw draws an op on a key.
func (w *splitWorld) draw(t *rapid.T) splitOp {
	kind := w.kind
	key := rapid.SampledFrom(splitKeys).Draw(t, "key")
	column := rapid.Uint8Range(0, 5).Draw(t, "column")
	value := rapid.Int64Range(-3, 70_000).Draw(t, "value")
	if !w.small {
		value = rapid.SampledFrom([]int64{value, 0, math.MaxInt64, math.MinInt64}).Draw(t, "huge")
	}
	row := func(kind engine.OpKind, value int64) splitOp {
		op := engine.Op{ID: key, Kind: kind, Cells: []engine.Cell{{Column: column, Value: value}}}
		if kind == engine.OpDelete {
			op.Cells = nil
		}
		return splitOp{key, func(w *raftfsm.RequestWriter, _ raftfsm.Machine) { counters.Ops{op}.AppendTo(w, key, 0) }}
	}
	if kind == codec.KindFeed {
		return w.drawFeedOp(t, key)
	}
	which := rapid.IntRange(0, 9).Draw(t, "op")
	switch {
	case which < 3:
		return row(engine.OpAdd, value)
	case which == 3:
		return row(engine.OpSet, value)
	case which == 4:
		return row(engine.OpDelete, 0)
	case kind == codec.KindCounters:
		op := counters.PostOp{Kind: counters.Publish, ID: rapid.Uint64Range(0, 20).Draw(t, "id"), Limits: counters.OutboxLimits{Posts: 4}}
		switch which {
		case 5:
			op = counters.PostOp{Kind: counters.Unpublish, ID: op.ID}
		case 6: // an outbox that may leave memory
			op = counters.PostOp{Kind: counters.PutOutbox, Outbox: counters.Outbox{IDs: descending(20 + op.ID)}}
		}
		return splitOp{key, func(w *raftfsm.RequestWriter, _ raftfsm.Machine) {
			counters.OutboxOps{{Author: key, PostOp: op}}.AppendTo(w, key, 0)
		}}
	case which == 5:
		return row(engine.OpTake, max(0, value))
	}
	move := rapid.SampledFrom([]engine.OpKind{unread.Raise, unread.Begin}).Draw(t, "move")
	op := engine.Op{ID: key, Kind: move, Cells: []engine.Cell{{Column: column + 1, Value: max(1, value)}}}
	return splitOp{key, func(w *raftfsm.RequestWriter, _ raftfsm.Machine) { unread.CursorOps{op}.AppendTo(w, key, 0) }}
}

// descending returns n ids, descending to 1.
func descending(n uint64) (ids []uint64) {
	for ; n > 0; n-- {
		ids = append(ids, n)
	}
	return ids
}

// drawFeedOp draws an op on a feed. If it has a Since, this is the stamp that learn last read from
// the same machine, or 1 if learn has read none.
func (w *splitWorld) drawFeedOp(t *rapid.T, user uint64) splitOp {
	op := feed.Op{User: user, Kind: rapid.SampledFrom([]feed.OpKind{feed.Reset, feed.Follow, feed.Unfollow, feed.Read, feed.PutGroup, feed.DropGroup}).Draw(t, "kind")}
	if op.Kind.OfGroup() {
		op.Group = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "group")
	}
	if op.Kind != feed.DropGroup {
		ids := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 9), 0, 5, rapid.ID[uint64]).Draw(t, "followees")
		slices.Sort(ids)
		for _, id := range ids {
			f := feed.Followee{ID: id}
			if !op.Kind.OfGroup() {
				f.Posts = rapid.Int64Range(-2, 300).Draw(t, "posts")
			}
			op.Followees = append(op.Followees, f)
		}
	}
	read := rapid.Bool().Draw(t, "posts were read")
	return splitOp{user, func(req *raftfsm.RequestWriter, m raftfsm.Machine) {
		op := op
		if read && !op.Kind.OfGroup() {
			op.Since, op.Modulus = max(1, w.learned[stampOf{m, user}]), m.Route().Modulus
		}
		feed.Ops{op}.AppendTo(req, user, 0)
	}}
}

// sweep drops idle cursors of a machine, in at most the given number of steps.
func (w *splitWorld) sweep(t rapid.TB, m raftfsm.Machine, steps int) {
	u, is := m.(*unread.Machine)
	for step := 0; is && step < steps && u.Sweep().Due(w.now, splitIdle); step++ {
		w.entry(t, m, splitOp{0, func(req *raftfsm.RequestWriter, _ raftfsm.Machine) { unread.AppendSweep(req, splitIdle, 2) }})
	}
}

// A shard that splits and then applies ops equals a shard that applies the ops and then splits:
//
//  1. Each op has the same answer.
//  2. The rows, cursors, outboxes and feeds of a part are those of its keys. The digests add up.
//  3. The snapshots of the parts of two replicas have equal bytes, whether rows were packed or on
//     disk, whether a snapshot restored a replica, and whether a replica parted its rows before the
//     split, parted some of them, for this split or another one, or copied them.
//  4. A snapshot that was taken before the split can be written after it.
//  5. The gains and the largest counts of a part are those of its keys.
func TestSplitThenApply(t *testing.T) {
	t.Parallel()
	for _, kind := range []codec.Kind{codec.KindCounters, codec.KindUnread, codec.KindFeed} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				w := newSplitWorld(t, kind)
				defer w.close(t)
				w.small = rapid.Bool().Draw(t, "small")
				write := func(t *rapid.T) {
					ops := make([]splitOp, rapid.IntRange(1, 6).Draw(t, "ops"))
					for i := range ops {
						ops[i] = w.draw(t)
					}
					w.apply(t, ops...)
				}
				days := func(t *rapid.T) {
					w.now = w.now.Add(time.Duration(rapid.IntRange(1, 80).Draw(t, "hours")) * time.Hour)
					for _, m := range w.machines() {
						w.sweep(t, m, math.MaxInt)
					}
				}
				by := raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: uint32(rapid.IntRange(2, 5).Draw(t, "parts"))}
				if rapid.Bool().Draw(t, "by hash") {
					by.Divisor = 0
				}
				for range rapid.IntRange(0, 25).Draw(t, "steps before") {
					switch rapid.IntRange(-1, 9).Draw(t, "step") {
					case -1:
						other := by
						other.Parts += uint32(rapid.IntRange(0, 3).Draw(t, "another split") / 3)
						w.part(t, other)
					case 0:
						w.tier(t)
					case 1:
						days(t)
					case 2:
						w.learn(t)
					case 3:
						if kind == codec.KindCounters {
							top(t, w.onDisk, rapid.Uint8Range(0, 5).Draw(t, "top"))
						}
					default:
						write(t)
					}
				}
				if rapid.Bool().Draw(t, "the split meets a sweep") {
					w.now = w.now.Add(splitIdle + 48*time.Hour)
					w.sweep(t, w.undivided, 1)
					w.sweep(t, w.onDisk, 1)
				}
				w.divide(t, by, rapid.Bool().Draw(t, "copies"))
				for _, m := range w.machines() {
					w.sweep(t, m, math.MaxInt)
				}
				for range rapid.IntRange(0, 25).Draw(t, "steps after") {
					switch rapid.IntRange(0, 9).Draw(t, "step") {
					case 0:
						days(t)
					case 1, 2:
						w.learn(t)
					case 3:
						w.spill(t, w.parts[rapid.IntRange(0, len(w.parts)-1).Draw(t, "spilling part")])
					default:
						write(t)
					}
				}
				w.check(t)
			})
		})
	}
}

// Replicas with several segments have equal parts after a split, whichever of their rows are
// packed, on disk or in memory, and however many of them were parted before.
func TestSplitOfManyRows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		divisor uint64
		parted  int
		tiers   bool
	}{{1, 0, true}, {1, 1, false}, {0, 1, true}, {1, 2, false}, {0, 3, false}} {
		splitManyRows(t, raftfsm.Partition{From: codec.Whole, Divisor: tc.divisor, Parts: 3}, tc.parted, tc.tiers)
	}
}

// splitManyRows splits a shard that was not parted, or after two steps, two steps for another split, or all steps, for
// parted = 0, 1, 2 or 3. It packs rows after two steps and, with tiers, moves some to disk.
func splitManyRows(t *testing.T, by raftfsm.Partition, parted int, tiers bool) {
	w := newSplitWorld(t, codec.KindCounters)
	defer w.close(t)
	add := func(from, to, step uint64) {
		var ops []splitOp
		for key := from; key < to; key += step {
			op := engine.Op{ID: key * 977, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: uint8(key % 6), Value: 1 + int64(key%300)}}}
			ops = append(ops, splitOp{op.ID, func(w *raftfsm.RequestWriter, _ raftfsm.Machine) { counters.Ops{op}.AppendTo(w, op.ID, 0) }})
		}
		w.apply(t, ops...)
	}
	for from := uint64(0); from < 40_000; from += 20_000 {
		add(from, from+20_000, 1)
	}
	first := by
	if parted == 2 {
		first.Parts++
	}
	for step := 0; step < 2 && (parted == 1 || parted == 2); step++ {
		if !w.part(t, first) {
			t.Fatal("no row is left to part")
		}
	}
	if tiers {
		w.tier(t)
	}
	pack(w.onDisk.(*counters.Machine))
	if s := w.onDisk.State(); tiers != (s.ColdRows > 0) || s.SealedRows == 0 {
		t.Fatalf("rows are neither packed nor on disk: %+v", s)
	}
	add(0, 50_000, 61)
	for more := parted == 3; more; {
		more = w.part(t, by)
	}
	if parted == 3 {
		add(0, 50_000, 67)
	}
	w.divide(t, by, parted%2 == 0)
	for i, part := range w.parts {
		s := part.State()
		if packed := s.SealedRows > 0; packed != (parted != 2) { // only then the rows are copied
			t.Errorf("%+v, parted %d: part %d is packed: %t", by, parted, i, packed)
		}
		if tiers != (s.ColdRows > 0) {
			t.Errorf("%+v, parted %d: part %d has %d rows on disk", by, parted, i, s.ColdRows)
		}
	}
	add(0, 60_000, 37)
	w.check(t)
}

// If a split cannot read a body on disk, the shard stays unchanged, whether it parts the bodies or copies them. A board
// and names never split.
func TestSplitThatFails(t *testing.T) {
	t.Parallel()
	for i, kind := range []codec.Kind{codec.KindCounters, codec.KindFeed, codec.KindBoard, codec.KindNames, codec.KindCounters, codec.KindFeed} {
		w := newSplitWorld(t, kind)
		switch kind {
		case codec.KindCounters:
			op := counters.OutboxOp{Author: 1, PostOp: counters.PostOp{Kind: counters.PutOutbox, Outbox: counters.Outbox{IDs: []uint64{9000, 8000, 7000, 6000, 5000, 4000, 3000, 2000}}}}
			w.entry(t, w.onDisk, splitOp{1, func(w *raftfsm.RequestWriter, _ raftfsm.Machine) { counters.OutboxOps{op}.AppendTo(w, 1, 0) }})
		default:
			w.entry(t, w.onDisk, splitOp{1, func(w *raftfsm.RequestWriter, _ raftfsm.Machine) { goldenRequest(kind, w) }})
		}
		want := raftfsm.ErrUndivided
		if bodies := w.onDisk.Bodies(); bodies != nil && kind != codec.KindNames {
			w.tier(t)
			must.Do(t, w.store.Drop(1))
			want = spill.ErrLost
		}
		s := &raftfsm.Split{Attempt: 1, From: codec.Whole, Parts: make([]dedup.Part, 2), PartOf: func(uint64) int { return 1 }}
		if i > 3 {
			s.By = raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 2}
		}
		before := w.onDisk.State()
		err := w.onDisk.Split(s, []raftfsm.Machine{All.New(kind, raftfsm.Places{})})
		after := w.onDisk.State()
		after.Segments, after.Bytes = before.Segments, before.Bytes // some rows may be parted
		if !errors.Is(err, want) || after != before || w.onDisk.Route() != codec.Whole {
			t.Errorf("%s: %v, %+v, was %+v", kind, err, after, before)
		}
		w.close(t)
	}
}

// Each part of a split shard has the log time, the positions and the requests of the undivided shard,
// also after it has loaded its snapshot. Only one part judges a key without a time.
func TestPartsRememberRequests(t *testing.T) {
	t.Parallel()
	for _, kind := range []codec.Kind{codec.KindCounters, codec.KindUnread, codec.KindFeed} {
		m, now := All.New(kind, raftfsm.Places{}), time.UnixMilli(20_000*24*time.Hour.Milliseconds())
		request := func(m raftfsm.Machine, id dedup.RequestID, want dedup.Outcome) *raftfsm.Result {
			t.Helper()
			var w raftfsm.RequestWriter
			w.Reset(nil, m.Route(), &id)
			data := dedup.AppendClock(codec.BeginEntry(nil, kind, 0), now, testLimits)
			r := m.Apply(rafttest.Next(m, codec.AppendChecksum(append(data, w.Section()...)))).(*raftfsm.Result)
			if r.Outcome(0) != want {
				t.Errorf("%s, %s: outcome %d of %+v, want %d", kind, m.Route(), r.Outcome(0), id, want)
			}
			return r
		}
		producer, key := dedup.ByProducer([]byte("p"), 7), dedup.ByKey([]byte("k"))
		timed := dedup.ByKey(fmt.Appendf(nil, "%08x-%04x-7000-8000-000000000001", now.UnixMilli()>>16, now.UnixMilli()&0xffff))
		begin := section(dedup.SectionBegin, 1, 2, 0, 5)
		all := []dedup.RequestID{producer, timed, key}
		if kind != codec.KindFeed {
			all = append(all, begin)
		}
		for _, id := range all {
			request(m, id, dedup.Applied)
		}
		before, other := m.State(), All.New(kind, raftfsm.Places{})
		s := &raftfsm.Split{Index: before.Index + 1, Attempt: 1, From: codec.Whole, Group: 9, PartOf: func(key uint64) int { return int(key % 2) }, Parts: []dedup.Part{
			{Route: codec.Route{Modulus: 2}, Judge: 20},
			{Route: codec.Route{Modulus: 2, Residue: 1}, Judge: 21},
		}}
		if err := m.Split(s, []raftfsm.Machine{other}); err != nil {
			t.Fatal(err)
		}
		again := All.New(kind, raftfsm.Places{})
		again.SetRoute(other.Route())
		if err := rafttest.Restore(again, rafttest.Persisted(t, other)); err != nil {
			t.Fatal(err)
		}
		for i, part := range []raftfsm.Machine{m, other, again} {
			if part.State().Digest != before.Digest || !part.LogTime().Equal(now) || len(part.Sources()) != len(all)-3 {
				t.Errorf("%s, part %d: %+v at %v, sources %v; the shard had %+v", kind, i, part.State(), part.LogTime(), part.Sources(), before)
			}
			for _, id := range all {
				want := dedup.Duplicate
				switch {
				case id.SourceSection() != nil:
					want = dedup.Moved
				case id.IsJudged() && id.Shard(2) != min(i, 1):
					want = dedup.Misrouted
					request(part, id.JudgedBy(9, dedup.Use{Met: now.UnixMilli()}), dedup.Duplicate)
				}
				request(part, id, want)
			}
		}
	}
}
