package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
)

// A directory remembers the last target with an archive. A damaged file is an error that names it.
func TestArchiveSeen(t *testing.T) {
	t.Parallel()
	d := &DataDir{path: t.TempDir()}
	for _, want := range []string{"", "/a", "s3://b/c?insecure=true"} {
		if want != "" {
			must.Do(t, d.NoteArchiveSeen(want))
		}
		if got, err := (&DataDir{path: d.path}).ArchiveSeen(); err != nil || got != want {
			t.Errorf("seen %q, %v, want %q", got, err, want)
		}
	}
	path := filepath.Join(d.path, backupSeenFile)
	must.Do(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, err := d.ArchiveSeen(); err == nil || !strings.Contains(err.Error(), "delete "+path) {
		t.Errorf("a damaged file: %v", err)
	}
}
