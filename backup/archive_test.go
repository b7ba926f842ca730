package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/countd/countd/internal/must"
)

// stored returns a world whose archive has a backup, and its name.
func stored(t *testing.T) (*world, *Archive, *Saved) {
	t.Helper()
	w := newWorld(2)
	_, err := CreateArchive(t.Context(), w.target, w.cluster.id, nil)
	must.Do(t, err)
	a, err := w.archive(w.target)
	must.Do(t, err)
	s, err := w.backup(w.target)()
	must.Do(t, err)
	return w, a, s
}

// A byte of an archive that is another, or missing, is found before a byte of the backup is used, or it changes nothing.
func TestDamageIsFound(t *testing.T) {
	w, a, _ := stored(t)
	w.target = newMemTarget()
	small := newMemCluster(2)
	small.states[1], small.states[2] = noise(1, 400), noise(2, 90)
	_, err := CreateArchive(t.Context(), w.target, small.id, nil)
	must.Do(t, err)
	a.target = w.target
	saved, err := a.Backup(t.Context(), small, Report{})
	must.Do(t, err)
	read := func(target Target) error {
		a, err := w.archive(target)
		if err != nil {
			return err
		}
		b, err := a.Open(t.Context(), saved.Name)
		if err != nil {
			return err
		}
		if _, err := a.Verifier().Verify(t.Context(), b.Manifest); err != nil {
			return err
		}
		for _, f := range b.Keyspaces[0].Files {
			if err := b.Check(t.Context(), &f); err != nil {
				return err
			}
		}
		return nil
	}
	must.Do(t, read(w.target))
	for name, body := range w.target.copied() {
		for at := range body {
			for what, changed := range map[string][]byte{"flipped": must.Flipped(body, at), "cut": body[:at]} {
				must.Do(t, w.target.Put(t.Context(), name, changed))
				if err := read(w.target); err == nil && !strings.HasPrefix(name, chunksDir) {
					t.Fatalf("%s: byte %d %s: no error", name, at, what)
				} else if err != nil && !errors.Is(err, ErrIncomplete) && name != archiveFile {
					t.Fatalf("%s: byte %d %s: %v", name, at, what, err)
				}
			}
		}
		must.Do(t, w.target.Delete(t.Context(), name))
		if err := read(w.target); err == nil {
			t.Errorf("%s is missing: no error", name)
		}
		must.Do(t, w.target.Put(t.Context(), name, body))
	}
	must.Do(t, read(w.target))
}

// A second backup stores what changed, and a third one of the same state nothing but its manifest.
func TestBackupsShareChunks(t *testing.T) {
	w, a, first := stored(t)
	time.Sleep(1100 * time.Millisecond) // names are ordered by the second
	w.cluster.states[1] = must.Flipped(w.cluster.states[1], 3000)
	second, err := w.backup(w.target)()
	must.Do(t, err)
	third, err := w.backup(w.target)()
	must.Do(t, err)
	if first.Chunks < 20 || second.Chunks < 1 || second.Chunks > 3 || third.Chunks != 0 {
		t.Errorf("%d chunks, then %d and %d", first.Chunks, second.Chunks, third.Chunks)
	}
	must.Do(t, w.check())
	v := a.Verifier()
	all, err := v.Verify(t.Context(), first.Manifest)
	must.Do(t, err)
	if few, err := v.Verify(t.Context(), second.Manifest); err != nil || all != first.Chunks || few != second.Chunks {
		t.Errorf("read %d chunks, then %d, %v", all, few, err)
	}
	// A chunk that was lost is stored again, if the cluster still has it.
	lost := third.Manifest.Keyspaces[0].Files[0].Chunks[0].SHA256
	must.Do(t, w.target.Delete(t.Context(), chunkPath(lost)))
	if err := a.CheckThere(t.Context(), first.Manifest); !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), lost) {
		t.Errorf("a lost chunk: %v", err)
	}
	fourth, err := w.backup(w.target)()
	if err != nil || fourth.Chunks != 1 {
		t.Errorf("stored %+v, %v", fourth, err)
	}
	must.Do(t, w.check())
}

