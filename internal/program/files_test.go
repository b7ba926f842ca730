package program_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/countd/countd/internal/program"
)

func TestFileIsReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for _, text := range []string{"first", "second, longer", ""} {
		f, err := program.CreateFile(path)
		if err == nil {
			_, err = f.Write([]byte(text))
		}
		if err == nil {
			err = f.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Fatalf("the file holds %q, %v; want %q", got, err, text)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Fatalf("temporary files are left: %v", entries)
	}
}

// Two concurrent AtomicFiles of one target have different temporary files, and the last commit
// wins.
func TestTwoAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	first, err1 := program.CreateFile(path)
	second, err2 := program.CreateFile(path)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		file *program.AtomicFile
		text string
	}{{second, "second"}, {first, "first"}} {
		if _, err := f.file.Write([]byte(f.text)); err != nil {
			t.Fatal(err)
		}
		if err := f.file.Commit(); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); string(got) != f.text {
			t.Fatalf("the file holds %q, want %q", got, f.text)
		}
	}
}

// CommitNew creates a file, and does not change an existing one.
func TestCommitNew(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for i, text := range []string{"first", "second"} {
		f, err := program.CreateFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.CommitNew(); errors.Is(err, os.ErrExist) != (i > 0) || i == 0 && err != nil {
			t.Fatalf("the %s: %v", text, err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "first" {
		t.Fatalf("the file holds %q, %v", got, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Fatalf("temporary files are left: %v", entries)
	}
}

func TestAFailedCommitLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := program.CreateFile(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("Commit into a directory that is gone: %v", err)
	}
	if _, err := program.CreateFile(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("Create in a directory that is gone: %v", err)
	}
}

// A crash may leave the temporary file of ReplaceFile with any content. The next call overwrites
// it.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.WriteFile(path+".tmp", []byte("left by a crash, and longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"first", "second, longer", ""} {
		if err := program.ReplaceFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Fatalf("the file holds %q, %v; want %q", got, err, text)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Fatalf("temporary files are left: %v", entries)
	}
}
