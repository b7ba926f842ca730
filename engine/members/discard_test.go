package members

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// shatter damages the file in more places, so that several groups are damaged.
func (d *damagedDisk) shatter() {
	d.Helper()
	for part := int64(1); part < 10; part += 2 {
		d.reopen(func() { flip(d.T, d.fs, d.store.cfg.Dir, part) })
	}
	d.find()
}

// find makes Pebble read all files and so find the damage.
func (d *damagedDisk) find() {
	_ = d.store.db.Compact(d.Context(), []byte{0}, []byte{0xff}, false)
}

// repairAll repairs groups until the sets of all groups can be read.
func (d *damagedDisk) repairAll() {
	d.Helper()
	for range 10 {
		broken := 0
		for i, g := range d.groups {
			if g.Verify() != nil {
				broken++
				d.repair(i)
			}
		}
		if broken == 0 {
			if n := d.readable(); n != 3*damagedRows {
				d.Errorf("%d sets can be read", n)
			}
			return
		}
	}
	d.Error("the sets are damaged again and again")
}

// If all groups load sets at the same time, the removal of a damaged file for one group loses no
// pair of another group.
func TestDiscardBesideLoads(t *testing.T) {
	for part := int64(0); part < 6; part += 2 {
		d := damagedDiskOf(t, part)
		d.shatter()
		loads := make([]*Load, len(d.groups))
		for i, g := range d.groups {
			var err error
			if loads[i], err = g.Load(); err != nil {
				t.Fatal(err)
			}
			for _, b := range d.blocks[i] {
				if err := loads[i].Block(b); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range d.groups {
			if err := loads[i].Switch(d.states[i]); err != nil {
				t.Fatal(err)
			}
		}
		d.readable() // fails if a set has lost some of its members
		d.repairAll()
		d.close()
	}
}

// While Pebble replaces a file, readers find the same keys as before.
func TestReadsBesideADiscard(t *testing.T) {
	reads := make(chan func())
	var replaces atomic.Bool
	var waited atomic.Int32
	d := &disk{T: t, store: smallFilesOf(t, vfs.NewMem(), io.Discard, func(o *pebble.Options) {
		o.DebugCheck = func(*pebble.DB) error { // called as soon as readers find the new files
			if replaces.Load() {
				done, late := make(chan struct{}), time.After(200*time.Millisecond)
				select {
				case reads <- func() { close(done) }:
					select {
					case <-done:
					case <-late:
						waited.Add(1) // the read waits for Pebble
					}
				case <-late:
					waited.Add(1) // the read before it does
				}
			}
			return nil
		}
	})}
	d.group = d.open(1)
	d.give(joins(2, 50)...)
	d.compact()
	f := &damagedFile{loaded: map[uint32]bool{}}
	f.Bounds.Start, f.Bounds.End.Key = []byte{keyDead}, []byte{keyTime + 1}
	ended := make(chan error)
	go func() {
		replaces.Store(true)
		err := d.store.discardFile(f, nil)
		replaces.Store(false)
		close(reads)
		ended <- err
	}()
	for done := range reads {
		in := make([]bool, 2)
		if err := d.group.Contains(7, 0, []uint64{0, 1}, in); err != nil || !in[0] || !in[1] {
			t.Errorf("%v, %v", in, err)
		}
		if l, err := d.group.Members(1, 0, Page{Limit: 50}); err != nil || len(l.Entries) != 50 {
			t.Errorf("%d members, %v", len(l.Entries), err)
		}
		if _, found, err := d.group.outcome(1); err != nil || !found {
			t.Errorf("outcome: %v, %v", found, err)
		}
		done()
	}
	if err := <-ended; err != nil || waited.Load() == 0 {
		t.Errorf("%d reads waited, %v", waited.Load(), err)
	}
	d.group.Close()
	_ = d.store.Close()
}

// If the states of groups in a damaged file cannot be read, the file stays until all groups are
// open: it may have sets of groups that are not open yet.
func TestDiscardBeforeAllGroupsAreOpen(t *testing.T) {
	d := damagedDiskOf(t, 1)
	d.reopen(func() { flip(t, d.fs, d.store.cfg.Dir, 1) })
	defer func() { d.close() }()
	d.compact()
	damage, found := func(at int64) { flipAt(t, d.fs, d.store.cfg.Dir, at, 200) }, false
	for at := int64(0); at < 200 && !found; at++ {
		d.reopen(func() { damage(at) })
		if found = each(d.store.db, []byte{keyState}, func(_, _ []byte) (bool, error) { return true, nil }) != nil; !found {
			d.reopen(func() { damage(at) })
			continue
		}
		d.close()
		d.store = storeOf(t, d.fs)
		g := d.open(0)
		d.find()
		d.store.discardFor(g)
		d.store.Discard()
		g.Close()
		d.groups[0], d.groups[1], d.groups[2] = g, d.open(1), d.open(2)
		d.reopen(func() { damage(at) })
	}
	if !found {
		t.Fatal("no states were damaged")
	}
	for i, g := range d.groups {
		if err := g.Verify(); err != nil || g.usable() != nil || g.State().Pairs < damagedRows*100 {
			t.Errorf("group %d has %d pairs, %v, %v", i, g.State().Pairs, err, g.usable())
		}
	}
}

// If a group is given up after an entry has begun, the reads of the entry fail. Otherwise they
// would find pairs absent.
func TestDiscardBesideAnEntry(t *testing.T) {
	d := damagedDiskOf(t, 1)
	defer func() { d.close() }()
	d.shatter()
	g := d.groups[0]
	b, err := g.Begin(g.State(), g.State().Index+1, logTimeStart)
	if err != nil {
		t.Fatal(err)
	}
	b.Touch(Pair{})
	for _, g := range d.groups {
		d.store.discardFor(g)
	}
	if d.store.discards.Load() == 0 || g.usable() == nil {
		t.Fatal("the group was not given up")
	}
	if err := b.Read(); !errors.Is(err, ErrDamaged) {
		t.Errorf("a pair was read: %+v, %v", b.pairs[Pair{}], err)
	}
	if err := b.TouchRow(0); !errors.Is(err, ErrDamaged) {
		t.Errorf("a row was read: %+v, %v", b.rows[0], err)
	}
	if _, found, err := g.outcome(1); !errors.Is(err, ErrDamaged) {
		t.Errorf("an outcome was read: %v, %v", found, err)
	}
}

// After a crash at any step of the removal of a damaged file, each group has all of its sets or
// refuses all calls.
func TestCrashAtEachStepOfDiscard(t *testing.T) {
	for _, part := range []int64{2} {
		d := damagedDiskOf(t, part)
		d.shatter()
		d.reopen(func() {})
		disk := vfs.NewCrashableMem()
		if ok, err := vfs.Clone(d.fs, disk, "members", "members", vfs.CloneSync); err != nil || !ok {
			t.Fatal(ok, err)
		}
		d.close()
		var crashed []*vfs.MemFS
		var mu sync.Mutex
		discarding := false
		d.fs = watchedFS(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if discarding && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				n := len(crashed)
				cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (n % 2), RNG: rand.New(rand.NewPCG(1, uint64(n)))}
				crashed = append(crashed, disk.CrashClone(cfg))
			}
			return nil
		}))
		d.store = storeOf(t, d.fs)
		for i := range d.groups {
			d.groups[i] = d.open(uint32(i))
			if err := d.groups[i].Sync(); err != nil {
				t.Fatal(err)
			}
		}
		d.find()
		mu.Lock()
		discarding = true
		mu.Unlock()
		for _, g := range d.groups {
			d.store.discardFor(g)
		}
		mu.Lock()
		discarding = false
		mu.Unlock()
		if d.store.discards.Load() == 0 {
			t.Fatal("no file was removed")
		}
		d.close()
		for i, fs := range crashed {
			if testing.Short() && i%3 > 0 {
				continue
			}
			d.fs, d.store = fs, storeOf(t, fs)
			for i := range d.groups {
				d.groups[i] = d.open(uint32(i))
			}
			d.readable() // fails if a set has lost some of its members
			for _, g := range d.groups {
				if err := g.Verify(); err != nil && !errors.Is(err, ErrDamaged) || g.usable() == nil && g.State().Pairs < 100*damagedRows {
					t.Errorf("%d/10: step %d: group %d: %+v, %v", part, i, g.number, g.State(), err)
				}
			}
			d.close()
		}
	}
}