// An archive is that of one cluster.
func TestArchivesHaveOneCluster(t *testing.T) {
	w, a, saved := stored(t)
	other := strings.Repeat("d2", 16)
	if _, err := CreateArchive(t.Context(), w.target, other, nil); !errors.Is(err, ErrOtherCluster) || !strings.Contains(err.Error(), other) || !strings.Contains(err.Error(), w.cluster.id) {
		t.Errorf("an archive of another cluster: %v", err)
	}
	w.cluster.id = other
	c := newMemCluster(1)
	c.id = other
	if _, err := a.Backup(t.Context(), c, Report{}); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("a backup of another cluster: %v", err)
	}
	// Two clusters that create an archive at once may both store a backup. No sweep then deletes chunks.
	text, err := archiveBody{archiveFormat, other, false}.text()
	must.Do(t, err)
	must.Do(t, w.target.Put(t.Context(), archiveFile, text))
	b, err := w.archive(w.target)
	must.Do(t, err)
	if _, err := b.Open(t.Context(), saved.Name); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("a manifest of another cluster: %v", err)
	}
	if _, err := b.Prune(t.Context(), Keep{Hours: 1}, ""); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("a sweep past a manifest of another cluster: %v", err)
	}
}

// No archive is created beside something else, and none is opened where there is none.
func TestArchivesAreCreatedInEmptyTargets(t *testing.T) {
	m := newMemTarget()
	if _, err := OpenArchive(t.Context(), m, nil); !errors.Is(err, ErrNoArchive) {
		t.Errorf("opened nothing: %v", err)
	}
	must.Do(t, m.Put(t.Context(), "thesis.txt", []byte("x")))
	if _, err := CreateArchive(t.Context(), m, "c", nil); err == nil || !strings.Contains(err.Error(), "it has thesis.txt") {
		t.Errorf("created beside something: %v", err)
	}
	for _, text := range []string{"", "{}", `{"format":"countd archive 2","cluster_id":"c"}`, `{"format":"countd archive 1","cluster_id":"c"}`, "{\"format\":\"countd archive 1\",\"cluster_id\":\"c\"}\n\n"} {
		must.Do(t, m.Put(t.Context(), archiveFile, []byte(text)))
		if _, err := OpenArchive(t.Context(), m, nil); err == nil {
			t.Errorf("opened %q", text)
		}
	}
}

func TestBackupsAreFoundByName(t *testing.T) {
	w, a, saved := stored(t)
	second, err := w.backup(w.target)()
	must.Do(t, err)
	names := []string{saved.Name, second.Name}
	slices.Sort(names)
	for prefix, want := range map[string]string{
		Latest: names[1], saved.Name: saved.Name, second.Name[:len(second.Name)-1]: second.Name, "": "", "2": "", "x": "", saved.Name + "0": "",
	} {
		if got, err := a.Find(t.Context(), prefix); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", prefix, got, err, want)
		}
	}
}

