package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
)

// Every target does what DESIGN.md says.
func TestTargets(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) Target{
		"directory": func(t *testing.T) Target { return Directory(filepath.Join(t.TempDir(), "new", "archive")) },
		"memory":    func(*testing.T) Target { return newMemTarget() },
		"bucket":    func(t *testing.T) Target { return served(t, fakeS3(t).Server()) },
	} {
		t.Run(name, func(t *testing.T) {
			target, ctx := open(t), t.Context()
			list := func(prefix string, want ...string) {
				t.Helper()
				if got, err := target.List(ctx, prefix); err != nil || !slices.Equal(got, want) {
					t.Errorf("%q lists %q, %v, want %q", prefix, got, err, want)
				}
			}
			list("")
			list("chunks/")
			must.Do(t, target.Delete(ctx, "chunks/ab/abcd"))
			if _, err := target.Get(ctx, "chunks/ab/abcd"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got nothing: %v", err)
			}
			for _, body := range [][]byte{{}, noise(1, 1<<20), []byte("short")} {
				must.Do(t, target.Put(ctx, "chunks/ab/abcd", body))
				if got, err := target.Get(ctx, "chunks/ab/abcd"); err != nil || !bytes.Equal(got, body) {
					t.Errorf("put %d bytes, got %d, %v", len(body), len(got), err)
				}
			}
			must.Do(t, target.Put(ctx, "archive.json", nil))
			must.Do(t, target.Put(ctx, "chunks/aa/aacd", nil))
			list("", "archive.json", "chunks/aa/aacd", "chunks/ab/abcd")
			list("chunks/", "chunks/aa/aacd", "chunks/ab/abcd")
			list("backups/")
			must.Do(t, target.Delete(ctx, "chunks/ab/abcd"))
			list("", "archive.json", "chunks/aa/aacd")
			must.Do(t, target.Delete(ctx, "chunks/ab/abcd"))
			var many []string // more than a page of a bucket has
			for i := range 1100 {
				many = append(many, fmt.Sprintf("claims/%04d", i))
				must.Do(t, target.Put(ctx, many[i], nil))
			}
			list("claims/", many...)
		})
	}
}

// After a Put that was killed, the file has its old bytes. The temporary file is listed, so that a sweep deletes it.
func TestAKilledPutLeavesATemporaryFile(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, Directory(dir).Put(t.Context(), "backups/x", []byte("old")))
	must.Do(t, os.WriteFile(filepath.Join(dir, "backups", ".x.1.0.tmp"), []byte("ne"), 0o600))
	names, err := Directory(dir).List(t.Context(), "backups/")
	if err != nil || len(names) != 2 || !isTemporary(names[0]) || isTemporary(names[1]) {
		t.Errorf("%q, %v", names, err)
	}
}

func TestPlacesOfTargets(t *testing.T) {
	for place, ok := range map[string]bool{"dir": true, "/a/b": true, "s3://backups": true, "": false, "gopher://x/y": false, "S3x://backups": false} {
		if _, err := OpenTarget(context.Background(), place); (err == nil) != ok {
			t.Errorf("%q: %v", place, err)
		}
	}
}

// A directory and its parts may be links, and the root of a file system has a directory that only root can read.
func TestLinkedDirectories(t *testing.T) {
	whole, links := t.TempDir(), t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(whole, "lost+found"), 0o700))
	must.Do(t, os.WriteFile(filepath.Join(whole, "lost+found", "x"), nil, 0o600)) // root could list it
	must.Do(t, os.Symlink(whole, filepath.Join(links, "archive")))
	target := Directory(filepath.Join(links, "archive"))
	_, err := CreateArchive(t.Context(), target, "c", nil)
	must.Do(t, err)
	must.Do(t, os.MkdirAll(filepath.Join(links, "elsewhere"), 0o700))
	must.Do(t, os.Symlink(filepath.Join(links, "elsewhere"), filepath.Join(whole, "backups")))
	must.Do(t, target.Put(t.Context(), "chunks/ab/abcd", nil))
	must.Do(t, target.Put(t.Context(), "backups/x", nil))
	for prefix, want := range map[string]string{"chunks/": "chunks/ab/abcd", "backups/": "backups/x", "claims/": ""} {
		if got, err := target.List(t.Context(), prefix); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q lists %q, %v", prefix, got, err)
		}
	}
	if got, err := target.List(t.Context(), ""); err != nil || !slices.Contains(got, "chunks/ab/abcd") || slices.ContainsFunc(got, func(name string) bool { return strings.Contains(name, "lost") }) {
		t.Errorf("all: %q, %v", got, err)
	}
}

// No target reads a file that is longer than a run can have stored.
func TestGetIsBounded(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"backups/x.json", "chunks/ab/abcd", "archive.json"} {
		at := filepath.Join(dir, filepath.FromSlash(name))
		must.Do(t, os.MkdirAll(filepath.Dir(at), 0o700))
		must.Do(t, os.WriteFile(at, nil, 0o600))
		must.Do(t, os.Truncate(at, 300<<20))
		if _, err := Directory(dir).Get(t.Context(), name); !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), name+" has 314572800 bytes, more than ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	bucket := served(t, fakeS3(t).Server())
	must.Do(t, bucket.Put(t.Context(), "chunks/ab/abcd", make([]byte, 2*chunkBytesMax+1)))
	if _, err := bucket.Get(t.Context(), "chunks/ab/abcd"); !errors.Is(err, ErrIncomplete) {
		t.Errorf("a bucket: %v", err)
	}
	if _, err := Directory(dir).Get(t.Context(), "backups"); !errors.Is(err, ErrIncomplete) {
		t.Errorf("a directory: %v", err)
	}
}
