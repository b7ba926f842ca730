package e2e

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// bitFlips is how many single-bit flips, at random places in a log, TestFlippedBits tries.
const bitFlips = 16

// damagesTried is the number of damaged files that one run tries without the flag -all-damages.
const damagesTried = 30

// damages are the ways in which a disk, a crash or an incomplete copy damages a file, by name.
var damages = map[string]func(raw []byte) []byte{
	"emptied":       func([]byte) []byte { return []byte{} },
	"cut in half":   func(raw []byte) []byte { return raw[:len(raw)/2] },
	"cut at a byte": func(raw []byte) []byte { return raw[:len(raw)-1] },
	"tail zeroed": func(raw []byte) []byte {
		clear(raw[len(raw)-min(len(raw), 4096):])
		return raw
	},
	"head zeroed": func(raw []byte) []byte {
		clear(raw[:min(len(raw), 512)])
		return raw
	},
	"bit flipped in the middle": func(raw []byte) []byte {
		raw[len(raw)/2] ^= 0x10
		return raw
	},
	removed: func([]byte) []byte { return nil },
}

// removed names the only damage that an empty file can have.
const removed = "removed"

// TestDamagedFiles starts a node on a directory with one damaged file. It picks kinds of files and
// kinds of damages at random. Either the node serves every acknowledged count, or it refuses to
// start and names the damage. It never serves a wrong count, and never hangs.
func TestDamagedFiles(t *testing.T) {
	long(t)
	t.Parallel()
	eachLogStore(t, func(t *testing.T, logStore string) {
		logs := []string{"raft.db"}
		if strings.HasSuffix(logStore, "shared") {
			logs = []string{newestSegment, fullSegment}
		}
		damagedFiles(t, logStore, append(logs, "node.json", "log-store", snapshotKind))
	})
}

func damagedFiles(t *testing.T, logStore string, want []string) {
	t.Parallel()
	dir, l := killedNode(t, logStore, true)
	whole, kinds := filesOf(t, dir), filesByKind(t, dir)
	for _, kind := range want {
		if kinds[kind] == "" {
			t.Fatalf("no %s in the data directory: %v", kind, kinds)
		}
	}
	if logStore != "--log-store="+defaultLogStore() { // other kinds of files are the same for both log stores
		maps.DeleteFunc(kinds, func(kind, _ string) bool { return !slices.Contains(want, kind) })
	}
	type damaged struct{ kind, damage string }
	var all []damaged
	for kind, file := range kinds {
		for damage := range damages {
			if whole[file].size > 0 || damage == removed {
				all = append(all, damaged{kind, damage})
			}
		}
	}
	if !*allDamages && len(all) > damagesTried {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:damagesTried]
	}
	for _, d := range all {
		t.Run(d.kind+" "+d.damage, func(t *testing.T) {
			t.Parallel()
			dir, file := whole.copy(t), kinds[d.kind]
			damageFile(t, filepath.Join(dir, file), damages[d.damage])
			servesRightOrRefuses(t, dir, part(file), l)
		})
	}
}

// TestLostFiles is like TestDamagedFiles, but a log that is the only copy of all counts is missing.
// A node that started the group with an empty log would serve zeros.
func TestLostFiles(t *testing.T) {
	t.Parallel()
	eachLogStore(t, lostFiles)
}

func lostFiles(t *testing.T, logStore string) {
	t.Parallel()
	dir, l := killedNode(t, logStore, false)
	whole, kinds := filesOf(t, dir), filesByKind(t, dir)
	log := kinds["raft.db"] + kinds[newestSegment] // a node has only one of the two kinds
	parts := strings.Split(log, string(filepath.Separator))
	groups, group := parts[0], filepath.Join(parts[:2]...) // with the shared log, group is the directory of the log of all groups
	named := group
	if strings.HasSuffix(logStore, "shared") {
		named = part(log)
	}
	for _, c := range []struct {
		name, named string // named is what the refusal must name
		lose        func(dir string) error
	}{
		{"log emptied", named, func(dir string) error { return os.Truncate(filepath.Join(dir, log), 0) }},
		{"log removed", named, func(dir string) error { return os.RemoveAll(filepath.Join(dir, group, parts[2])) }},
		{"directory removed", group, func(dir string) error { return os.RemoveAll(filepath.Join(dir, group)) }},
		{"catalog removed", "00000", func(dir string) error { return os.RemoveAll(filepath.Join(dir, groups, "00000")) }},
		{"all groups removed", "00000", func(dir string) error { return os.RemoveAll(filepath.Join(dir, groups)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := whole.copy(t)
			if err := c.lose(dir); err != nil {
				t.Fatal(err)
			}
			servesRightOrRefuses(t, dir, c.named, l)
		})
	}
}

// TestFlippedBits is like TestDamagedFiles, but flips single bits in a log that is the only copy of
// all counts.
func TestFlippedBits(t *testing.T) {
	long(t)
	t.Parallel()
	eachLogStore(t, flippedBits)
}

func flippedBits(t *testing.T, logStore string) {
	t.Parallel()
	flips := bitFlips
	if testing.Short() {
		flips = 8
	}
	dir, l := killedNode(t, logStore, false)
	whole, kinds := filesOf(t, dir), filesByKind(t, dir)
	log := kinds["raft.db"] + kinds[newestSegment] // a node has only one of the two kinds
	for i := range flips {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			dir := whole.copy(t)
			damageFile(t, filepath.Join(dir, log), func(raw []byte) []byte {
				written := len(bytes.TrimRight(raw, "\x00"))
				at, bit := rand.IntN(written), byte(1)<<rand.IntN(8)
				t.Logf("byte %d of %d, bit %#x", at, written, bit)
				raw[at] ^= bit
				return raw
			})
			servesRightOrRefuses(t, dir, part(log), l)
		})
	}
}