// Two neighbouring damaged files are removed together if they share a list, because a file cannot
// be cut within a list.
func TestDiscardFilesSideBySide(t *testing.T) {
	d := damagedSmallFilesOf(t, 1, func(files []pebble.SSTableInfo) []pebble.SSTableInfo {
		list := func(key []byte) string { return string(key[:listBytes]) }
		for i := range files[1:] {
			a, b := files[i], files[i+1]
			if shared := list(a.Largest.UserKey); shared == list(b.Smallest.UserKey) && shared != list(a.Smallest.UserKey) && shared != list(b.Largest.UserKey) {
				return files[i : i+2]
			}
		}
		return nil
	})
	defer func() { d.close() }()
	if err := d.groups[0].Verify(); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
	d.repair(0)
	d.find()
	d.store.Discard()
	if n := len(d.store.mu.files); n > 0 {
		t.Errorf("%d damaged files stay", n)
	}
	d.compact()
	if err := d.groups[0].Verify(); err != nil || d.groups[0].State() != d.states[0] {
		t.Errorf("%+v, %v", d.groups[0].State(), err)
	}
}

// After a restart, a damaged file is removed even if it has pairs of an abandoned Load, because
// nobody reads these.
func TestDiscardWhatALoadLeft(t *testing.T) {
	d := damagedSmallFilesOf(t, 2, func(files []pebble.SSTableInfo) []pebble.SSTableInfo { return files[:1] })
	defer func() { d.close() }()
	d.find()
	if d.store.Stats().Damaged == 0 {
		t.Fatal("no damage was met")
	}
	d.store.Discard()
	if n := len(d.store.mu.files); n > 0 {
		t.Errorf("%d damaged files stay", n)
	}
	if err := d.groups[0].Verify(); err != nil || d.groups[0].State() != d.states[0] {
		t.Errorf("%+v, %v", d.groups[0].State(), err)
	}
}