// A retention keeps the newest backup of each of the latest periods that have one, and the two newest.
func TestKeep(t *testing.T) {
	at := func(text string) time.Time {
		t.Helper()
		got, err := time.Parse("Mon 2 Jan 2006 15:04", text)
		must.Do(t, err)
		return got
	}
	begun := []time.Time{ // the newest first
		at("Mon 30 Nov 2026 12:50"), at("Mon 30 Nov 2026 12:10"), at("Mon 30 Nov 2026 11:59"), at("Mon 30 Nov 2026 00:00"),
		at("Sun 29 Nov 2026 23:59"), at("Fri 27 Nov 2026 08:00"), at("Thu 26 Nov 2026 08:00"), at("Sun 22 Nov 2026 08:00"), at("Wed 1 Jul 2026 08:00"),
	}
	for text, want := range map[string][]int{
		"hours=1":                {0, 1},
		"hours=2":                {0, 1, 2},
		"hours=4":                {0, 1, 2, 3, 4},
		"days=3":                 {0, 1, 4, 5},
		"weeks=2":                {0, 1, 4},
		"weeks=4":                {0, 1, 4, 7, 8},
		"hours=2,days=2,weeks=3": {0, 1, 2, 4, 7},
		"hours=10000":            {0, 1, 2, 3, 4, 5, 6, 7, 8},
	} {
		keep, err := ParseKeep(text)
		must.Do(t, err)
		var got []int
		for i, stays := range keep.kept(begun) {
			if stays {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s keeps %v, want %v", text, got, want)
		}
		if again, err := ParseKeep(keep.String()); err != nil || again != keep {
			t.Errorf("%s became %s, %v", keep, again, err)
		}
	}
	if all, err := ParseKeep("0"); err != nil || all != (Keep{}) || all.String() != "0" {
		t.Errorf("0 is %v, %v", all, err)
	}
	for _, bad := range []string{"", "hours", "hours=", "hours=-1", "hours=10001", "hours=1,hours=2", "years=1", "hours=1;days=2", "hours=1,", "hours=0", "hours=0,days=0,weeks=0", "0,0"} {
		if keep, err := ParseKeep(bad); err == nil || !strings.Contains(err.Error(), "from 0 to 10000") {
			t.Errorf("%q is %v, %v", bad, keep, err)
		}
	}
}

// A sweep passes over backups that are damaged, so that none takes the place of a good one.
func TestPruneCountsGoodBackups(t *testing.T) {
	w, a, _ := stored(t)
	now := time.Now()
	var saved []*Saved
	for day := range 4 {
		b, err := w.archive(w.target)
		must.Do(t, err)
		b.now = func() time.Time { return now.Add(time.Duration(day+1) * 24 * time.Hour) }
		c := newMemCluster(1)
		c.states[1] = noise(uint64(day), 3000)
		s, err := b.Backup(t.Context(), c, Report{})
		must.Do(t, err)
		saved = append(saved, s)
	}
	a.now = func() time.Time { return now.Add(5 * 24 * time.Hour) }
	lacks := saved[3].Manifest.Keyspaces[0].Files[0].Chunks[0].SHA256
	must.Do(t, w.target.Delete(t.Context(), chunkPath(lacks)))
	pruned, err := a.Prune(t.Context(), Keep{Hours: 1}, "")
	must.Do(t, err)
	list, err := a.List(t.Context())
	must.Do(t, err)
	if len(pruned.Backups) != 2 || pruned.Chunks == 0 || pruned.Kept != 3 || len(list) != 3 || list[0].Name != saved[1].Name {
		t.Errorf("pruned %+v, left %d", pruned, len(list))
	}
	must.Do(t, w.target.Put(t.Context(), manifestPath(saved[1].Name), []byte("{}")))
	before := len(w.target.copied())
	if _, err := a.Prune(t.Context(), Keep{Hours: 1}, ""); err == nil || !strings.Contains(err.Error(), saved[1].Name) || len(w.target.copied()) != before {
		t.Errorf("a manifest that cannot be read: %v", err)
	}
}

func FuzzOpenManifest(f *testing.F) {
	w := newWorld(1)
	c := newMemCluster(1)
	c.states[1] = []byte("state")
	_, err := CreateArchive(f.Context(), w.target, c.id, nil)
	must.Do(f, err)
	a, err := w.archive(w.target)
	must.Do(f, err)
	saved, err := a.Backup(f.Context(), c, Report{})
	must.Do(f, err)
	text, err := w.target.Get(f.Context(), manifestPath(saved.Name))
	must.Do(f, err)
	f.Add(text)
	f.Add([]byte(manifestHead + manifestMiddle + "{}" + manifestTail))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := openManifest(text)
		if err != nil {
			if !errors.Is(err, ErrIncomplete) {
				t.Errorf("the error is %v", err)
			}
			return
		}
		for chunk := range m.chunks {
			if !fs.ValidPath(chunkPath(chunk)) {
				t.Fatalf("a chunk that lies elsewhere: %q", chunk)
			}
		}
		if again, err := appendManifest(nil, m); err != nil {
			t.Errorf("it cannot be written: %v", err)
		} else if _, err := openManifest(again); err != nil {
			t.Errorf("%q was written as %q: %v", text, bytes.TrimSpace(again), err)
		}
	})
}

