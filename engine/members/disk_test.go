package members

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/internal/must"
)

// disk is a store with one group to which a test applies entries.
type disk struct {
	*testing.T
	store *Store
	group *Group
	at    State
	index uint64
}

func diskOf(t *testing.T) *disk {
	d := &disk{T: t, store: storeOf(t, vfs.NewMem())}
	d.group = d.open(1)
	t.Cleanup(func() { d.group.Close(); _ = d.store.Close() })
	return d
}

func (d *disk) open(number uint32) *Group {
	d.Helper()
	g, err := d.store.Group(number)
	if err != nil {
		d.Fatal(err)
	}
	return g
}

func (d *disk) give(ops ...op) {
	d.Helper()
	var err error
	d.index++
	if _, d.at, err = give(d.group, d.at, d.index, &entry{now: logTimeStart, ops: ops}); err != nil {
		d.Fatal(err)
	}
}

// joins returns ops that add n members to each of the rows from 0 to rows-1.
func joins(rows, n uint64) (ops []op) {
	for row := range rows {
		for m := range n {
			ops = append(ops, op{kind: 'j', pair: Pair{Row: row, Member: m}})
		}
	}
	return ops
}

// compact compacts all files to the last level.
func (d *disk) compact() {
	d.Helper()
	if err := d.store.db.Compact(d.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		d.Fatal(err)
	}
}

// flush writes the memtables to disk.
func (d *disk) flush() {
	d.Helper()
	if err := d.store.db.Flush(); err != nil {
		d.Fatal(err)
	}
}

// Few lookups of absent pairs reach Pebble.
func TestLookupsUseFilters(t *testing.T) {
	d := diskOf(t)
	d.give(joins(20, 100)...)
	d.compact()
	if err := d.group.fillFilter(); err != nil { // this filter is large enough for all pairs
		t.Fatal(err)
	}
	hits := func(look func()) int64 {
		before := d.store.Stats().FilterHits
		look()
		return d.store.Stats().FilterHits - before
	}
	rows, in := make([]uint64, 20), make([]bool, 20)
	for i := range rows {
		rows[i] = uint64(i)
	}
	check := func() {
		if err := d.group.Contains(1_000, 0, rows, in); err != nil {
			t.Fatal(err)
		}
	}
	if n := hits(check); n < 15 {
		t.Errorf("%d of 20 checks were answered by a filter", n)
	}
	if n := hits(func() { d.give(op{kind: 'j', pair: Pair{Row: 3, Member: 1_000}}) }); n == 0 {
		t.Error("a join was not answered by a filter")
	}
	d.group.known.forget()
	if n := hits(check); n > 0 {
		t.Errorf("%d checks were answered by a filter that is gone", n)
	}
}

// An entry removes a bounded number of pairs, however many rows it deletes.
func TestManyDeletedRows(t *testing.T) {
	d := diskOf(t)
	const rows = 2 * purgedInEntry / purgedAtOnce
	d.give(joins(rows, purgedAtOnce)...)
	var ops []op
	for row := range uint64(rows) {
		ops = append(ops, op{kind: 'd', pair: Pair{Row: row}})
	}
	d.give(ops...)
	if want := uint64(rows*purgedAtOnce - purgedInEntry); d.at.Pairs != want {
		t.Errorf("%d pairs are left on disk, want %d", d.at.Pairs, want)
	}
	for row := range uint64(rows) {
		if l, err := d.group.Members(row, 0, Page{Limit: 1}); err != nil || len(l.Entries) > 0 {
			t.Fatalf("row %d has %v, %v", row, l, err)
		}
	}
	for d.group.Dying() > 0 {
		if d.give(op{kind: 'p'}); d.index > 10_000 {
			t.Fatal("the rows are not removed")
		}
	}
	if err := d.group.Verify(); err != nil || d.at.Pairs > 0 {
		t.Errorf("%d pairs, %v", d.at.Pairs, err)
	}
}