// A group begins a Load because of one damaged file, and then a second file is damaged. That Load
// does not show that another replica has the sets of the second file, so the group keeps these
// sets.
func TestDiscardAfterALoadForAnotherFile(t *testing.T) {
	d := damagedSmallFilesOf(t, 1, func(files []pebble.SSTableInfo) []pebble.SSTableInfo { return files[:1] })
	defer func() { d.close() }()
	if err := d.groups[0].Verify(); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
	d.store.mu.Lock()
	files := d.store.mu.files
	earlier := *files[0]
	earlier.Path, earlier.loaded, earlier.met = "earlier", map[uint32]bool{0: true}, false
	d.store.mu.files = append(files, &earlier)
	d.store.mu.Unlock()
	d.store.Discard()
	if err := d.groups[0].usable(); err != nil {
		t.Errorf("the group is given up: %v", err)
	}
	d.repair(0)
	d.find()
	d.store.Discard()
	if n := len(d.store.mu.files); n > 0 {
		t.Errorf("%d damaged files stay", n)
	}
	if err := d.groups[0].Verify(); err != nil || d.groups[0].State() != d.states[0] {
		t.Errorf("%+v, %v", d.groups[0].State(), err)
	}
}

// damagedSmallFilesOf returns a store with one group, and with the leftovers of an abandoned Load.
// It damages those files that the function damaged returns. The argument of damaged is the files
// whose pairs are all of the given generation, in the order of their keys.
func damagedSmallFilesOf(t *testing.T, generation uint32, damaged func([]pebble.SSTableInfo) []pebble.SSTableInfo) *damagedDisk {
	t.Helper()
	fs := vfs.NewMem()
	d := &damagedDisk{disk: &disk{T: t, store: smallFilesOf(t, fs, io.Discard)}, fs: fs}
	g := d.open(0)
	d.to(g, joins(150, 5))
	s, blocks := copyOf(t, g)
	d.groups, d.states, d.blocks = []*Group{g}, []State{s}, [][][]byte{blocks}
	d.compact()
	l, err := g.Load()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Block(blocks[0]), d.store.db.Flush()); err != nil {
		t.Fatal(err)
	}
	levels, err := d.store.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	pairs := prefix{0, generation}.kind(keyMember)
	files := slices.DeleteFunc(slices.Concat(levels...), func(f pebble.SSTableInfo) bool {
		first, last := f.Smallest.UserKey, f.Largest.UserKey
		return len(first) < keyBytes || len(last) < keyBytes || !bytes.HasPrefix(first, pairs) || !bytes.HasPrefix(last, pairs)
	})
	slices.SortFunc(files, func(a, b pebble.SSTableInfo) int { return bytes.Compare(a.Smallest.UserKey, b.Smallest.UserKey) })
	chosen := damaged(files)
	if len(chosen) == 0 {
		t.Fatal("no such files")
	}
	g.Close()
	_ = d.store.Close()
	for _, file := range chosen {
		flipIn(t, fs, fs.PathJoin("members", file.BackingSSTNum.String()+".sst"), 20)
	}
	d.store = smallFilesOf(t, fs, io.Discard)
	d.groups[0] = d.open(0)
	return d
}

