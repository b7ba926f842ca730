package shard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

func mustOpenSnaps(t *testing.T, dir string) *snapStore {
	t.Helper()
	s, err := openSnapStore(dir, 7, hclog.NewNullLogger(), noFatal(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var testServers = raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "127.0.0.1:1"}, {Suffrage: raft.Nonvoter, ID: "n2", Address: "b:2"}}}

func mustSnapshot(t *testing.T, s *snapStore, index uint64, state string) string {
	t.Helper()
	trans, _ := testTransport(t)
	sink, err := s.Create(1, index, 2, testServers, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write([]byte(state)); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return sink.ID()
}

func testTransport(t *testing.T) (raftTransport, *muxLayer) {
	t.Helper()
	layer, err := testMux(t).Layer(7, "known")
	if err != nil {
		t.Fatal(err)
	}
	trans := newRaftTransport(layer, nil, 0, hclog.NewNullLogger())
	t.Cleanup(func() { trans.Close() })
	return trans, layer.(*muxLayer)
}

func readSnapshot(s *snapStore, id string) (*raft.SnapshotMeta, string, error) {
	meta, state, err := s.Open(id)
	if err != nil {
		return nil, "", err
	}
	defer state.Close()
	b := make([]byte, meta.Size+1)
	n := 0
	for {
		m, err := state.Read(b[n:])
		n += m
		if err != nil {
			return meta, string(b[:n]), nil
		}
	}
}

func TestSnapshotsGiveBackWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	s := mustOpenSnaps(t, dir)
	for i, state := range []string{"one", "", "three"} {
		id := mustSnapshot(t, s, uint64(10+i), state)
		for _, s := range []*snapStore{s, mustOpenSnaps(t, dir)} {
			meta, got, err := readSnapshot(s, id)
			if err != nil || got != state || meta.Size != int64(len(state)) {
				t.Errorf("%q: %+v, %q, %v", state, meta, got, err)
			}
			if s.newestIndex.Load() != uint64(10+i) {
				t.Errorf("newest %d", s.newestIndex.Load())
			}
		}
	}
	metas, err := s.List()
	if err != nil || len(metas) != snapshotsKept || metas[0].Index != 12 || metas[0].Size != 5 {
		t.Errorf("list %v, %v", metas, err)
	}
}

// Of two snapshots that are written at the same time the later one stays the newest,
// whichever ends last.
func TestOlderSnapshotEndsLast(t *testing.T) {
	s := mustOpenSnaps(t, t.TempDir())
	trans, _ := testTransport(t)
	older, err := s.Create(1, 10, 2, testServers, 1, trans)
	mustDo(t, err)
	mustSnapshot(t, s, 12, "newer")
	mustDo(t, older.Close())
	if index, bytes := s.newestIndex.Load(), s.newestBytes.Load(); index != 12 || bytes != 5 {
		t.Errorf("the newest is of %d, %d bytes", index, bytes)
	}
}

func TestUnfinishedSnapshotsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := mustOpenSnaps(t, dir)
	mustSnapshot(t, s, 10, "whole")
	trans, _ := testTransport(t)
	if _, err := s.Create(1, 11, 2, testServers, 1, trans); err != nil {
		t.Fatal(err)
	}
	s = mustOpenSnaps(t, dir)
	if s.newestIndex.Load() != 10 {
		t.Errorf("newest %d", s.newestIndex.Load())
	}
	entries, err := os.ReadDir(filepath.Join(dir, snapshotsDir))
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestCancelledSnapshotIsNoFailure(t *testing.T) {
	s := mustOpenSnaps(t, t.TempDir())
	trans, _ := testTransport(t)
	sink, err := s.Create(1, 11, 2, testServers, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sink.Cancel(), sink.Close()); err != nil {
		t.Error(err)
	}
	if metas, err := s.List(); err != nil || len(metas) != 0 {
		t.Errorf("list %v, %v", metas, err)
	}
}

