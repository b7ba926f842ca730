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

// Whatever one byte of a small file becomes, the directory is refused with the name of
// the file, or opens as it was.
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
			for _, bits := range []byte{1, 4, 32, 128, ' ' ^ '\t'} { // the last makes one bit of the checksum another
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
				if d.Identity != id || !d.WasOpened(17) || d.opened.count() != 2 {
					t.Errorf("%s, byte %d is %q: misread as %+v with %d groups", name, i, changed[i], d.Identity, d.opened.count())
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
	object, _, _ := strings.Cut(edited, "\n") // without the checksum the edit is taken
	if err := os.WriteFile(path, []byte(object+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := open(t, dir, ""); !d.WasOpened(18) || d.WasOpened(17) {
		t.Error("the edit was not read")
	}
}

// Files without checksums, as programs of cluster version 4 write them, are read and get
// one at the start. Those programs read the ones that have.
func TestFilesWithoutChecksumsGetOne(t *testing.T) {
	dir, id := madeDir(t)
	for _, name := range []string{identityFile, openedFile} {
		path := filepath.Join(dir, name)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var before any
		if err := json.Unmarshal(raw, &before); err != nil {
			t.Errorf("%s is no JSON: %v", name, err)
		}
		for _, end := range []string{"", "\n", "\r\n"} {
			plain := strings.TrimSpace(string(raw)) + end
			if err := os.WriteFile(path, []byte(plain), 0o600); err != nil {
				t.Fatal(err)
			}
			d := open(t, dir, "")
			if d.Identity != id || !d.WasOpened(17) || d.opened.count() != 2 {
				t.Errorf("%s that ends with %q: %+v, %d groups", name, end, d.Identity, d.opened.count())
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != string(raw) {
				t.Errorf("%s that ended with %q is %q after a start, want %q, %v", name, end, now, raw, err)
			}
		}
	}
}