// If the store does not know the generation of a group on disk, a Load may overwrite that
// generation. If the Load is abandoned, the group refuses its sets after a restart, because some
// sets are gone.
func TestLoadOverAnUnknownGeneration(t *testing.T) {
	fs := vfs.NewMem()
	d := &damagedDisk{disk: &disk{T: t, store: storeOf(t, fs)}, fs: fs}
	defer func() { d.close() }()
	g := d.open(0)
	d.to(g, joins(damagedRows, 100))
	s, blocks := copyOf(t, g)
	d.groups, d.states, d.blocks = []*Group{g}, []State{s}, [][][]byte{blocks}
	d.repair(0)
	bad := full(g.at.number(keyDead, 1))
	if err := d.store.db.Set(bad, []byte("no stamp"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	generation := g.at.generation
	d.reopen(func() {})
	if g = d.groups[0]; g.usable() == nil {
		t.Fatal("the group is not damaged")
	}
	g.at.generation = generation - 1 // a number that the clock could give
	if _, err := g.Load(); err != nil {
		t.Fatal(err)
	}
	if err := d.store.db.Delete(bad, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	d.reopen(func() {})
	if l, err := d.groups[0].Members(1, 0, Page{Limit: 1000}); !errors.Is(err, ErrDamaged) {
		t.Errorf("a row of 100 has %d members, %v", len(l.Entries), err)
	}
	d.repair(0)
	if err := d.groups[0].Verify(); err != nil || d.groups[0].State() != s {
		t.Errorf("%+v, %v", d.groups[0].State(), err)
	}
}

// A read during a Load of damaged sets returns the right answer or an error.
func TestReadsBesideALoad(t *testing.T) {
	d := diskOf(t)
	d.give(joins(10, 10)...)
	s, blocks := copyOf(t, d.group)
	var readers sync.WaitGroup
	defer readers.Wait()
	end := make(chan struct{})
	defer close(end)
	for range 2 {
		readers.Go(func() {
			for in := make([]bool, 1); ; {
				select {
				case <-end:
					return
				default:
				}
				if err := d.group.Contains(1, 0, []uint64{1}, in); err == nil && !in[0] || err != nil && !errors.Is(err, ErrDamaged) {
					t.Errorf("a pair is there %v, %v", in[0], err)
				}
			}
		})
	}
	for range 30 {
		d.group.reading.Lock()
		d.group.broken = ErrDamaged
		d.group.reading.Unlock()
		l, err := d.group.Load()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			if err := l.Block(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Switch(s); err != nil {
			t.Fatal(err)
		}
	}
}
