package members

import (
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// flip changes a byte in the largest table file of a closed store, at the given number of tenths of
// its size.
func flip(t *testing.T, fs vfs.FS, dir string, tenths int64) {
	t.Helper()
	flipAt(t, fs, dir, tenths, 10)
}

// flipAt changes a byte in the largest table file of a closed store, at part/parts of its size. On
// a badSector it makes that byte unreadable instead.
func flipAt(t *testing.T, fs vfs.FS, dir string, part, parts int64) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	largest, size := "", int64(0)
	for _, name := range names {
		info, err := fs.Stat(fs.PathJoin(dir, name))
		if err == nil && strings.HasSuffix(name, ".sst") && info.Size() > size {
			largest, size = name, info.Size()
		}
	}
	path, at := fs.PathJoin(dir, largest), size*part/parts
	if bad, is := fs.(*badSector); is {
		bad.path, bad.at = path, at
	} else {
		flipIn(t, fs, path, at)
	}
}

// badSector is a file system with a sector that cannot be read.
type badSector struct {
	vfs.FS
	path string // the file with the bad sector; "" if there is none
	at   int64
}

func (fs *badSector) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	return badFile{f, fs, name}, err
}

type badFile struct {
	vfs.File
	fs   *badSector
	name string
}

func (f badFile) ReadAt(p []byte, offset int64) (int, error) {
	if f.name == f.fs.path && offset <= f.fs.at && f.fs.at < offset+int64(len(p)) {
		return 0, &fs.PathError{Op: "read", Path: f.name, Err: syscall.EIO}
	}
	return f.File.ReadAt(p, offset)
}

