package replica

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

func testTransport(t *testing.T) (raftTransport, raft.StreamLayer) {
	t.Helper()
	layer, err := testMux(t).Layer(7, "known")
	if err != nil {
		t.Fatal(err)
	}
	trans := newRaftTransport(layer, nil, 0, hclog.NewNullLogger())
	t.Cleanup(func() { trans.Close() })
	return trans, layer
}

// The newer of two snapshots is damaged in one of several ways: the group must not open and must
// not change its files, and a running group must not use the snapshot.
func TestDamagedNewestSnapshotIsRefused(t *testing.T) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	for range 2 {
		mustAdd(t, g, 1)
		if err := g.snapshotter.Take(); err != nil {
			t.Fatal(err)
		}
	}
	metas, err := g.snaps.List()
	names, err2 := g.snaps.Names()
	mustClose(t, g)
	if err = errors.Join(err, err2); err != nil || len(metas) != 1 || len(names) != 2 {
		t.Fatal(metas, names, err)
	}
	damages := map[string]func(t *testing.T, path string){
		"empty":     func(t *testing.T, path string) { mustDo(t, os.Truncate(path, 0)) },
		"torn head": func(t *testing.T, path string) { mustDo(t, os.Truncate(path, 40)) },
		"torn state": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			mustDo(t, err)
			mustDo(t, os.Truncate(path, info.Size()-9))
		},
		"a bit of the head": func(t *testing.T, path string) { rewrite(t, path, "", "", 10) },
		"a bit of the end":  func(t *testing.T, path string) { rewrite(t, path, "", "", -1) },
		"other voter":       func(t *testing.T, path string) { rewrite(t, path, "n1", "n2", 0) },
		"other version":     func(t *testing.T, path string) { rewrite(t, path, "CSN\x01", "CSN\x02", 0) },
		"other name": func(t *testing.T, path string) {
			mustDo(t, os.Rename(path, filepath.Join(filepath.Dir(path), "what")))
		},
		"name of another entry": func(t *testing.T, path string) {
			mustDo(t, os.Rename(path, filepath.Join(filepath.Dir(path), "1"+filepath.Base(path))))
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.Dir, cfg.FSM = t.TempDir(), &sumFSM{}
			mustDo(t, os.CopyFS(cfg.Dir, os.DirFS(g.cfg.Dir)))
			damage(t, filepath.Join(cfg.Dir, "snapshots", metas[0].ID+".snap"))
			before := listing(t, cfg.Dir)
			opened, err := Open(cfg)
			if !errors.Is(err, storage.ErrDamaged) && !errors.Is(err, os.ErrNotExist) {
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
}

// rewrite replaces old in a file. If old is empty, it flips a bit of the byte at offset, which
// counts from the end if it is below 0.
func rewrite(t *testing.T, path, old, replacement string, offset int) {
	t.Helper()
	content, err := os.ReadFile(path)
	mustDo(t, err)
	if offset < 0 {
		offset += len(content)
	}
	s := string(changed(content, offset))
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
		mustDo(t, g.snapshotter.Take())
	}
	mustClose(t, g)
	cfg.FSM = &sumFSM{restoreErr: errBrokenDisk}
	if _, err := Open(cfg); !errors.Is(err, errBrokenDisk) {
		t.Errorf("opened with %v", err)
	}
	// The failed opening must have released the directory and the address.
	cfg.FSM = &sumFSM{}
	mustBeReady(t, mustOpen(t, cfg))
}

func TestMissingPartsAreRefused(t *testing.T) { eachStore(t, testMissingPartsAreRefused) }

func testMissingPartsAreRefused(t *testing.T, store storage.LogStore) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.LogStore = store
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	for range 3 * trailingEntriesMin {
		mustAdd(t, g, 1)
	}
	g.log.Covered(-(1 << 40), 0)
	mustDo(t, g.snapshotter.Take())
	mustClose(t, g)
	for name, remove := range map[string]string{"the snapshots": "snapshots", "the log": filepath.Base(store.Path(""))} {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.Dir, cfg.FSM = t.TempDir(), &sumFSM{}
			mustDo(t, os.CopyFS(cfg.Dir, os.DirFS(g.cfg.Dir)))
			mustDo(t, os.RemoveAll(filepath.Join(cfg.Dir, remove)))
			opened, err := Open(cfg)
			if !errors.Is(err, storage.ErrDamaged) {
				t.Errorf("opened with %v", err)
			}
			if err == nil {
				mustClose(t, opened)
			}
		})
	}
}

func TestBootstrapAfterACrashInside(t *testing.T) {
	eachStore(t, testBootstrapAfterACrashInside)
}

func testBootstrapAfterACrashInside(t *testing.T, store storage.LogStore) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.LogStore = store
	b := mustOpenStores(t, store, cfg.Dir)
	mustDo(t, storage.NewVotes(b, 7, "log", noFatal(t)).SetTerm(1))
	mustDo(t, b.Close())
	cfg.Initial = aloneIn(cfg)
	mustBeReady(t, mustOpen(t, cfg))
}
