package members

import (
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// tableFS is the file system of the files of pairs. Pebble treats changed bytes as damage, but not a read
// error of the disk. The store would then never remove the file (see discard.go). So tableFS turns such
// an error into damage. Use it as a pointer, because Pebble compares file systems.
type tableFS struct {
	vfs.FS
	unreadable func(path string, err error)
}

// Unwrap implements vfs.FS.
func (fs *tableFS) Unwrap() vfs.FS { return fs.FS }

// Open implements vfs.FS.
func (fs *tableFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	if err == nil && strings.HasSuffix(name, ".sst") {
		f = table{f, name, fs.unreadable}
	}
	return f, err
}

// table is a file of pairs that Pebble reads.
type table struct {
	vfs.File
	path       string
	unreadable func(path string, err error)
}

// ReadAt implements vfs.File. Pebble never reads beyond the end of a file.
func (t table) ReadAt(p []byte, offset int64) (int, error) {
	n, err := t.File.ReadAt(p, offset)
	if err != nil {
		t.unreadable(t.path, err)
		err = errors.Join(pebble.ErrCorruption, err)
	}
	return n, err
}
