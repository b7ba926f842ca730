package raftstore

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// watchedFS calls hook before each change of a file or a directory, and before each sync. An error
// of hook fails the operation.
type watchedFS struct {
	vfs.FS
	hook func(op change) error

	mu   sync.Mutex
	open map[string]*watchedFile // open files, by path; a rename changes the path
}

// newDisk returns a disk with an empty directory for a log.
func newDisk() *vfs.MemFS {
	disk := vfs.NewCrashableMem()
	if err := disk.MkdirAll("node", 0o700); err != nil {
		panic(err)
	}
	root, err := disk.OpenDir("/")
	if err != nil {
		panic(err)
	}
	if err := errors.Join(root.Sync(), root.Close()); err != nil {
		panic(err)
	}
	return disk
}

func (f *watchedFS) watch(file vfs.File, name string) *watchedFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &watchedFile{File: file, fs: f}
	w.path.Store(&name)
	if f.open == nil {
		f.open = map[string]*watchedFile{}
	}
	f.open[name] = w
	return w
}

// change is an operation that is about to happen to a file.
type change struct {
	kind string // write, sync, rename, remove, create
	path string
	data []byte
	at   int64
}

func (f *watchedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := f.hook(change{kind: "create", path: name}); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	if err != nil {
		return nil, err
	}
	return f.watch(file, name), nil
}

func (f *watchedFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return f.watch(file, name), nil
}

func (f *watchedFS) Rename(from, to string) error {
	if err := f.hook(change{kind: "rename", path: from}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.open[from]; w != nil {
		f.open[to] = w
		w.path.Store(&to)
	}
	return f.FS.Rename(from, to)
}

func (f *watchedFS) Remove(name string) error {
	if err := f.hook(change{kind: "remove", path: name}); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

type watchedFile struct {
	vfs.File
	fs   *watchedFS
	path atomic.Pointer[string]
}

func (f *watchedFile) WriteAt(p []byte, at int64) (int, error) {
	if err := f.fs.hook(change{kind: "write", path: *f.path.Load(), data: p, at: at}); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, at)
}

func (f *watchedFile) Sync() error {
	if err := f.fs.hook(change{kind: "sync", path: *f.path.Load()}); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *watchedFile) SyncData() error {
	if err := f.fs.hook(change{kind: "sync", path: *f.path.Load()}); err != nil {
		return err
	}
	return f.File.SyncData()
}

// tear returns the contents of a disk after a crash during a write: everything synced, and any
// sectors of the write.
func tear(disk *vfs.MemFS, c change, random *rand.Rand) *vfs.MemFS {
	after := disk.CrashClone(vfs.CrashCloneCfg{})
	if _, err := after.Stat(c.path); err != nil {
		return after // the file's name is not on disk yet
	}
	file, err := after.OpenReadWrite(c.path, vfsCategory)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	for at := 0; at < len(c.data); at += sectorBytes {
		if random.IntN(2) == 0 {
			if _, err := file.WriteAt(c.data[at:min(at+sectorBytes, len(c.data))], c.at+int64(at)); err != nil {
				panic(err)
			}
		}
	}
	if err := file.Sync(); err != nil {
		panic(err)
	}
	return after
}

// brokenFS lets a number of changes succeed, and fails all later ones.
type brokenFS struct {
	mu    sync.Mutex
	after int    // changes that still succeed
	only  string // the kind that fails; any if empty
	err   error
	count int
}

var errNoSpace = errors.New("no space left on device")

func (b *brokenFS) hook(c change) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.only != "" && c.kind != b.only || strings.HasSuffix(c.path, "LOCK") {
		return nil
	}
	if b.count++; b.count <= b.after {
		return nil
	}
	return b.err
}

func (b *brokenFS) heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = nil
}
