package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
)

// snapHistory records which snapshots a random history began and finished.
type snapHistory struct {
	states map[string][]byte // contents by id, for every snapshot whose Close was called
	acked  snapName          // the highest name for which Close returned nil
}

// snapCrash is a disk after a crash.
type snapCrash struct {
	disk  *vfs.MemFS
	acked snapName
	names []string // the names that Sweep would have kept at that moment
	when  string
}

// crashFS calls hook before each change or sync of a file or directory on disk.
func crashFS(disk vfs.FS, hook func(op errorfs.Op) error) vfs.FS {
	return errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite || op.Kind == errorfs.OpOpenDir || op.Kind == errorfs.OpOpen {
			return hook(op)
		}
		return nil
	}))
}

// The store is on a file system that loses unsynced data.
//
// After a crash at any operation, and another crash while the store opens:
//
//  1. The store opens.
//
//  2. The newest snapshot is the last acknowledged one, or a newer one that was being finished.
//
//  3. Its state is intact.
//
//  4. Names listed it at the moment of the crash, so its cold rows still exist.
//
//  5. No unfinished file is left, and at most snapshotsKept finished files.
//
//  6. The next snapshot of the same entry becomes the newest, and stays so after a restart.
func TestSnapshotCrashes(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			disk := vfs.NewCrashableMem()
			h := &snapHistory{states: map[string][]byte{}}
			var crashes []snapCrash
			var s *Snapshots
			fs := crashFS(disk, func(op errorfs.Op) error {
				c := snapCrash{acked: h.acked, when: fmt.Sprintf("at %v of %s", op.Kind, op.Path)}
				c.disk = disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * random.IntN(3), RNG: random})
				if s != nil {
					c.names, _ = s.Names()
				}
				crashes = append(crashes, c)
				return nil
			})
			var err error
			s, err = openSnapshots(fs, "", 7, hclog.NewNullLogger(), noFatal(t))
			mustDo(t, err)
			h.run(t, random, s)
			if len(crashes) < 50 {
				t.Fatalf("only %d crashes", len(crashes))
			}
			for _, c := range crashes {
				h.check(t, random, c, true)
			}
		})
	}
}

// run writes snapshots, some of them concurrently.
func (h *snapHistory) run(t *testing.T, random *rand.Rand, s *Snapshots) {
	t.Helper()
	type open struct {
		raft.SnapshotSink
		name  snapName
		state []byte
	}
	var sinks []open
	index := uint64(10)
	for range 60 {
		switch n := random.IntN(10); {
		case n < 3 && len(sinks) < 3:
			index += uint64(random.IntN(3)) // 0 makes a snapshot with the same log index as the previous one
			at := index
			if random.IntN(5) == 0 { // a snapshot that a leader sent: its index may be lower
				at -= uint64(random.IntN(4))
			}
			sink, err := s.Create(1, at, 2, testServers, 1, nil)
			mustDo(t, err)
			name, err := parseSnapName(sink.ID())
			mustDo(t, err)
			sinks = append(sinks, open{sink, name, nil})
		case n < 7 && len(sinks) > 0:
			k := &sinks[random.IntN(len(sinks))]
			piece := bytes.Repeat([]byte{byte(random.Uint32())}, random.IntN(100<<10))
			k.state = append(k.state, piece...)
			_, err := k.Write(piece)
			mustDo(t, err)
		case len(sinks) > 0:
			i := random.IntN(len(sinks))
			k := sinks[i]
			sinks = slices.Delete(sinks, i, i+1)
			if n == 7 {
				mustDo(t, k.Cancel())
				continue
			}
			h.states[k.ID()] = k.state
			mustDo(t, k.Close())
			if h.acked.compare(k.name) < 0 {
				h.acked = k.name
			}
		}
	}
}

