package members

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// manifestOf returns the path of the manifest of a closed store, and its size.
func manifestOf(t *testing.T, fs vfs.FS) (path string, size int64) {
	t.Helper()
	found, err := pebble.Peek("members", fs)
	if err != nil {
		t.Fatal(err)
	}
	info, err := fs.Stat(found.ManifestFilename)
	if err != nil {
		t.Fatal(err)
	}
	return found.ManifestFilename, info.Size()
}

// watchedFS calls look before each operation on disk. look may clone the disk.
func watchedFS(disk *vfs.MemFS, look errorfs.InjectorFunc) vfs.FS {
	return errorfs.Wrap(reusingFS{disk}, look)
}

// reusingFS replaces MemFS.ReuseForWrite by several calls. The original acquires its read lock
// twice, and deadlocks if a clone begins in between.
type reusingFS struct{ vfs.FS }

func (fs reusingFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Rename(old, name); err != nil {
		return nil, err
	}
	return fs.OpenReadWrite(name, category)
}

// Wherever a manifest is damaged, Open refuses the store, or the store has all pairs.
func TestDamagedManifest(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	d := &disk{T: t, store: storeOf(t, fs)}
	d.group = d.open(1)
	for range 4 { // each flush adds a record to the manifest, and removes the log of the flushed keys
		d.give(joins(2, 20+d.index)...)
		d.flush()
	}
	if err := errors.Join(d.group.Trim(d.index), d.group.Sync()); err != nil {
		t.Fatal(err)
	}
	named := d.at
	d.group.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	path, size := manifestOf(t, fs)
	change := func(at int64, to func(b []byte)) (refused bool) {
		t.Helper()
		copied := vfs.NewMem()
		if _, err := vfs.Clone(fs, copied, "members", "members"); err != nil {
			t.Fatal(err)
		}
		f, err := copied.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, size-at)
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		to(b)
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Dir: "members", FS: copied, MemoryBytes: MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
		if err != nil {
			return errors.Is(err, ErrDamaged)
		}
		defer s.Close()
		g, err := s.Group(1)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		if err := g.Adopts(g.Generation(), named); err != nil {
			return true
		}
		if err := g.Verify(); err != nil || g.State() != named {
			t.Errorf("byte %d of %d: the sets are read although they are %+v, %v", at, size, g.State(), err)
		}
		return false
	}
	step := size/100 + 1
	for at := int64(0); at < size; at += step {
		if !change(at, func(b []byte) { b[0] ^= 1 << (at % 8) }) {
			t.Errorf("byte %d of %d is changed, and the store is opened", at, size)
		}
		if !change(at, func(b []byte) { clear(b[:min(512, len(b))]) }) {
			t.Errorf("a sector from byte %d of %d is zero, and the store is opened", at, size)
		}
	}
	if change(size-1, func([]byte) {}) {
		t.Error("a store without damage is refused")
	}
}

// After a crash at any moment, Open does not refuse the manifest, whatever part of the unsynced
// data survives.
func TestManifestAfterCrashes(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	r := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex // guards r: Pebble also removes files in the background
	crash := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead || strings.HasSuffix(op.Path, ".sst") || strings.HasSuffix(op.Path, ".log") {
			return nil
		}
		mu.Lock()
		left := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
		mu.Unlock()
		if err := checkManifest(left, "members"); err != nil {
			t.Errorf("after a crash at %v: %v", op, err)
		}
		return nil
	})
	d := &disk{T: t}
	for range 3 {
		d.store = smallFilesOf(t, watchedFS(fs, crash), io.Discard, func(o *pebble.Options) {
			o.MaxManifestFileSize = 1000 // makes Pebble begin new manifests
		})
		d.group = d.open(1)
		for range 5 {
			d.give(joins(2, 20+d.index)...)
			d.flush()
			d.compact()
		}
		d.group.Close()
		if err := d.store.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// If a crash loses the name of a manifest, there must be no sum with that name, because the next
// manifest may get the name.
func TestSumsOfNamesThatLast(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	watched := watchedFS(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpRename && strings.HasSuffix(op.Path, sumName+".tmp") {
			left := fs.CrashClone(vfs.CrashCloneCfg{})
			if names, err := left.List("members"); err != nil || !slices.Contains(names, manifestPrefix+"000002") {
				t.Errorf("a sum is written while the disk has %v, %v", names, err)
			}
		}
		return nil
	}))
	if err := fs.MkdirAll("members", 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := fs.OpenDir("")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(root.Sync(), root.Close()); err != nil {
		t.Fatal(err)
	}
	f, err := summingFS{watched}.Create("members/"+manifestPrefix+"000002", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat("members/" + sumName); err != nil {
		t.Error(err)
	}
}

// Open accepts a store whose sum is missing or invalid.
func TestManifestWithoutSum(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	failing := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.Contains(op.Path, sumName) && op.Kind == errorfs.OpCreate {
			return errorfs.ErrInjected
		}
		return nil
	}))
	d := &disk{T: t, store: storeOf(t, failing)}
	d.group = d.open(1)
	d.give(joins(2, 20)...)
	d.flush()
	d.group.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat("members/" + sumName); err == nil {
		t.Fatal("there is a sum")
	}
	for _, b := range [][]byte{nil, {sumVersion}, make([]byte, 40)} {
		f, err := fs.Create("members/"+sumName, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Close(), checkManifest(fs, "members")); err != nil {
			t.Errorf("% x: %v", b, err)
		}
	}
	d.store = storeOf(t, fs)
	d.group = d.open(1)
	if err := d.group.Verify(); err != nil || d.group.State() != d.at {
		t.Errorf("%+v, %v", d.group.State(), err)
	}
	d.group.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
}

func FuzzParseSum(f *testing.F) {
	f.Add((&manifestSum{"MANIFEST-000001", 7, 9}).appendTo(nil))
	f.Add([]byte{sumVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, whole := parseSum(b); whole && string(s.appendTo(nil)) != string(b) {
			t.Errorf("% x is %+v", b, s)
		}
	})
}