// defaultLogStore returns the log store of nodes that start without --log-store.
func defaultLogStore() string { return cmp.Or(os.Getenv("COUNTD_LOG_STORE"), "shared") }

// part returns the part of a damaged file's path that a refusal must name. This is the directory of
// the group or snapshot that contains the file, or else the file.
func part(file string) string {
	dir := filepath.Dir(file)
	if dir == "." || filepath.Ext(file) == segmentSuffix {
		return filepath.Base(file)
	}
	return filepath.Base(dir)
}

// servesRightOrRefuses starts a node on a damaged directory. The node must serve the counts of l,
// or refuse to start and name part.
func servesRightOrRefuses(t *testing.T, dir, part string, l *ledger) {
	t.Helper()
	n := proctest.NewNode(t, bin, dir)
	n.Start()
	ready, code := n.WaitReady(must.BecomeMax)
	switch {
	case ready:
		t.Log("serves every count")
		l.check(t, n)
		n.Stop()
	case code == 0:
		t.Fatal("neither serves nor refuses")
	case code != 1:
		t.Errorf("exit code %d, want 1", code)
	default:
		lines := strings.Split(strings.TrimSpace(n.Log()), "\n")
		t.Logf("refuses: %s", lines[len(lines)-1])
		if last := lines[len(lines)-1]; !strings.Contains(last, part) {
			t.Errorf("the refusal does not name %s: %s", part, last)
		}
	}
}

// killedNode returns the data directory of a node that was killed after writes, and the expected
// counts. If snapshot is set, the directory also has a snapshot.
func killedNode(t *testing.T, logStore string, snapshot bool) (dir string, l *ledger) {
	t.Helper()
	n := proctest.NewNode(t, bin, t.TempDir(), logStore, "--shards=posts=1", "--shards=users=1")
	n.StartReady()
	if snapshot {
		growLog(t, n)
		n.Stop()
		n.StartReady()
		hasSnapshots(t, n)
	}
	l = newLedger()
	w := startWriters(n, l)
	eventually(t, "some hundred writes are acknowledged", func() bool { return l.acknowledged() > 300 })
	n.Kill()
	w.wait(t)
	n.StartReady()
	l.check(t, n) // resolves increments of unknown outcome
	n.Kill()
	return n.Dir, l
}

// stoppedFiles holds the files of a node that does not run, by their paths in its directory. Paths of
// directories end in a separator.
type stoppedFiles map[string]struct {
	data []byte // contents without the zeros at the end
	size int64
}

func filesOf(t *testing.T, dir string) stoppedFiles {
	t.Helper()
	files := stoppedFiles{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file := files[path]
		if d.IsDir() {
			path += string(filepath.Separator)
		} else if file.data, err = os.ReadFile(filepath.Join(dir, path)); err == nil {
			file.size, file.data = int64(len(file.data)), bytes.TrimRight(file.data, "\x00")
		}
		files[path] = file
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// copy writes the files to a temporary directory. Zeros at a file's end become a hole, because a
// segment of the log is mostly zeros.
func (files stoppedFiles) copy(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for path, file := range files {
		to := filepath.Join(dir, path)
		err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path+"x")), 0o700)
		if err == nil && !strings.HasSuffix(path, string(filepath.Separator)) {
			err = errors.Join(os.WriteFile(to, file.data, 0o600), os.Truncate(to, file.size))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Kinds of files whose names differ from node to node: segments of a log, and snapshots.
const (
	segmentSuffix = ".log"
	newestSegment = "newest segment"
	fullSegment   = "full segment"
	nextSegment   = "next segment"

	snapshotSuffix = ".snap"
	snapshotKind   = "snapshot"
)

// kindOf returns the kind of a file. This is its file name, except for segments and snapshots. The
// next segment of a log exists in advance and is still empty.
func kindOf(t *testing.T, path string) string {
	t.Helper()
	switch filepath.Ext(path) {
	case segmentSuffix:
	case snapshotSuffix:
		return snapshotKind
	default:
		return filepath.Base(path)
	}
	all, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"+segmentSuffix))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	switch len(all) - slices.Index(all, path) {
	case 1:
		return nextSegment
	case 2:
		return newestSegment
	}
	return fullSegment
}

// filesByKind returns one file of each existing kind, except the lock. If several files have the
// same kind, it returns the one with the most data. Paths are relative to dir.
func filesByKind(t *testing.T, dir string) map[string]string {
	t.Helper()
	kinds, sizes := map[string]string{}, map[string]int{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "LOCK" {
			return err
		}
		raw, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			return err
		}
		kind, size := kindOf(t, filepath.Join(dir, path)), len(bytes.TrimRight(raw, "\x00"))
		if most, seen := sizes[kind]; !seen || size > most {
			kinds[kind], sizes[kind] = path, size
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return kinds
}

func damageFile(t *testing.T, path string, apply func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if raw = apply(slices.Clone(raw)); raw == nil {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