func (h *snapHistory) check(t *testing.T, random *rand.Rand, c snapCrash, again bool) {
	t.Helper()
	var second []snapCrash
	fs := crashFS(c.disk, func(op errorfs.Op) error {
		if again {
			later := c
			later.when += fmt.Sprintf(", then at %v of %s", op.Kind, op.Path)
			later.disk = c.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * random.IntN(3), RNG: random})
			second = append(second, later)
		}
		return nil
	})
	s, err := openSnapshots(fs, "", 7, hclog.NewNullLogger(), noFatal(t))
	if err != nil {
		t.Fatalf("crash %s: %v", c.when, err)
	}
	metas, err := s.List()
	mustDo(t, err)
	var newest snapName
	if len(metas) > 0 {
		newest, err = parseSnapName(metas[0].ID)
		mustDo(t, err)
		if _, state, err := readSnapshot(s, metas[0].ID); err != nil || state != string(h.states[metas[0].ID]) {
			t.Fatalf("crash %s: %s has %d bytes, %v", c.when, metas[0].ID, len(state), err)
		}
		if !slices.Contains(c.names, metas[0].ID) {
			t.Fatalf("crash %s: %s is the newest, and its cold rows are not kept: %v", c.when, metas[0].ID, c.names)
		}
	}
	if newest.compare(c.acked) < 0 {
		t.Fatalf("crash %s: the newest is %v, %v was acknowledged", c.when, newest, c.acked)
	}
	files, err := c.disk.List(snapshotsDir)
	if err != nil || len(files) > snapshotsKept || slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, snapTmpSuffix) }) {
		t.Fatalf("crash %s: files %v, %v", c.when, files, err)
	}
	again = false
	for _, c := range second {
		h.check(t, random, c, false)
	}
	id := mustSnapshot(t, s, max(newest.index, 1), "next")
	if !s.IsNewest(id) {
		t.Fatalf("crash %s: %s is not the newest after %v", c.when, id, newest)
	}
	s, err = openSnapshots(c.disk.CrashClone(vfs.CrashCloneCfg{}), "", 7, hclog.NewNullLogger(), noFatal(t))
	if err != nil || !s.IsNewest(id) {
		t.Fatalf("crash %s: opened again with %v, newest %v", c.when, err, s.newest.Load())
	}
}

// Only the process is killed, at any operation, and the next process opens the store. From then on,
// the newest snapshot must survive a crash of the machine, because the replica may delete the log
// before the snapshot.
func TestSnapshotKilled(t *testing.T) {
	newestAfterRename := 0
	for at := 0; ; at++ {
		disk, ops := vfs.NewCrashableMem(), 0
		fs := crashFS(disk, func(errorfs.Op) error {
			if ops++; ops > at {
				return syscall.EIO
			}
			return nil
		})
		killed := NewFailStop(func(error) {}, func(error) {})
		s, err := openSnapshots(fs, "", 7, hclog.NewNullLogger(), killed)
		for index := uint64(10); index < 14 && err == nil; index++ {
			var sink raft.SnapshotSink
			if sink, err = s.Create(1, index, 2, testServers, 1, nil); err == nil {
				err = sink.Close()
			}
		}
		whole := err == nil
		if s, err = openSnapshots(disk, "", 7, hclog.NewNullLogger(), noFatal(t)); err != nil {
			t.Fatalf("killed at operation %d: %v", at, err)
		}
		later, err := openSnapshots(disk.CrashClone(vfs.CrashCloneCfg{}), "", 7, hclog.NewNullLogger(), noFatal(t))
		if err != nil || later.NewestIndex() != s.NewestIndex() {
			t.Fatalf("killed at operation %d: found the snapshot of %d, then of %d, %v", at, s.NewestIndex(), later.NewestIndex(), err)
		}
		if s.NewestIndex() > 0 {
			newestAfterRename++
		}
		if whole {
			break
		}
	}
	if newestAfterRename < 20 {
		t.Errorf("a snapshot was found after %d kills only", newestAfterRename)
	}
}

