package members

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Whichever read fails while a damaged file is removed, the files that Pebble cuts lose no pair.
// Either the damaged file stays, or the process ends before Pebble replaces the files.
func TestDiscardWithFailingReads(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	d := &disk{T: t, store: smallFilesOf(t, fs, io.Discard)}
	d.group = d.open(1)
	d.give(joins(8, 6)...)
	d.compact()
	d.give(joins(10, 8)...) // a file that overlaps all others
	d.flush()
	if err := d.group.Sync(); err != nil {
		t.Fatal(err)
	}
	d.group.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	ended := 0
	for nth, met := int64(1), true; met; nth++ {
		var fatal bool
		if met, fatal = discardFailing(t, fs, nth, d.at); fatal {
			ended++
		}
	}
	if ended == 0 {
		t.Error("no read failed while files were cut")
	}
}

// discardFailing removes a file in a copy of the store. Meanwhile the nth read of a table file
// fails. met reports whether there were so many reads, and fatal whether the store called Fatal.
func discardFailing(t *testing.T, fs vfs.FS, nth int64, want State) (met, fatal bool) {
	t.Helper()
	copied, left := vfs.NewMem(), vfs.NewMem()
	if _, err := vfs.Clone(fs, copied, "members", "members"); err != nil {
		t.Fatal(err)
	}
	var reads atomic.Int64
	d := &disk{T: t, store: smallFilesOf(t, errorfs.Wrap(copied, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") && reads.Add(-1) == 0 {
			return errorfs.ErrInjected
		}
		return nil
	})), io.Discard)}
	d.group = d.open(1)
	d.store.filters.one.Lock() // no filter is filled meanwhile
	ended, done := make(chan struct{}), make(chan struct{})
	d.store.cfg.Fatal = func(error) {
		if _, err := vfs.Clone(copied, left, "members", "members"); err != nil {
			t.Error(err)
		}
		close(ended)
		select {} // the process would have ended
	}
	levels, err := d.store.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	last := levels[len(levels)-1]
	f := last[len(last)/2]
	d.store.noteDamage(pebble.DataCorruptionInfo{
		Path: copied.PathJoin("members", f.BackingSSTNum.String()+".sst"), Bounds: pebble.KeyRange{Start: f.Smallest.UserKey, End: f.Largest.UserKey}.UserKeyBounds(), Details: errors.New("as if"),
	})
	go func() {
		defer close(done)
		reads.Store(nth)
		d.store.Discard()
	}()
	select {
	case <-done:
		met = reads.Swap(0) <= 0
		d.store.filters.one.Unlock()
		if !met && d.store.knowsDamage() {
			t.Error("the file stays although all can be read")
		}
	case <-ended: // the process has ended; open its files in the next one
		met, fatal = true, true
		d = &disk{T: t, store: smallFilesOf(t, left, io.Discard)}
		d.group = d.open(1)
	}
	if err := d.group.Verify(); err != nil || d.group.State() != want {
		t.Errorf("read %d fails: %+v, %v", nth, d.group.State(), err)
	}
	d.group.Close()
	_ = d.store.Close()
	return met, fatal
}

// If a reader finds damage in an uncut file while Pebble cuts others, the process does not end.
func TestDamageElsewhereBesideADiscard(t *testing.T) {
	t.Parallel()
	var store atomic.Pointer[Store]
	var elsewhere atomic.Pointer[pebble.DataCorruptionInfo]
	met := 0
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if s := store.Load(); s != nil && s.cutting.Load() != nil && op.Kind == errorfs.OpFileSync && strings.Contains(op.Path, manifestPrefix) {
			s.noteDamage(*elsewhere.Load())
			met++
		}
		return nil
	}))
	d := &disk{T: t, store: smallFilesOf(t, fs, io.Discard)} // its Fatal panics
	d.group = d.open(1)
	d.give(joins(8, 6)...)
	d.compact()
	d.give(joins(10, 8)...)
	d.flush()
	levels, err := d.store.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	damage := func(f pebble.SSTableInfo) pebble.DataCorruptionInfo {
		return pebble.DataCorruptionInfo{
			Path:    fs.PathJoin("members", f.BackingSSTNum.String()+".sst"),
			Bounds:  pebble.KeyRange{Start: f.Smallest.UserKey, End: f.Largest.UserKey}.UserKeyBounds(),
			Details: errors.New("as if"),
		}
	}
	last := levels[len(levels)-1]
	other := damage(last[0])
	elsewhere.Store(&other)
	d.store.noteDamage(damage(last[len(last)-1]))
	store.Store(d.store)
	d.store.Discard()
	store.Store(nil)
	if err := d.group.Verify(); err != nil || met == 0 || d.group.State() != d.at {
		t.Errorf("met %d times: %+v, %v", met, d.group.State(), err)
	}
	d.group.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
}

// If a merge has written a file just before Pebble cuts it, and the file cannot be read, none of
// its pairs is lost.
func TestDiscardBesideAMerge(t *testing.T) {
	t.Parallel()
	left, ended, done := vfs.NewMem(), make(chan struct{}), make(chan struct{})
	under := vfs.NewMem()
	var store atomic.Pointer[Store]
	var merging, merged atomic.Bool
	var listed atomic.Pointer[map[string]bool]
	d := &disk{T: t, store: smallFilesOf(t, errorfs.Wrap(under, errorfs.InjectorFunc(func(op errorfs.Op) error {
		s := store.Load()
		if s == nil {
			return nil
		}
		cutting := s.cutting.Load()
		if cutting != nil && op.Kind == errorfs.OpOpen && strings.HasSuffix(op.Path, rewrittenName) && !merging.Swap(true) {
			err := s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
			listed.Store(cutting)
			merged.Store(true)
			return err
		}
		if merged.Load() && op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") && !(*listed.Load())[op.Path] {
			return errorfs.ErrInjected
		}
		return nil
	})), io.Discard, func(o *pebble.Options) {
		for i := range o.TargetFileSizes {
			o.TargetFileSizes[i] = 1 << 20 // the merge writes one file
		}
	})}
	d.group = d.open(1)
	d.give(joins(8, 6)...)
	d.compact()
	d.give(joins(10, 8)...)
	d.flush()
	if err := d.group.Sync(); err != nil {
		t.Fatal(err)
	}
	d.store.filters.one.Lock() // no filter is filled meanwhile
	d.store.cfg.Fatal = func(error) {
		if _, err := vfs.Clone(under, left, "members", "members"); err != nil {
			t.Error(err)
		}
		close(ended)
		select {} // the process would have ended
	}
	in := prefix{1, d.group.Generation()}
	d.store.noteDamage(pebble.DataCorruptionInfo{
		Path: "members/none.sst", Bounds: pebble.KeyRange{Start: full(in.number(keyMember, 3)), End: full(in.number(keyMember, 4))}.UserKeyBounds(), Details: errors.New("as if"),
	})
	store.Store(d.store)
	go func() {
		defer close(done)
		d.store.Discard()
	}()
	select {
	case <-done:
		t.Error("the process goes on")
	case <-ended:
	}
	if !merged.Load() {
		t.Error("nothing was merged")
	}
	d.store = smallFilesOf(t, left, io.Discard)
	g := d.open(1)
	if err := g.Verify(); err != nil || g.State() != d.at {
		t.Errorf("%+v, %v; want %+v", g.State(), err, d.at)
	}
	g.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
}
