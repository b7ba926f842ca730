package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
)

// A directory remembers the targets with an archive of its cluster. A damaged file is an error until a target is noted.
func TestArchiveSeen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	expect := func(cluster, to string, want bool) {
		t.Helper()
		if got, err := (&DataDir{path: dir}).ArchiveSeen(cluster, to); err != nil || got != want {
			t.Errorf("%s of %s: seen %t, %v, want %t", to, cluster, got, err, want)
		}
	}
	d := &DataDir{path: dir}
	for _, to := range []string{"/a/b/", "s3://b/c?insecure=true"} {
		expect("x", to, false)
		must.Do(t, d.NoteArchiveSeen("x", to))
	}
	for _, to := range []string{"/a/b", "/a//b/../b", "s3://b/c?insecure=true"} {
		expect("x", to, true)
		expect("y", to, false) // that of the node after a recovery
	}
	expect("x", "/a", false)

	path := filepath.Join(dir, backupSeenFile)
	must.Do(t, os.WriteFile(path, []byte("{"), 0o600))
	if seen, err := d.ArchiveSeen("x", "/a/b"); err == nil || seen || !strings.Contains(err.Error(), backupSeenFile) {
		t.Errorf("a damaged file: %t, %v", seen, err)
	}
	for i := range archivesSeenMax + 1 {
		must.Do(t, d.NoteArchiveSeen("x", fmt.Sprint("/", i)))
	}
	expect("x", "/0", false)
	expect("x", "/1", true)
	expect("x", fmt.Sprint("/", archivesSeenMax), true)
	must.Do(t, d.NoteArchiveSeen("y", "/1"))
	expect("y", "/1", true)
	expect("x", "/1", false)
}