// Any one operation fails once. A transient error leaves the store unchanged, and the next
// snapshot succeeds. Any other write error stops the group. In both cases the newest snapshot is
// intact, and no file descriptor stays open.
func TestSnapshotErrors(t *testing.T) {
	for _, injected := range []error{syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.EDQUOT, syscall.EIO} {
		passes := !errors.Is(injected, syscall.EIO)
		failedOnce := true
		for at := 0; failedOnce; at++ {
			disk := vfs.NewCrashableMem()
			failedOnce = false
			count, armed := 0, false
			var failed errorfs.OpKind
			files := &openFiles{FS: disk}
			fs := errorfs.Wrap(files, errorfs.InjectorFunc(func(op errorfs.Op) error {
				hit := armed && !failedOnce && op.Kind.ReadOrWrite() == errorfs.OpIsWrite || armed && op.Kind == errorfs.OpOpenDir
				if !hit || op.Kind == errorfs.OpFileSync && !strings.HasSuffix(op.Path, snapTmpSuffix) && passes {
					return nil // a failed sync of a directory is never transient
				}
				if count++; count == at+1 {
					failedOnce, failed = true, op.Kind
					return injected
				}
				return nil
			}))
			stop, told := countFatal(t)
			s, err := openSnapshots(fs, "", 7, hclog.NewNullLogger(), stop)
			mustDo(t, err)
			mustSnapshot(t, s, 9, "replaced")
			mustSnapshot(t, s, 10, "first")
			armed = true
			sink, err := s.Create(1, 11, 2, testServers, 1, nil)
			if err == nil {
				_, err = sink.Write(bytes.Repeat([]byte("second"), 100<<10))
				if err == nil {
					err = sink.Close()
				}
				mustDo(t, sink.Cancel())
			}
			if !failedOnce {
				break
			}
			removal := failed == errorfs.OpRemove
			if (err == nil) != removal || err != nil && !errors.Is(err, injected) {
				t.Fatalf("%v at %v: %v", injected, failed, err)
			}
			if fails := *told > 0; fails != (!passes && !removal) {
				t.Fatalf("%v at %v: the group failed %d times", injected, failed, *told)
			}
			if files.open != 0 {
				t.Fatalf("%v at %v: %d files are open", injected, failed, files.open)
			}
			if passes || removal {
				mustSnapshot(t, s, 12, "third")
			}
			s, err = openSnapshots(disk.CrashClone(vfs.CrashCloneCfg{}), "", 7, hclog.NewNullLogger(), noFatal(t))
			if index, _ := s.Newest(); err != nil || index < 10 || index < 12 && passes {
				t.Fatalf("%v at %v: opened with %v, newest %d", injected, failed, err, index)
			}
		}
	}
}

// lateFS renames a file durably and returns an error nevertheless.
type lateFS struct {
	vfs.FS
	err error
}

func (f *lateFS) Rename(from, to string) error {
	if err := f.FS.Rename(from, to); err != nil || f.err == nil {
		return err
	}
	d, err := f.FS.OpenDir(f.FS.PathDir(to))
	if err != nil {
		return err
	}
	return errors.Join(f.err, d.Sync(), d.Close())
}

// A rename is on disk although it returned a transient error. After a crash, the store finds no
// snapshot whose cold rows may have been removed, and the next snapshot succeeds.
func TestRenameThatFails(t *testing.T) {
	for _, injected := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		disk := vfs.NewCrashableMem()
		fs := &lateFS{FS: disk}
		s, err := openSnapshots(fs, "", 7, hclog.NewNullLogger(), noFatal(t))
		mustDo(t, err)
		mustSnapshot(t, s, 10, "first")
		fs.err = injected
		sink, err := s.Create(1, 11, 2, testServers, 1, nil)
		mustDo(t, err)
		if err := sink.Close(); !errors.Is(err, injected) {
			t.Fatalf("finished with %v", err)
		}
		names, err := s.Names()
		mustDo(t, err)
		later, err := openSnapshots(disk.CrashClone(vfs.CrashCloneCfg{}), "", 7, hclog.NewNullLogger(), noFatal(t))
		mustDo(t, err)
		if newest := later.newest.Load(); newest == nil || !slices.Contains(names, newest.ID) {
			t.Errorf("%v: the newest is %+v after a crash, and the cold rows of %v are kept", injected, newest, names)
		}
		fs.err = nil
		mustSnapshot(t, s, 11, "second")
	}
}

// openFiles counts the open files.
type openFiles struct {
	vfs.FS
	open int
}

type countedFile struct {
	vfs.File
	fs *openFiles
}

func (f countedFile) Close() error {
	f.fs.open--
	return f.File.Close()
}

func (f *openFiles) count(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	f.open++
	return countedFile{file, f}, nil
}

func (f *openFiles) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.count(f.FS.Create(name, c))
}
func (f *openFiles) OpenDir(name string) (vfs.File, error) { return f.count(f.FS.OpenDir(name)) }
func (f *openFiles) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.count(f.FS.Open(name, opts...))
}