func TestFailedSinkStopsTheGroup(t *testing.T) {
	dir := t.TempDir()
	stop, told := countFatal(t)
	s, err := openSnapStore(dir, 7, hclog.NewNullLogger(), stop)
	if err != nil {
		t.Fatal(err)
	}
	trans, _ := testTransport(t)
	sink, err := s.Create(1, 11, 2, testServers, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, snapshotsDir)); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err == nil || *told != 1 {
		t.Errorf("%v, told %d times", err, *told)
	}
	if _, err := s.Create(1, 12, 2, testServers, 1, trans); err == nil {
		t.Error("another snapshot was begun")
	}
}

// The newest of two snapshots is damaged in every way: the group must not
// open, and must not touch what is there; nor may a running group use it.
func TestDamagedNewestSnapshotIsRefused(t *testing.T) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	for range 2 {
		mustAdd(t, g, 1)
		if err := g.snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, g)
	newest, _, err := g.snaps.newest()
	if err != nil {
		t.Fatal(err)
	}
	metas, err := g.snaps.List()
	if err != nil || len(metas) != 2 {
		t.Fatal(metas, err)
	}
	damages := map[string]func(t *testing.T, dir string){
		"no meta":         func(t *testing.T, dir string) { mustDo(t, os.Remove(filepath.Join(dir, "meta.json"))) },
		"empty meta":      func(t *testing.T, dir string) { mustDo(t, os.Truncate(filepath.Join(dir, "meta.json"), 0)) },
		"torn meta":       func(t *testing.T, dir string) { mustDo(t, os.Truncate(filepath.Join(dir, "meta.json"), 40)) },
		"no state":        func(t *testing.T, dir string) { mustDo(t, os.Remove(filepath.Join(dir, "state.bin"))) },
		"empty state":     func(t *testing.T, dir string) { mustDo(t, os.Truncate(filepath.Join(dir, "state.bin"), 0)) },
		"torn state":      func(t *testing.T, dir string) { mustDo(t, os.Truncate(filepath.Join(dir, "state.bin"), 9)) },
		"first state bit": func(t *testing.T, dir string) { rewrite(t, filepath.Join(dir, "state.bin"), "", "", 0) },
		"last state bit":  func(t *testing.T, dir string) { rewrite(t, filepath.Join(dir, "state.bin"), "", "", 23) },
		"other voter": func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "meta.json"), `"ID":"n1"`, `"ID":"n2"`, 0)
		},
		"other suffrage": func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "meta.json"), `"Suffrage":0`, `"Suffrage":1`, 0)
		},
		"other index": func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "meta.json"), `"Index":`, `"Index":1`, 0)
		},
		"other version": func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "meta.json"), `"Version":1`, `"Version":0`, 0)
		},
		"other name": func(t *testing.T, dir string) { mustDo(t, os.Rename(dir, filepath.Join(filepath.Dir(dir), "what"))) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.Dir, cfg.FSM = t.TempDir(), &sumFSM{}
			mustDo(t, os.CopyFS(cfg.Dir, os.DirFS(g.cfg.Dir)))
			damage(t, filepath.Join(cfg.Dir, snapshotsDir, metas[0].ID))
			before := listing(t, cfg.Dir)
			opened, err := openGroup(cfg)
			if !errors.Is(err, errDamaged) && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("opened with %v", err)
			}
			if err == nil {
				mustClose(t, opened)
			} else if !strings.Contains(err.Error(), cfg.Dir) {
				t.Errorf("no file is named: %v", err)
			}
			if after := listing(t, cfg.Dir); !slices.Equal(before, after) {
				t.Errorf("files changed from %v to %v", before, after)
			}
		})
	}
	if newest.index != metas[0].Index {
		t.Errorf("newest %v, listed %v", newest, metas[0])
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rewrite replaces old in a file, or with an empty old flips a bit of a byte.
func rewrite(t *testing.T, path, old, replacement string, at int) {
	t.Helper()
	content, err := os.ReadFile(path)
	mustDo(t, err)
	s := string(changed(content, at))
	if old != "" {
		if s = strings.Replace(string(content), old, replacement, 1); s == string(content) {
			t.Fatalf("%q is not in %s", old, content)
		}
	}
	mustDo(t, os.WriteFile(path, []byte(s), 0o600))
}

func listing(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	mustDo(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	}))
	return names
}

