package members

import (
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// tableFS is the file system of Pebble's table files. Pebble treats changed bytes as damage, but
// not a read error of the disk, and the store removes only damaged files (see discard.go). So
// tableFS turns a read error into a damage error. Use it as a pointer, because Pebble compares file
// systems.
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

// table is a table file that Pebble reads.
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