// If no file descriptor is free, Open waits for one. Interrupt ends the wait.
func TestOpenWaitsForAFileDescriptor(t *testing.T) {
	left := 1
	var fs vfs.FS = vfs.NewMem()
	fs = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen && left > 0 {
			left--
			return syscall.EMFILE
		}
		return nil
	}))
	s, err := openSnapshots(fs, "", 7, hclog.NewNullLogger(), noFatal(t))
	mustDo(t, err)
	id := mustSnapshot(t, s, 10, "state")
	if _, state, err := readSnapshot(s, id); err != nil || state != "state" || left != 0 {
		t.Errorf("opened %q, %v", state, err)
	}
	left = 1 << 30
	opened := make(chan error)
	go func() {
		_, _, err := s.Open(id)
		opened <- err
	}()
	s.stop.Disarm() // as a caller that closes the group does
	s.stop.Interrupt()
	if err := <-opened; !errors.Is(err, errs.ErrGroupClosed) {
		t.Errorf("opened with %v", err)
	}
}

// Interrupt ends running writes and reads, and stops nothing else.
func TestInterrupt(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s, err := openSnapshots(disk, "", 7, hclog.NewNullLogger(), noFatal(t))
	mustDo(t, err)
	id := mustSnapshot(t, s, 10, strings.Repeat("state", 1<<20))
	_, state, err := s.Open(id)
	mustDo(t, err)
	sink, err := s.Create(1, 11, 2, testServers, 1, nil)
	mustDo(t, err)
	closing, err := s.Create(1, 12, 2, testServers, 1, nil)
	mustDo(t, err)
	s.stop.Interrupt()
	s.stop.Interrupt()
	if _, err := sink.Write([]byte("more")); !errors.Is(err, errs.ErrGroupClosed) {
		t.Errorf("written with %v", err)
	}
	mustDo(t, sink.Cancel())
	if err := closing.Close(); !errors.Is(err, errs.ErrGroupClosed) {
		t.Errorf("finished with %v", err)
	}
	if _, err := io.Copy(io.Discard, state); !errors.Is(err, errs.ErrGroupClosed) {
		t.Errorf("read with %v", err)
	}
	mustDo(t, state.Close())
	if files, err := disk.List(snapshotsDir); err != nil || len(files) != 1 {
		t.Errorf("files %v, %v", files, err)
	}
}

// The store refuses the newest snapshot if its file has a changed byte, is truncated, or is too
// long.
func TestDamagedSnapshotFile(t *testing.T) {
	disk := vfs.NewMem()
	s, err := openSnapshots(disk, "", 7, hclog.NewNullLogger(), noFatal(t))
	mustDo(t, err)
	mustSnapshot(t, s, 9, "before")
	id := mustSnapshot(t, s, 10, "state")
	path := snapshotsDir + "/" + id + snapSuffix
	file, err := disk.Open(path)
	mustDo(t, err)
	whole, err := io.ReadAll(file)
	mustDo(t, errors.Join(err, file.Close()))
	check := func(what string, content []byte) {
		t.Helper()
		file, err := disk.Create(path, vfs.WriteCategoryUnspecified)
		mustDo(t, err)
		_, err = file.Write(content)
		mustDo(t, errors.Join(err, file.Close()))
		s, err := openSnapshots(disk, "", 7, hclog.NewNullLogger(), NewFailStop(func(error) {}, func(error) {}))
		if err == nil {
			_, _, err = s.Open(id)
		}
		if !errors.Is(err, ErrDamaged) {
			t.Fatalf("%s: opened with %v", what, err)
		}
		if files, err := disk.List(snapshotsDir); err != nil || len(files) != 2 {
			t.Fatalf("%s: files %v, %v", what, files, err)
		}
	}
	for i := range whole {
		changed := slices.Clone(whole)
		changed[i] ^= 1 << (i % 8)
		check(fmt.Sprint("byte ", i), changed)
		check(fmt.Sprint("cut at ", i), whole[:i])
	}
	check("longer", append(slices.Clone(whole), 0))
}

// An open reader can read its snapshot, however many newer ones finish. A reader that has only the
// name cannot.
func TestReaderOfAReplacedSnapshot(t *testing.T) {
	s := mustOpenSnaps(t, t.TempDir())
	first := mustSnapshot(t, s, 10, strings.Repeat("state", 1<<20))
	_, state, err := s.Open(first)
	mustDo(t, err)
	for range 3 {
		mustSnapshot(t, s, 10, "newer")
	}
	if n, err := io.Copy(io.Discard, state); err != nil || n != 5<<20 {
		t.Errorf("read %d bytes, %v", n, err)
	}
	mustDo(t, state.Close())
	if _, _, err := s.Open(first); err == nil || s.stop.Failure() != nil {
		t.Errorf("opened with %v, the group failed with %v", err, s.stop.Failure())
	}
}