// damage flips a byte of the stored bytes of a chunk.
func (w *world) damage(chunk string) error {
	body, err := w.target.Get(w.ctx(), chunkPath(chunk))
	if err != nil {
		return err
	}
	return w.target.Put(w.ctx(), chunkPath(chunk), must.Flipped(body, len(body)-1))
}

// A checked backup that reuses damaged chunks is deleted and stored again with them, so that the archive heals.
func TestACheckedBackupHealsDamage(t *testing.T) {
	for name, check := range map[string]func(context.Context, *Backup) error{
		"all chunks": nil,
		"a restore": func(ctx context.Context, b *Backup) error {
			for _, f := range b.Keyspaces[0].Files {
				if err := b.Check(ctx, &f); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		w, _, first := stored(t)
		chunks := first.Manifest.Keyspaces[0].Files[0].Chunks
		for _, at := range []int{0, 6, 12} { // a restore finds one at a time
			must.Do(t, w.damage(chunks[at].SHA256))
		}
		a, err := w.archive(w.target)
		must.Do(t, err)
		w.cluster.index = 1
		var said []string
		report := Report{Say: func(text string) { said = append(said, text) }}
		saved, err := a.BackupChecked(t.Context(), w.cluster, report, check)
		must.Do(t, err)
		list, err := a.List(t.Context())
		if err != nil || len(list) != 2 || len(said) != 1 || !strings.Contains(said[0], "is damaged") {
			t.Fatalf("%s: %d backups, %v; it said %q", name, len(list), err, said)
		}
		for _, e := range list {
			if _, err := a.Verifier().Verify(t.Context(), e.Manifest); err != nil {
				t.Errorf("%s: backup %s after %s: %v", name, e.Name, saved.Name, err)
			}
		}
		// If all checks fail, no manifest is left.
		refused := errors.New("refused")
		_, err = a.BackupChecked(t.Context(), w.cluster, Report{}, func(context.Context, *Backup) error { return refused })
		if after, _ := a.List(t.Context()); !errors.Is(err, refused) || len(after) != 2 {
			t.Errorf("%s: %d backups after %v", name, len(after), err)
		}
		// A check that was interrupted says nothing.
		ctx, cancel := context.WithCancel(t.Context())
		_, err = a.BackupChecked(ctx, w.cluster, Report{}, func(context.Context, *Backup) error { cancel(); return ctx.Err() })
		if after, _ := a.List(t.Context()); !errors.Is(err, context.Canceled) || len(after) != 3 {
			t.Errorf("%s: %d backups after %v", name, len(after), err)
		}
	}
}

// While a target cannot be read, a check says nothing about the new backup. What a disk lost is damage.
func TestACheckNeedsToRead(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		fails   int64 // the first reads of chunks
		reads   int64 // at most, if all fail
		backups int   // with the first one
		good    bool
	}{
		"it passes":   {syscall.EMFILE, 1, 0, 2, true},
		"it stays":    {syscall.EMFILE, math.MaxInt64, 4 * workers, 2, false},
		"a lost disk": {syscall.EIO, math.MaxInt64, math.MaxInt64, 1, false},
	} {
		for what, check := range map[string]func(context.Context, *Backup) error{
			"all chunks": nil,
			"a restore":  func(ctx context.Context, b *Backup) error { return b.Check(ctx, &b.Keyspaces[0].Files[0]) },
		} {
			w, a, first := stored(t)
			var reads atomic.Int64
			a.target = oddTarget{Target: w.target, get: func(name string) error {
				if strings.HasPrefix(name, chunksDir) && reads.Add(1) <= c.fails {
					return c.err
				}
				return nil
			}}
			_, err := a.BackupChecked(t.Context(), w.cluster, Report{}, check)
			list, _ := a.List(t.Context())
			if (err == nil) != c.good || err != nil && !errors.Is(err, c.err) || len(list) != c.backups || !c.good && reads.Load() > c.reads {
				t.Errorf("%s, %s: %d backups after %d reads, %v", name, what, len(list), reads.Load(), err)
			}
			if there := a.CheckThere(t.Context(), first.Manifest); (there == nil) == errors.Is(c.err, syscall.EIO) {
				t.Errorf("%s, %s: %v", name, what, there)
			}
		}
	}
}

// A backup whose chunks are known to be damaged does not count for a retention.
func TestPruneDoesNotCountDamage(t *testing.T) {
	w, _, _ := stored(t)
	now := time.Now()
	at := func(hours int) *Archive {
		a, err := w.archive(w.target)
		must.Do(t, err)
		a.now = func() time.Time { return now.Add(time.Duration(hours) * time.Hour) }
		return a
	}
	c := newMemCluster(1)
	c.states[1] = noise(1, 3000)
	good, err := at(1).Backup(t.Context(), c, Report{})
	must.Do(t, err)
	var names []string
	for hour := range 2 {
		c.states[1] = noise(uint64(hour+2), 3000)
		s, err := at(hour+2).Backup(t.Context(), c, Report{})
		must.Do(t, err)
		must.Do(t, w.damage(s.Manifest.Keyspaces[0].Files[0].Chunks[0].SHA256))
		names = append(names, s.Name)
	}
	a := at(4)
	for _, name := range names {
		b, err := a.Open(t.Context(), name)
		must.Do(t, err)
		if _, err := a.Verifier().Verify(t.Context(), b.Manifest); !errors.Is(err, ErrIncomplete) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if newest, err := a.Newest(t.Context()); err != nil || newest.Name != good.Name {
		t.Errorf("the newest is %s, %v, want %s", newest.Name, err, good.Name)
	}
	if pruned, err := a.Prune(t.Context(), Keep{Hours: 1}, ""); err != nil || pruned.Kept != 4 {
		t.Errorf("%+v, %v", pruned, err)
	}
}

// Names that lie in the future, by a clock that was wrong, count for nothing, and the backup just made always stays.
func TestPruneKeepsTheBackupJustMade(t *testing.T) {
	w, _, _ := stored(t)
	at := func(hours int) *Archive {
		a, err := w.archive(w.target)
		must.Do(t, err)
		a.now = func() time.Time { return time.Now().Add(time.Duration(hours) * time.Hour) }
		return a
	}
	for hour := range 2 {
		_, err := at(24+hour).Backup(t.Context(), w.cluster, Report{})
		must.Do(t, err)
	}
	for hour := 1; hour < 4; hour++ {
		a := at(hour)
		made, err := a.Backup(t.Context(), w.cluster, Report{})
		must.Do(t, err)
		pruned, err := a.Prune(t.Context(), Keep{Hours: 1}, made.Name)
		if newest, _ := a.Newest(t.Context()); err != nil || newest.Name != made.Name || pruned.Kept != 4 {
			t.Errorf("hour %d: %+v, %v, the newest is %s, want %s", hour, pruned, err, newest.Name, made.Name)
		}
		if _, err := a.Prune(t.Context(), Keep{Hours: 1}, made.Name[:16]+"-00000000"); err == nil || !strings.Contains(err.Error(), "is not in the archive") {
			t.Errorf("the new backup is not there: %v", err)
		}
		if pruned, err := a.Prune(t.Context(), Keep{}, ""); err != nil || len(pruned.Backups) > 0 {
			t.Errorf("to keep all: %+v, %v", pruned, err)
		}
		// Even backups that are newer by their names do not push out the one just made.
		if pruned, err := at(30).Prune(t.Context(), Keep{Hours: 1}, made.Name); err != nil || len(pruned.Backups) != 1 || pruned.Kept != 3 {
			t.Errorf("the clock is right: %+v, %v", pruned, err)
		}
	}
}

// A sweep that cannot see the backups deletes no chunk.
func TestPruneNeedsToSeeTheBackups(t *testing.T) {
	w, a, saved := stored(t)
	var lists int
	a.target = oddTarget{Target: w.target, list: func(prefix string, names []string) []string {
		if prefix == backupsDir {
			lists++
			return nil
		}
		return names
	}}
	before := len(w.target.copied())
	if _, err := a.Prune(t.Context(), Keep{Hours: 1}, ""); err == nil || !strings.Contains(err.Error(), "there is no backup in backups/") || len(w.target.copied()) != before {
		t.Errorf("no backup is listed: %v, %d files of %d", err, len(w.target.copied()), before)
	}
	lists = 0
	second, err := w.backup(w.target)()
	must.Do(t, err)
	before = len(w.target.copied())
	a.target = oddTarget{Target: w.target, list: func(prefix string, names []string) []string {
		if prefix == backupsDir {
			if lists++; lists > 1 {
				return slices.DeleteFunc(names, func(name string) bool { return name == manifestPath(saved.Name) })
			}
		}
		return names
	}}
	if _, err := a.Prune(t.Context(), Keep{Hours: 1}, second.Name); err == nil || !strings.Contains(err.Error(), saved.Name+" has vanished") || len(w.target.copied()) != before {
		t.Errorf("one backup is listed no more: %v, %d files of %d", err, len(w.target.copied()), before)
	}
}

// oddTarget changes what a target answers.
type oddTarget struct {
	Target
	list   func(prefix string, names []string) []string
	put    func(name string) error // after it was done
	get    func(name string) error // before it is done
	full   error                   // unless nil, only empty files can be put
	delete func(name string) error // before it is done
}

func (o oddTarget) Put(ctx context.Context, name string, body []byte) error {
	if o.full != nil && len(body) > 0 {
		return &fs.PathError{Op: "write", Path: name, Err: o.full}
	}
	err := o.Target.Put(ctx, name, body)
	if err == nil && o.put != nil {
		err = o.put(name)
	}
	return err
}

func (o oddTarget) Get(ctx context.Context, name string) ([]byte, error) {
	if o.get != nil {
		if err := o.get(name); err != nil {
			return nil, err
		}
	}
	return o.Target.Get(ctx, name)
}

func (o oddTarget) List(ctx context.Context, prefix string) ([]string, error) {
	names, err := o.Target.List(ctx, prefix)
	if o.list != nil {
		names = o.list(prefix, names)
	}
	return names, err
}

func (o oddTarget) Delete(ctx context.Context, name string) error {
	if o.delete != nil {
		if err := o.delete(name); err != nil {
			return err
		}
	}
	return o.Target.Delete(ctx, name)
}

// withWaste adds chunks to an archive that no backup names.
func (w *world) withWaste(t *testing.T, n int) (paths []string) {
	t.Helper()
	for i := range n {
		paths = append(paths, chunkPath(fmt.Sprintf("%064x", i)))
		must.Do(t, w.target.Put(t.Context(), paths[i], nil))
	}
	return paths
}

// A sweep goes on past files that it cannot delete, and names the first.
func TestASweepGoesOn(t *testing.T) {
	w, a, saved := stored(t)
	waste, refused := w.withWaste(t, 250), errors.New("not yours")
	a.target = oddTarget{Target: w.target, delete: func(name string) error {
		if name == waste[0] || name == waste[1] {
			return refused
		}
		return nil
	}}
	pruned, err := a.Prune(t.Context(), Keep{Hours: 1}, saved.Name)
	if !errors.Is(err, refused) || pruned.Chunks != 248 || !strings.Contains(err.Error(), "cannot delete 2 files, such as: cannot delete "+waste[0]) {
		t.Errorf("%+v, %v", pruned, err)
	}
	must.Do(t, w.check())
}

// after returns a time at which the monotonic clock and the wall clock have gone on differently.
func after(monotonic, wall time.Duration) time.Time {
	t := time.Now().Add(monotonic)
	// A time.Time that has a monotonic reading begins with a flag, 33 bits of seconds and 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&t)) += uint64((wall-monotonic)/time.Second) << 30
	return t
}

// A sweep that was suspended stops: it looks at the clock before each deletion, and at the claims now and then.
func TestASuspendedSweepStops(t *testing.T) {
	if begun, now := time.Now(), after(time.Minute, time.Hour); now.Sub(begun).Round(time.Second) != time.Minute || now.Round(0).Sub(begun.Round(0)).Round(time.Second) != time.Hour {
		t.Fatalf("%v is not a minute and an hour after %v", now, begun)
	}
	for what, c := range map[string]struct {
		asleep  func(a *Archive, w *world) // after 150 deletions
		deletes int                        // at most, then
	}{
		"the machine was suspended":   {func(a *Archive, _ *world) { a.now = func() time.Time { return after(0, time.Hour) } }, 0},
		"the wall clock was set back": {func(a *Archive, _ *world) { a.now = func() time.Time { return after(time.Hour, 0) } }, 0},
		"the claim was deleted": {func(_ *Archive, w *world) {
			for name := range w.target.copied() {
				if strings.HasPrefix(name, claimsDir) {
					_ = w.target.Delete(w.ctx(), name)
				}
			}
		}, checkEvery},
		"a backup began": {func(a *Archive, w *world) {
			_ = w.target.Put(w.ctx(), claimsDir+"backup-"+a.newName(time.Now())+".json", nil)
		}, checkEvery},
	} {
		w, a, saved := stored(t)
		w.withWaste(t, 600)
		deletes := 0
		a.target = oddTarget{Target: w.target, delete: func(name string) error {
			if strings.HasPrefix(name, chunksDir) {
				if deletes++; deletes == 150 {
					c.asleep(a, w)
				}
			}
			return nil
		}}
		if _, err := a.Prune(t.Context(), Keep{Hours: 1}, saved.Name); err == nil || deletes > 150+c.deletes {
			t.Errorf("%s: %d deletions, %v", what, deletes, err)
		}
	}
}

// A claim whose Put failed after all is deleted, and one of a clock that is far ahead does not count for ever.
func TestClaimsDoNotStay(t *testing.T) {
	w, a, _ := stored(t)
	lost := errors.New("the answer was lost")
	a.target = oddTarget{Target: w.target, put: func(string) error { return lost }}
	if _, err := a.Prune(t.Context(), Keep{Hours: 1}, ""); !errors.Is(err, lost) {
		t.Errorf("a claim that failed: %v", err)
	}
	a.target = w.target
	must.Do(t, w.target.Put(t.Context(), claimsDir+"backup-20990101T000000Z-00000000.json", nil))
	if _, err := a.Prune(t.Context(), Keep{Hours: 1}, ""); err != nil {
		t.Errorf("a claim of 2099: %v", err)
	}
	if names, err := w.target.List(t.Context(), claimsDir); err != nil || len(names) > 0 {
		t.Errorf("claims %q, %v", names, err)
	}
}

// A backup says that it waits for a sweep.
func TestABackupSaysThatItWaits(t *testing.T) {
	w, a, _ := stored(t)
	a.waitMax = claimWaitStep
	must.Do(t, w.target.Put(t.Context(), claimsDir+"sweep-"+a.newName(time.Now())+".json", nil))
	var said []string
	_, err := a.Backup(t.Context(), w.cluster, Report{Say: func(text string) { said = append(said, text) }})
	if !errors.Is(err, ErrBusy) || len(said) != 1 || !strings.Contains(said[0], "waiting up to 1s") {
		t.Errorf("%v; it said %q", err, said)
	}
}

// A chunk that goes while a backup runs is no damage of the archive.
func TestABackupThatLostAChunk(t *testing.T) {
	w, a, _ := stored(t)
	lists := 0
	a.target = oddTarget{Target: w.target, list: func(prefix string, names []string) []string {
		if prefix == chunksDir {
			if lists++; lists == 2 {
				return names[1:]
			}
		}
		return names
	}}
	if _, err := a.Backup(t.Context(), w.cluster, Report{}); err == nil || errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "something else changed the archive") {
		t.Error(err)
	}
	if list, err := a.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%d backups, %v", len(list), err)
	}
}