// flipIn changes a byte in a file.
func flipIn(t *testing.T, fs vfs.FS, path string, at int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// copyOf returns the blocks of a view of a group's present sets.
func copyOf(t *testing.T, g *Group) (s State, blocks [][]byte) {
	t.Helper()
	return viewOf(t, g, g.State())
}

// viewOf returns the state and the blocks of the view of a stored snapshot.
func viewOf(t interface{ Fatal(...any) }, g *Group, named State) (s State, blocks [][]byte) {
	v, err := g.OpenView(named)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for {
		b, err := v.Next(nil)
		if errors.Is(err, io.EOF) {
			return v.State(), blocks
		}
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
}

// A compaction that finds a damaged file makes suspects of the groups that may have keys in it. A
// scrub of these groups finds the damaged ones. Once their sets are replaced, the file is gone: all
// sets can be read, compacted and written to, also after a restart. The other groups lose nothing.
// The test changes a byte of the file, or makes it unreadable.
func TestDamagedFile(t *testing.T) {
	for _, part := range parts(0, 10) {
		name, fs := "changed ", vfs.FS(vfs.NewMem())
		if part%2 == 0 {
			name, fs = "unreadable ", &badSector{FS: fs}
		}
		t.Run(name+strconv.Itoa(int(part)), func(t *testing.T) { testDamagedFile(t, damagedDiskOn(t, fs, part)) })
	}
}

// parts returns the parts of a file to damage: all parts from 0 to n-1 or, in a short test, every
// third of these, beginning with first.
func parts(first, n int64) (all []int64) {
	for part := int64(0); part < n; part++ {
		if !testing.Short() || part%3 == first {
			all = append(all, part)
		}
	}
	return all
}

// damagedRows is the number of sets, each of 100 members, that a group of a damagedDisk has.
const damagedRows = 8

// damagedDisk is a disk with three groups and a damaged file that has sets of all of them.
type damagedDisk struct {
	*disk
	fs     vfs.FS
	groups []*Group
	blocks [][][]byte // of each group's sets before the damage
	states []State
}

func damagedDiskOf(t *testing.T, part int64) *damagedDisk {
	t.Helper()
	return damagedDiskOn(t, vfs.NewMem(), part)
}

func damagedDiskOn(t *testing.T, fs vfs.FS, part int64) *damagedDisk {
	t.Helper()
	d := &damagedDisk{disk: &disk{T: t, store: storeOf(t, fs)}, fs: fs}
	for number := range uint32(3) {
		g := d.open(number)
		d.to(g, joins(damagedRows, 100))
		s, b := copyOf(t, g)
		d.groups, d.states, d.blocks = append(d.groups, g), append(d.states, s), append(d.blocks, b)
	}
	d.compact()
	for i := range d.groups {
		d.to(d.groups[i], joins(101, 1)[100:]) // makes a compaction read the file
	}
	d.reopen(func() { flip(t, fs, d.store.cfg.Dir, part) })
	for tries := 0; d.store.Stats().Damaged == 0; tries++ { // Pebble may have found the damage already
		if tries == 1000 {
			t.Fatal("Pebble does not meet the damage")
		}
		if d.store.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false) == nil {
			break // a merge did not read the damaged part; the file is gone
		}
	}
	return d
}

// reopen closes the store, calls change, and opens the store and the groups again.
func (d *damagedDisk) reopen(change func()) {
	d.Helper()
	for _, g := range d.groups {
		g.Close()
	}
	_ = d.store.Close()
	change()
	d.store = storeOf(d.T, d.fs)
	for number := range d.groups {
		d.groups[number] = d.open(uint32(number))
	}
}

func (d *damagedDisk) close() {
	for _, g := range d.groups {
		g.Close()
	}
	_ = d.store.Close()
}

// to applies the next entry to a group.
func (d *damagedDisk) to(g *Group, ops []op) {
	d.Helper()
	if _, _, err := give(g, g.State(), g.State().Index+1, &entry{now: logTimeStart, ops: ops}); err != nil {
		d.Fatal(err)
	}
}

// repair replaces the sets of a group by those from before the damage.
func (d *damagedDisk) repair(i int) {
	d.Helper()
	l, err := d.groups[i].Load()
	if err != nil {
		d.Fatal(err)
	}
	for _, b := range d.blocks[i] {
		if err := l.Block(b); err != nil {
			d.Fatal(err)
		}
	}
	if err := l.Switch(d.states[i]); err != nil {
		d.Fatal(err)
	}
}

func testDamagedFile(t *testing.T, d *damagedDisk) {
	defer func() { d.close() }()
	want := make([]State, len(d.groups))
	for round := 0; ; round++ {
		broken := 0
		for i, g := range d.groups {
			suspect := g.TakeSuspicion()
			err := g.Verify()
			if err == nil {
				continue
			}
			if broken++; round == 0 && !suspect || !errors.Is(err, ErrDamaged) {
				t.Errorf("group %d, a suspect %v, is damaged: %v", i, suspect, err)
			}
			d.repair(i)
		}
		d.store.Discard()
		if broken == 0 {
			break
		}
		if round == 10 {
			t.Fatal("the sets are damaged again and again")
		}
	}
	for i, g := range d.groups {
		if want[i] = g.State(); want[i].Pairs < 100*damagedRows {
			t.Errorf("group %d has %d pairs", i, want[i].Pairs)
		}
	}
	for restarts := range 2 {
		if err := d.store.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
			t.Errorf("a compaction: %v", err)
		}
		for i, g := range d.groups {
			if err := g.Verify(); err != nil || g.State() != want[i] {
				t.Errorf("group %d: %+v, %v", i, g.State(), err)
			}
			d.to(g, []op{{kind: 'j', pair: Pair{Row: 200, Member: g.State().Index}}})
			want[i] = g.State()
		}
		if n := d.store.Stats().Damaged; n > 0 && restarts > 0 {
			t.Errorf("damage was met %d times after a restart", n)
		}
		d.reopen(func() {})
	}
}

// readable returns the number of sets that can be read. It fails the test unless all other reads
// return ErrDamaged.
func (d *damagedDisk) readable() (n int) {
	d.Helper()
	for _, g := range d.groups {
		for row := range uint64(damagedRows) {
			l, err := g.Members(row, 0, Page{Limit: 1000})
			switch {
			case err == nil && len(l.Entries) == 100:
				n++
			case !errors.Is(err, ErrDamaged):
				d.Fatalf("group %d: row %d has %d members: %v", g.number, row, len(l.Entries), err)
			}
		}
	}
	return n
}

