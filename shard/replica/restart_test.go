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

// The newer of two snapshots is damaged in every way: the group must not open and must
// not change its files, and a running group must not use the snapshot.
func TestDamagedNewestSnapshotIsRefused(t *testing.T) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	for range 2 {
		mustAdd(t, g, 1)
		if err := g.TakeSnapshot(); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, g)
	newest, _, _, err := g.snaps.Newest()
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
		"other name": func(t *testing.T, dir string) {
			mustDo(t, os.Rename(dir, filepath.Join(filepath.Dir(dir), "what")))
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.Dir, cfg.FSM = t.TempDir(), &sumFSM{}
			mustDo(t, os.CopyFS(cfg.Dir, os.DirFS(g.cfg.Dir)))
			damage(t, filepath.Join(cfg.Dir, "snapshots", metas[0].ID))
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
	if newest != metas[0].Index {
		t.Errorf("newest %v, listed %v", newest, metas[0])
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
		mustDo(t, g.TakeSnapshot())
	}
	mustClose(t, g)
	cfg.FSM = &sumFSM{restoreErr: errBrokenDisk}
	if _, err := Open(cfg); !errors.Is(err, errBrokenDisk) {
		t.Errorf("opened with %v", err)
	}
	// Nothing of the failed opening is left in the way.
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
	mustDo(t, g.TakeSnapshot())
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