// A call that was given up may take effect later. Until it cannot, the claim of its run excludes others.
func TestCallsWithoutAnAnswer(t *testing.T) {
	cut := fmt.Errorf("put or delete: %w", errUnanswered)
	w, a, _ := stored(t)
	a.target = oddTarget{Target: w.target, put: func(name string) error {
		if strings.HasPrefix(name, backupsDir) {
			return cut
		}
		return nil
	}}
	if _, err := a.Backup(t.Context(), w.cluster, Report{}); !errors.Is(err, errUnanswered) {
		t.Errorf("a manifest: %v", err)
	}
	a.target = w.target
	for _, c := range []struct {
		minutes int
		want    error
	}{{0, ErrBusy}, {55, ErrBusy}, {65, nil}} {
		a.now = func() time.Time { return time.Now().Add(time.Duration(c.minutes) * time.Minute) }
		if _, err := a.Prune(t.Context(), Keep{}, ""); !errors.Is(err, c.want) {
			t.Errorf("a sweep after %d minutes: %v", c.minutes, err)
		}
	}
	w, a, _ = stored(t)
	waste := w.withWaste(t, 1)[0]
	a.waitMax = 0
	a.target = oddTarget{Target: w.target, delete: func(name string) error {
		if name == waste {
			return cut
		}
		return nil
	}}
	if _, err := a.Prune(t.Context(), Keep{}, ""); !errors.Is(err, errUnanswered) {
		t.Errorf("a chunk: %v", err)
	}
	if _, err := a.Backup(t.Context(), w.cluster, Report{}); !errors.Is(err, ErrBusy) {
		t.Errorf("a backup after a sweep: %v", err)
	}
}