func TestAnFSMThatCannotRestoreDoesNotOpen(t *testing.T) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	for range 2 {
		mustAdd(t, g, 1)
		mustDo(t, g.snapshot())
	}
	mustClose(t, g)
	cfg.FSM = &sumFSM{restoreErr: errBrokenDisk}
	if _, err := openGroup(cfg); !errors.Is(err, errBrokenDisk) {
		t.Errorf("opened with %v", err)
	}
	// Nothing of the failed opening is left in the way.
	cfg.FSM = &sumFSM{}
	mustBeReady(t, mustOpen(t, cfg))
}

func TestMissingPartsAreRefused(t *testing.T) { eachStore(t, testMissingPartsAreRefused) }

func testMissingPartsAreRefused(t *testing.T, store LogStore) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.LogStore = store
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	for range 3 * trailingEntriesMin {
		mustAdd(t, g, 1)
	}
	g.log.bytes.Store(1 << 40)
	mustDo(t, g.snapshot())
	mustClose(t, g)
	for name, remove := range map[string]string{"the snapshots": snapshotsDir, "the log": filepath.Base(store.path(""))} {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.Dir, cfg.FSM = t.TempDir(), &sumFSM{}
			mustDo(t, os.CopyFS(cfg.Dir, os.DirFS(g.cfg.Dir)))
			mustDo(t, os.RemoveAll(filepath.Join(cfg.Dir, remove)))
			opened, err := openGroup(cfg)
			if !errors.Is(err, errDamaged) {
				t.Errorf("opened with %v", err)
			}
			if err == nil {
				mustClose(t, opened)
			}
		})
	}
}

// A leader's snapshot came, and a crash before raft deleted the older log.
func TestLogReplacedByASnapshotIsDropped(t *testing.T) {
	eachStore(t, testLogReplacedByASnapshotIsDropped)
}

func testLogReplacedByASnapshotIsDropped(t *testing.T, store LogStore) {
	for _, test := range []struct {
		name     string
		index    uint64
		term     uint64
		lastLeft uint64
	}{
		{"the log ends before the snapshot", 500, 5, 0},
		{"the log has another history", 30, 5, 0},
		{"the log leads on from the snapshot", 30, 3, 60},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			b := mustOpenStores(t, store, dir)
			fillStores(t, b, 60)
			l := newCheckedLog(b, 7, "log", 1<<40, noFatal(t))
			last, err := l.LastIndex()
			mustDo(t, err)
			if test.lastLeft > 0 {
				test.lastLeft = last
			}
			stable := newCheckedStable(b, 7, "log", noFatal(t))
			mustDo(t, stable.SetUint64(keyTerm, 9))
			s := mustOpenSnaps(t, dir)
			trans, _ := testTransport(t)
			sink, err := s.Create(1, test.index, test.term, testServers, 1, trans)
			mustDo(t, err)
			mustDo(t, sink.Close())
			g := &group{log: l, snaps: s, stop: l.stop}
			mustDo(t, g.recoverLog(stable))
			if last, err := l.LastIndex(); err != nil || last != test.lastLeft {
				t.Errorf("the log ends at %d, %v, want %d", last, err, test.lastLeft)
			}
		})
	}
}

func TestBootstrapAfterACrashInside(t *testing.T) { eachStore(t, testBootstrapAfterACrashInside) }

func testBootstrapAfterACrashInside(t *testing.T, store LogStore) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.LogStore = store
	b := mustOpenStores(t, store, cfg.Dir)
	mustDo(t, newCheckedStable(b, 7, "log", noFatal(t)).SetUint64(keyTerm, 1))
	mustDo(t, b.close())
	cfg.Initial = aloneIn(cfg)
	mustBeReady(t, mustOpen(t, cfg))
}

func FuzzParseSnapshotName(f *testing.F) {
	f.Add("2-10-1700000000000")
	f.Add("2-10")
	f.Add("+2--1-3")
	f.Fuzz(func(t *testing.T, name string) {
		n, err := parseSnapshotName(name)
		if err != nil && !errors.Is(err, errDamaged) {
			t.Errorf("error %v", err)
		}
		if again, err2 := parseSnapshotName(fmt.Sprintf("%d-%d-%d", n.term, n.index, n.msec)); err == nil && (err2 != nil || again != n) {
			t.Errorf("%q is %v, then %v, %v", name, n, again, err2)
		}
	})
}