// If it is not certain that another replica has the sets in a damaged file, the file stays. Then
//
//  1. the store serves the readable sets;
//  2. if the file becomes readable again, all sets are there.
func TestDamagedFileStays(t *testing.T) {
	refused := 0
	for _, part := range parts(1, 8) {
		d := damagedDiskOf(t, part)
		if d.store.Stats().Damaged == 0 { // the damage is gone (see damagedDiskOn)
			d.close()
			continue
		}
		before := d.readable()
		refused += 3*damagedRows - before
		d.store.Discard()
		if after := d.readable(); after != before {
			t.Errorf("%d/10: %d sets can be read, before there were %d", part, after, before)
		}
		d.reopen(func() { flip(t, d.fs, d.store.cfg.Dir, part) })
		for _, g := range d.groups {
			if err := g.Verify(); err != nil {
				t.Errorf("%d/10: %v", part, err)
			}
		}
		if n := d.readable(); n != 3*damagedRows {
			t.Errorf("%d/10: %d sets can be read", part, n)
		}
		d.close()
	}
	if refused == 0 && !testing.Short() {
		t.Error("all sets could be read")
	}
}

// After a crash between the removal of a damaged file and the Switch, the given-up group refuses
// all calls until its sets are replaced.
func TestCrashBehindDiscard(t *testing.T) {
	for _, part := range parts(2, 3) {
		d := damagedDiskOf(t, part)
		for _, g := range d.groups {
			if g.Verify() == nil && g.usable() == nil {
				continue
			}
			if _, err := g.Load(); err != nil {
				t.Fatal(err)
			}
		}
		d.reopen(func() {})
		if n := d.readable(); n == 3*damagedRows || n%damagedRows > 0 {
			t.Errorf("%d/10: %d sets can be read", part, n)
		}
		for i, g := range d.groups {
			if g.Adopts(1, d.states[i]) != nil {
				d.repair(i)
			}
			if err := g.Verify(); err != nil || g.usable() != nil {
				t.Errorf("%d/10: group %d: %v, %v", part, i, err, g.usable())
			}
		}
		if n := d.readable(); n != 3*damagedRows {
			t.Errorf("%d/10: %d sets can be read", part, n)
		}
		d.close()
	}
}

// A scrub finds damage in any part of a file.
func TestScrubReadsAllOfAFile(t *testing.T) {
	for part := int64(0); part < 9; part += 2 {
		fs := vfs.NewMem()
		d := &disk{T: t, store: storeOf(t, fs)}
		d.group = d.open(1)
		d.give(joins(100, 100)...)
		d.compact()
		d.group.Close()
		_ = d.store.Close()
		flip(t, fs, d.store.cfg.Dir, part)
		d.store = storeOf(t, fs)
		d.group = d.open(1)
		if err := d.group.Verify(); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d/10: %v", part, err)
		}
		d.group.Close()
		_ = d.store.Close()
	}
}

// If Readable fails to read the pairs of one row, it returns the error even if the next row can be
// read.
func TestReadableOfSeveralRows(t *testing.T) {
	t.Parallel()
	var fails atomic.Int64
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") && fails.Add(-1) == 0 {
			return errorfs.ErrInjected
		}
		return nil
	}))
	d := &disk{T: t, store: smallFilesOf(t, fs, io.Discard)}
	d.group = d.open(1)
	d.give(joins(50, 10)...)
	d.compact()
	d.group.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for nth, met := int64(1), true; met; nth++ {
		d.store = smallFilesOf(t, fs, io.Discard)
		d.group = d.open(1)
		d.store.filters.one.Lock() // no filter is filled meanwhile
		fails.Store(nth)
		err := d.group.Readable(nil, []uint64{3, 30})
		met = fails.Swap(0) <= 0
		d.store.filters.one.Unlock()
		if met != errors.Is(err, ErrDamaged) {
			t.Errorf("read %d of a file fails: %v, and Readable returns %v", nth, met, err)
		} else if met {
			failed++
		}
		d.group.Close()
		if err := d.store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if failed < 2 {
		t.Errorf("%d reads failed", failed)
	}
}