// A sweep frees a target that is full.
func TestASweepOfAFullTarget(t *testing.T) {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		w, a, _ := stored(t)
		w.withWaste(t, 10)
		a.target = oddTarget{Target: w.target, full: full}
		if pruned, err := a.Prune(t.Context(), Keep{}, ""); err != nil || pruned.Chunks != 10 {
			t.Errorf("%v: %+v, %v", full, pruned, err)
		}
	}
}

// If a clock was ahead, it is unknown which backup is the latest.
func TestLatestIsNotInTheFuture(t *testing.T) {
	w, a, saved := stored(t)
	ahead, err := w.archive(w.target)
	must.Do(t, err)
	ahead.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	future, err := ahead.Backup(t.Context(), w.cluster, Report{})
	must.Do(t, err)
	if got, err := a.Find(t.Context(), Latest); err == nil || !strings.Contains(err.Error(), future.Name+" lies in the future") {
		t.Errorf("the latest is %s, %v", got, err)
	}
	if got, err := a.Find(t.Context(), saved.Name); err != nil || got != saved.Name {
		t.Errorf("by its name: %s, %v", got, err)
	}
}

// The newest backup that can be restored is found by the manifests from the newest on.
func TestNewestReadsNoOlderManifests(t *testing.T) {
	w, a, _ := stored(t)
	if newest, err := a.Newest(t.Context()); err != nil || newest.Name == "" || newest.Manifest == nil {
		t.Errorf("the newest of one: %+v, %v", newest, err)
	}
	var names []string
	for hour := range 4 {
		b, err := w.archive(w.target)
		must.Do(t, err)
		b.now = func() time.Time { return time.Now().Add(time.Duration(hour+1) * time.Hour) }
		s, err := b.Backup(t.Context(), w.cluster, Report{})
		must.Do(t, err)
		names = append(names, s.Name)
	}
	must.Do(t, w.target.Put(t.Context(), manifestPath(names[2]), []byte("{}")))
	a.now = func() time.Time { return time.Now().Add(3 * time.Hour) } // names[3] lies in the future
	counted := &countedGets{Target: w.target}
	a.target = counted
	if newest, err := a.Newest(t.Context()); err != nil || newest.Name != names[1] || counted.n != 2 {
		t.Errorf("the newest is %s after %d manifests, %v, want %s", newest.Name, counted.n, err, names[1])
	}
}

type countedGets struct {
	Target
	n int
}

func (c *countedGets) Get(ctx context.Context, name string) ([]byte, error) {
	c.n++
	return c.Target.Get(ctx, name)
}
