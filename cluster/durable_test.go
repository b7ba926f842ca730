package cluster

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// madeDir returns a closed data directory of a node with a cluster and groups.
func madeDir(t *testing.T) (path string, id Identity) {
	t.Helper()
	path = t.TempDir()
	d := open(t, path, "a")
	for _, err := range []error{d.SetCluster(clusterX, true), d.GroupOpened(0), d.GroupOpened(17), d.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return path, d.Identity
}

// If one byte of a small file changes, OpenDataDir returns an error with the name of the file, or opens the
// directory with unchanged values.
func TestChangedByteOfASmallFileIsNeverMisread(t *testing.T) {
	dir, id := madeDir(t)
	for _, name := range []string{identityFile, openedFile} {
		path := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for i := range whole {
			for _, bits := range []byte{1, 4, 32, 128} {
				changed := slices.Clone(whole)
				changed[i] ^= bits
				if err := os.WriteFile(path, changed, 0o600); err != nil {
					t.Fatal(err)
				}
				d, err := OpenDataDir(dir, "")
				if err != nil {
					if refused++; !strings.Contains(err.Error(), name) {
						t.Errorf("%s, byte %d is %q: the error does not name the file: %v", name, i, changed[i], err)
					}
					continue
				}
				if d.Identity != id || !d.WasOpened(17) || d.count() != 2 {
					t.Errorf("%s, byte %d is %q: misread as %+v with %d groups", name, i, changed[i], d.Identity, d.count())
				}
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if refused == 0 {
			t.Errorf("%s: no change was refused", name)
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEditedFileSaysThatItsChecksumDiffers(t *testing.T) {
	dir, _ := madeDir(t)
	path := filepath.Join(dir, openedFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(raw), "17", "18", 1)
	if err := os.WriteFile(path, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDataDir(dir, ""); !errors.Is(err, ErrBadChecksum) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}

// OpenDataDir refuses a file without a checksum, as unreleased versions wrote them. The error names
// the file.
func TestFilesOfUnreleasedVersionsAreRefused(t *testing.T) {
	for _, name := range []string{identityFile, openedFile} {
		dir, _ := madeDir(t)
		path := filepath.Join(dir, name)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		object, _, _ := strings.Cut(string(raw), checksumHead)
		if !json.Valid([]byte(object)) {
			t.Errorf("%s is no JSON: %q", name, object)
		}
		for _, end := range []string{"", " \t  \t\n"} {
			if err := os.WriteFile(path, []byte(object+end), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenDataDir(dir, ""); !errors.Is(err, ErrUnreleased) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s that ends with %q: %v", name, end, err)
			}
		}
	}
}
