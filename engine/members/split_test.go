package members

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// partition is a Partition of a test.
type partition func(row uint64) int

func (p *partition) Of(row uint64) int { return (*p)(row) }

func partitionOf(of func(row uint64) int) Partition { return (*partition)(&of) }

// A new replica may replay two Splits. A replay returns the same states, and the parts of both can be
// adopted. Trim removes only the parts of a Split that no snapshot can replay. A snapshot from before a Split is sent with
// the sets from before it.
func TestSecondSplit(t *testing.T) {
	d := diskOf(t)
	d.give(joins(12, 4)...)
	split := func(index uint64, parts int, of uint64) ([]State, State) {
		t.Helper()
		at, withdrawn, replayed := d.at, 0, d.group.State().Index >= index
		states, err := d.group.Split(at, index, parts, partitionOf(func(row uint64) int { return int(row / of % uint64(parts)) }), func() {
			if withdrawn++; d.group.split == index {
				t.Error("the sets have changed before the reads are refused")
			}
		})
		if err != nil || replayed != (withdrawn == 0) {
			t.Fatalf("entry %d, replayed %v: %v, %d calls of withdraw", index, replayed, err, withdrawn)
		}
		d.at = states[0]
		return states, at
	}
	first, began := split(2, 3, 1)
	second, _ := split(3, 2, 3)
	for i, want := range []uint64{16, 16, 16} {
		if first[i].Pairs != want {
			t.Errorf("part %d has %d pairs, want %d", i, first[i].Pairs, want)
		}
	}
	d.at = began
	firstAgain, _ := split(2, 3, 1)
	secondAgain, _ := split(3, 2, 3)
	if !slices.Equal(firstAgain, first) || !slices.Equal(secondAgain, second) {
		t.Errorf("replays: %+v, %+v, want %+v, %+v", firstAgain, secondAgain, first, second)
	}
	children := [4]*Group{nil, nil, d.open(2), d.open(3)}
	other := d.open(4)
	for _, g := range append(children[2:], other) {
		defer g.Close()
	}
	check := func() {
		t.Helper()
		for _, g := range append(children[2:], d.group) {
			if err := g.Verify(); err != nil {
				t.Error(err)
			}
		}
	}
	adopt := func(child *Group, split uint64, part int, want State, wantErr error) {
		t.Helper()
		s, err := child.AdoptPart(1, split, part, 1)
		if want.Index = 1; !errors.Is(err, wantErr) || err == nil && s != want {
			t.Errorf("part %d of entry %d: %+v, %v, want %+v, %v", part, split, s, err, want, wantErr)
		}
		check()
	}
	for index, want := range map[uint64]State{1: began, 2: first[0], 3: second[0]} {
		named := State{Index: index, Digest: want.Digest, Pairs: want.Pairs, Stamp: want.Stamp}
		if found, _ := viewOf(t, d.group, named); found != named {
			t.Errorf("a snapshot of entry %d is sent with the sets %+v, want %+v", index, found, named)
		}
	}
	adopt(children[2], 2, 1, first[1], nil)
	adopt(children[3], 3, 1, second[1], nil)
	adopt(children[2], 2, 1, first[1], nil)
	adopt(other, 2, 1, State{}, ErrNotStaged)
	if err := d.group.Trim(2); err != nil {
		t.Fatal(err)
	}
	check()
	adopt(other, 2, 2, State{}, ErrNotStaged)
	if found, _ := viewOf(t, d.group, first[0]); found != first[0] {
		t.Errorf("a snapshot of entry 2 is sent with the sets %+v, want %+v", found, first[0])
	}
	if err := d.group.Trim(3); err != nil {
		t.Fatal(err)
	}
	check()
	d.group.Close()
	if err := d.store.Drop(1); err != nil {
		t.Fatal(err)
	}
	d.group = d.open(1)
	check()
	if got := d.store.homes.of(1); len(got) > 0 {
		t.Errorf("a dropped group has the homes %v", got)
	}
}

