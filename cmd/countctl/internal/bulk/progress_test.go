package bulk

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

type run struct{ Line int }

func decodeRun(text []byte) (r run, err error) {
	err = json.Unmarshal(text, &r)
	return r, err
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.progress")
	if _, found, err := readProgress(path, decodeRun); found || err != nil {
		t.Fatalf("a file that is not there: found %t, %v", found, err)
	}
	for line := range 2 {
		if err := writeProgress(path, run{Line: line}); err != nil {
			t.Fatal(err)
		}
		got, found, err := readProgress(path, decodeRun)
		if !found || err != nil || got.Line != line {
			t.Fatalf("line %d: read %+v, found %t, %v", line, got, found, err)
		}
	}
}

func TestWhatCannotBeReadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.progress")
	// Valid JSON, but longer than readProgress reads, so the part that it reads does not parse.
	if err := os.WriteFile(path, []byte(`{"Line":1`+strings.Repeat(" ", 1<<20)+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var bad *json.SyntaxError
	_, found, err := readProgress(path, decodeRun)
	if found || !errors.As(err, &bad) || !strings.Contains(err.Error(), path) {
		t.Fatalf("found %t, %v", found, err)
	}
}

// Only one run at a time can lock a progress file, even through different links. After unlock, the
// next run can lock the file, and no lock file remains.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "run.progress"), filepath.Join(dir, "link")
	if err := errors.Join(writeProgress(path, run{}), os.Symlink(path, link)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		unlock, err := LockProgress(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{path, link} {
			if _, err := LockProgress(name); !errors.Is(err, ErrLocked) {
				t.Errorf("%s is locked a second time: %v", name, err)
			}
		}
		unlock()
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("the lock leaves files: %v", entries)
	}
}

func TestLocksExclude(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.progress")
	var holders, locked atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for locked.Load() < 200 && !t.Failed() {
				unlock, err := LockProgress(path)
				if errors.Is(err, ErrLocked) {
					runtime.Gosched()
					continue
				}
				if err != nil || holders.Add(1) != 1 {
					t.Errorf("%d hold the lock, %v", holders.Load(), err)
					return
				}
				locked.Add(1)
				holders.Add(-1)
				unlock()
			}
		})
	}
	all.Wait()
}

func TestCreateReplacesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.progress")
	if err := createProgress(path, run{Line: 1}); err != nil {
		t.Fatal(err)
	}
	if err := createProgress(path, run{Line: 2}); !errors.Is(err, os.ErrExist) {
		t.Errorf("one that is there is created: %v", err)
	}
	if got, _, err := readProgress(path, decodeRun); err != nil || got.Line != 1 {
		t.Errorf("it holds %+v, %v", got, err)
	}
}
