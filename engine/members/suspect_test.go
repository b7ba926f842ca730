package members

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// flip changes a byte in the largest table of a closed store, at a tenth of its size times part.
func flip(t *testing.T, fs vfs.FS, dir string, part int64) {
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
	f, err := fs.OpenReadWrite(fs.PathJoin(dir, largest), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, size*part/10); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, size*part/10); err != nil {
		t.Fatal(err)
	}
}

// copyOf returns the blocks of a group's sets.
func copyOf(t *testing.T, g *Group) (s State, blocks [][]byte) {
	t.Helper()
	v, err := g.OpenView(g.State())
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

// A damaged file is found without a read of a set: 1. a compaction that meets it makes
// suspects of the groups that it may concern, once; 2. a scrub tells which of them it does;
// 3. once their sets are replaced, no set is damaged any more, although the file is still there.
func TestDamagedFile(t *testing.T) {
	fs := vfs.NewMem()
	d := &disk{T: t, store: storeOf(t, fs)}
	var states []State
	var blocks [][][]byte
	groups := []*Group{d.open(0), d.open(1), d.open(2)}
	give := func(g *Group, index uint64, ops []op) {
		if _, _, err := give(g, g.State(), index, &entry{now: logTimeStart, ops: ops}); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range groups {
		give(g, 1, joins(100, 100))
		s, b := copyOf(t, g)
		states, blocks = append(states, s), append(blocks, b)
	}
	d.compact()
	for _, g := range groups {
		give(g, 2, joins(101, 1)[100:]) // what the damaged file is to be merged with
		g.Close()
	}
	_ = d.store.Close()
	flip(t, fs, d.store.cfg.Dir, 1)
	d.store = storeOf(t, fs)
	defer d.store.Close()
	for number := range groups {
		groups[number] = d.open(uint32(number))
	}
	for began := time.Now(); d.store.Stats().Damaged == 0; { // Pebble may have met it on its own
		_ = d.store.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
		if time.Since(began) > time.Minute {
			t.Fatal("a compaction does not meet the damage")
		}
	}
	suspects, broken := 0, 0
	for i, g := range groups {
		suspect := g.TakeSuspicion()
		if suspect {
			suspects++
		}
		if g.TakeSuspicion() {
			t.Error("a suspicion was taken, and is there again")
		}
		err := g.Verify()
		if err == nil {
			continue
		}
		if broken++; !suspect || !errors.Is(err, ErrDamaged) {
			t.Errorf("a group, a suspect %v, is damaged: %v", suspect, err)
		}
		l, err := g.Load()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks[i] {
			if err := l.Block(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Switch(states[i]); err != nil {
			t.Fatal(err)
		}
	}
	if broken == 0 || suspects < broken {
		t.Errorf("%d groups are damaged, %d are suspects", broken, suspects)
	}
	for _, g := range groups {
		if err := g.Verify(); err != nil {
			t.Error(err)
		}
		g.Close()
	}
}

// A scrub finds damage wherever it is in a file: in pairs, or in the filter of pairs behind them.
func TestScrubReadsAllOfAFile(t *testing.T) {
	for part := range int64(9) {
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