// A deleted row that still has pairs stays deleted in its part.
func TestSplitOfADeletedRow(t *testing.T) {
	d := diskOf(t)
	d.give(joins(2, 2*purgedAtOnce)...)
	d.give(op{kind: 'd', pair: Pair{Row: 1}})
	states, err := d.group.Split(d.at, 3, 2, partitionOf(func(row uint64) int { return int(row) }), func() {})
	if err != nil || d.group.Dying() != 0 || states[1].Pairs != purgedAtOnce {
		t.Fatalf("%d rows are dying, %+v, %v", d.group.Dying(), states, err)
	}
	child := d.open(2)
	defer child.Close()
	if _, err := child.AdoptPart(1, 3, 1, 1); err != nil || child.Dying() != 1 {
		t.Fatalf("%d rows are dying, %v", child.Dying(), err)
	}
	if l, err := child.Members(1, 0, Page{Limit: 10}); err != nil || len(l.Entries) > 0 {
		t.Errorf("a deleted row has members: %v, %v", l.Entries, err)
	}
	if err := errors.Join(child.Verify(), d.group.Verify()); err != nil {
		t.Error(err)
	}
}

// A group that never split needs no records and no homes. So it stays readable, can be loaded, and can be sent,
// wherever those of another group are damaged.
func TestDamagedPartsOfANeighbour(t *testing.T) {
	mem := vfs.NewCrashableMem()
	d := &disk{T: t, store: storeOf(t, mem)}
	groups := []*Group{d.open(1), d.open(2)}
	for _, g := range groups {
		if _, _, err := give(g, State{}, 1, &entry{now: logTimeStart, ops: joins(50, 100)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := groups[1].Split(groups[1].State(), 2, 3, partitionOf(func(row uint64) int { return int(row % 3) }), func() {}); err != nil {
		t.Fatal(err)
	}
	state, blocks := copyOf(t, groups[0])
	d.compact()
	for _, g := range groups {
		g.Close()
	}
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := mem.List("members")
	if err != nil {
		t.Fatal(err)
	}
	beside := 0 // damages of keys of the other group
	for _, name := range names {
		path := mem.PathJoin("members", name)
		info, err := mem.Stat(path)
		if err != nil || !strings.HasSuffix(name, ".sst") {
			continue
		}
		for at := int64(100); at < info.Size(); at += 2000 {
			fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
			flipIn(t, fs, path, at)
			d := &disk{T: t, store: storeOf(t, fs)}
			readable := func(group uint32, kinds ...byte) bool {
				for _, kind := range kinds {
					if each(d.store.present(), groupPrefix(kind, group), func(_, _ []byte) (bool, error) { return true, nil }) != nil {
						return false
					}
				}
				return true
			}
			if !readable(1, keyMember, keyTime, keyOf, keyDead, keyOutcome, keyState) || readable(2, keyRecord) && readable(homesGroup, keyMember, keyTime, keyOf) {
				_ = d.store.Close()
				continue
			}
			beside++
			g := d.open(1)
			check := func(when string) {
				v, err := g.OpenView(g.State())
				if err == nil {
					v.Close()
				}
				if err := errors.Join(err, g.usable(), g.Verify()); err != nil {
					t.Errorf("%s, byte %d of %s: %v", when, at, name, err)
				}
			}
			check("opened")
			if found, _ := copyOf(t, g); found != state {
				t.Errorf("%+v, was %+v", found, state)
			}
			l, err := g.Load()
			for i := 0; i < len(blocks) && err == nil; i++ {
				err = l.Block(blocks[i])
			}
			if err := errors.Join(err, l.Switch(state)); err != nil {
				t.Fatal(err)
			}
			check("loaded")
			g.Close()
			_ = d.store.Close()
		}
	}
	if beside == 0 {
		t.Error("no key of the other group was damaged")
	}
}

// Only a group that split removes records. A range deletion of records would widen a file to
// keys of other groups.
func TestRangeDeletionsWithoutASplit(t *testing.T) {
	d := diskOf(t)
	d.give(joins(9, 8)...)
	state, blocks := copyOf(t, d.group)
	l, err := d.group.Load()
	for i := 0; i < len(blocks) && err == nil; i++ {
		err = l.Block(blocks[i])
	}
	if err := errors.Join(err, l.Switch(state)); err != nil {
		t.Fatal(err)
	}
	d.group.Close()
	d.group = d.open(1)
	d.group.Close()
	if err := d.store.Drop(1); err != nil {
		t.Fatal(err)
	}
	d.flush()
	levels, err := d.store.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	files := slices.Concat(levels...)
	for _, f := range files {
		if f.Largest.UserKey[0] == keyRecord {
			t.Errorf("a file ends at % x", f.Largest.UserKey)
		}
	}
	if len(files) == 0 {
		t.Error("no files")
	}
}

// If AdoptPart finds damage, it changes nothing, and a Scrub checks the parent. If the parent was given
// up, its parts are not staged.
func TestAdoptPartOfADamagedParent(t *testing.T) {
	d := diskOf(t)
	d.give(joins(12, 4)...)
	if _, err := d.group.Split(d.at, 2, 3, partitionOf(func(row uint64) int { return int(row % 3) }), func() {}); err != nil {
		t.Fatal(err)
	}
	child := d.open(2)
	defer child.Close()
	_, was, err := give(child, State{}, 1, &entry{now: logTimeStart, ops: joins(3, 1)})
	if err != nil {
		t.Fatal(err)
	}
	adopt := func(part int, want error) {
		t.Helper()
		if _, err := child.AdoptPart(1, 2, part, 5); !errors.Is(err, want) || errors.Is(err, ErrDamaged) != errors.Is(want, ErrDamaged) {
			t.Errorf("part %d: %v, want %v", part, err, want)
		}
		if err := errors.Join(child.Verify(), child.usable()); err != nil || child.State() != was {
			t.Errorf("the group is at %+v, was at %+v: %v", child.State(), was, err)
		}
		if got := d.group.TakeSuspicion(); got != errors.Is(want, ErrDamaged) || child.TakeSuspicion() {
			t.Errorf("part %d: the parent is a suspect: %v", part, got)
		}
	}
	for _, part := range []int{-1, 0, 3} {
		adopt(part, ErrNotStaged)
	}
	if err := d.group.Verify(); err != nil {
		t.Error(err)
	}
	for _, key := range [][]byte{d.group.log.record(2, 1), full(d.group.log.number(keyOutcome, 2))} {
		value, closer, err := d.store.present().Get(key)
		if err != nil {
			t.Fatal(err)
		}
		was := slices.Clone(value)
		if err := errors.Join(closer.Close(), d.store.db.Set(key, []byte{1}, pebble.Sync)); err != nil {
			t.Fatal(err)
		}
		adopt(1, ErrDamaged)
		if err := d.group.Verify(); !errors.Is(err, ErrDamaged) {
			t.Errorf("a Scrub of the parent: %v", err)
		}
		if err := d.store.db.Set(key, was, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	records, err := readRecords(d.store.present(), d.group.log)
	if err != nil || len(records) != 3 {
		t.Fatal(records, err)
	}
	for _, r := range records {
		at := homeOr(r.home, d.group.log)
		key := at.member(Pair{Row: 100, Member: 2}, 7)
		if err := d.store.db.Set(key[:], nil, pebble.Sync); err != nil {
			t.Fatal(err)
		}
		if err := d.group.Verify(); !errors.Is(err, ErrDamaged) {
			t.Errorf("a Scrub of the parent, with another pair in part %d: %v", r.part, err)
		}
		if err := d.store.db.Delete(key[:], pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.group.setGivenUp(); err != nil {
		t.Fatal(err)
	}
	adopt(2, ErrNotStaged)
}

// Scrub paces itself while it reads the parts of a Split, and DiskBytes counts them.
func TestScrubOfStagedParts(t *testing.T) {
	d := diskOf(t)
	d.give(joins(20, 1000)...)
	if _, err := d.group.Split(d.at, 2, 2, partitionOf(func(uint64) int { return 1 }), func() {}); err != nil {
		t.Fatal(err)
	}
	d.compact()
	total, steps := 0, 0
	err := d.group.Scrub(func(bytes int) error {
		total += bytes
		steps++
		return nil
	})
	if err != nil || steps < 20_000/scrubKeys || total < 20_000 || d.group.DiskBytes() < 20_000 {
		t.Errorf("%d bytes in %d steps, %v; %d bytes on disk", total, steps, err, d.group.DiskBytes())
	}
}