// When a group is opened, the store removes the leftovers of the group's crashed loads, but no data
// of other groups.
func TestLeftGenerations(t *testing.T) {
	d := diskOf(t)
	d.give(joins(2, 2)...)
	other := d.open(2)
	if _, _, err := give(other, State{}, 1, &entry{now: logTimeStart, ops: joins(1, 1)}); err != nil {
		t.Fatal(err)
	}
	batch := d.store.db.NewBatch()
	for _, generation := range []uint32{0, 2, 1 << 31} {
		if err := (prefix{1, generation}).putPair(batch, placement{Pair{Row: 1}, 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	keys := func() (n int) {
		if err := eachFrom(d.store.db, []byte{0}, []byte{0xff}, func(_, _ []byte) (bool, error) { n++; return true, nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := keys()
	d.group.Close()
	d.group = d.open(1)
	if n := before - keys(); n != 9 {
		t.Errorf("%d keys were removed, want 9", n)
	}
	other.Close()
	for _, g := range []*Group{d.group, d.open(2)} {
		if err := g.Verify(); err != nil || g.State().Pairs == 0 {
			t.Errorf("%+v, %v", g.State(), err)
		}
	}
}

// A snapshot is refused if the outcomes after it were removed, because a replay would assume that
// those entries changed nothing.
func TestAdoptsWithoutOutcomes(t *testing.T) {
	d := diskOf(t)
	var after []State
	for m := range uint64(5) {
		d.give(op{kind: 'j', pair: Pair{Member: m}})
		after = append(after, d.at)
	}
	if err := d.group.Trim(3); err != nil {
		t.Fatal(err)
	}
	for i, s := range after {
		if err := d.group.Adopts(1, s); errors.Is(err, ErrDamaged) != (i < 2) {
			t.Errorf("entry %d: %v", s.Index, err)
		}
	}
}

// An old view of one group does not keep data on disk that another group removed.
func TestViewsAreReleased(t *testing.T) {
	d := diskOf(t)
	d.give(joins(1, 1)...)
	if err := d.group.Capture(); err != nil {
		t.Fatal(err)
	}
	named := d.at
	large := d.open(2)
	at := State{}
	var err error
	for i := range uint64(4) {
		if _, at, err = give(large, at, i+1, &entry{now: logTimeStart, ops: joins(10, 300*(i+1))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.group.Capture(); err != nil { // a second view of the same state is not kept
		t.Fatal(err)
	}
	d.give(op{kind: 'j', pair: Pair{Row: 1}})
	if err := d.group.Capture(); err != nil { // this view contains the large group
		t.Fatal(err)
	}
	large.Close()
	if err := d.store.Drop(2); err != nil {
		t.Fatal(err)
	}
	d.compact()
	began, with := time.Now(), d.store.db.Metrics().Total().TablesSize
	d.group.ReleaseViews(time.Now())
	// Pebble rewrites files in the background once no snapshot needs the removed keys.
	for d.store.db.Metrics().Total().TablesSize > with/10 {
		time.Sleep(10 * time.Millisecond)
		if time.Since(began) > must.BecomeMax {
			t.Fatalf("%d bytes with the views, %d without", with, d.store.db.Metrics().Total().TablesSize)
		}
	}
	v, err := d.group.OpenView(named) // from the present sets and the outcomes
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for err == nil {
		_, err = v.Next(nil)
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A store in the first format, whose keys have several lengths, is refused.
func TestFirstFormIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	first := *comparer
	first.Name = "countd.members"
	db, err := pebble.Open("members", &pebble.Options{FS: fs, Comparer: &first, FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	key := prefix{1, 1}.member(Pair{Row: 1, Member: 1}, 0)
	if err := errors.Join(db.Set(key[:pairBytesOfKey], make([]byte, stampBytes), pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: "members", FS: fs, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	if err == nil {
		t.Error(s.Close())
		t.Fatal("opened")
	}
	if !strings.Contains(err.Error(), first.Name) {
		t.Error(err)
	}
}

// All keys with a prefix are below the next prefix, and no key with another prefix is between these
// keys and the next prefix.
func TestNextPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := func(of string) []byte {
			n := rapid.IntRange(0, keyBytes-1).Draw(t, "length")
			bytesOf := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0xff}), n, n)
			return append([]byte{rapid.SampledFrom([]byte("mtrdos")).Draw(t, "kind")}, bytesOf.Draw(t, of)...)
		}
		prefix := comparer.Split.Prefix(key("key"))
		next := comparer.ImmediateSuccessor([]byte("before"), prefix)[len("before"):]
		if comparer.Split(next) != len(next) {
			t.Fatalf("% x is no prefix", next)
		}
		other := key("other")
		like := append(bytes.Clone(prefix), other[min(len(prefix), len(other)):]...)
		for _, other := range [][]byte{other, like, bytes.TrimRight(next, "\x00")} {
			of := comparer.Split.Prefix(other)
			if below, want := comparer.Compare(other, next) < 0, comparer.Compare(of, prefix) <= 0; below != want {
				t.Fatalf("% x, of prefix % x: below % x, the next of % x: %v", other, of, next, prefix, below)
			}
		}
	})
}

// After Clear, no read of a list or a pair returns a removed pair, wherever the files with the
// range deletion end.
func TestClearedAcrossFiles(t *testing.T) {
	for members := uint64(1); members < 200; members += 7 {
		d := &disk{T: t, store: smallFilesOf(t, vfs.NewMem(), io.Discard)}
		d.group = d.open(1)
		d.give(joins(3, members)...)
		d.flush()
		d.give(joins(3, members+1)...)
		d.flush()
		d.give(op{kind: 'c'})
		d.flush()
		for row := range uint64(3) {
			if l, err := d.group.Members(row, 0, Page{Limit: 10}); err != nil || len(l.Entries) > 0 {
				t.Errorf("%d members of row %d: %v, %v", members, row, l.Entries, err)
			}
		}
		for member := range members {
			in := make([]bool, 3)
			if err := d.group.Contains(member, 0, []uint64{0, 1, 2}, in); err != nil || slices.Contains(in, true) {
				t.Errorf("member %d of %d: %v, %v", member, members, in, err)
			}
			if l, err := d.group.Rows(member, 0, Page{Limit: 10}); err != nil || len(l.Entries) > 0 {
				t.Errorf("rows of %d of %d: %v, %v", member, members, l.Entries, err)
			}
		}
		d.group.Close()
		_ = d.store.Close()
	}
}
