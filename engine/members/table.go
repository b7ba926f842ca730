package members

import (
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// tableFS is the file system of the files of pairs. Pebble takes a file for damaged if bytes
// differ from those written, but not if the disk cannot read them: without more it would never
// let go of that file, see discard.go. So such an error is one of damage here. Pebble compares file
// systems, so that it is a pointer.
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

// table is a file of pairs that is read.
type table struct {
	vfs.File
	path       string
	unreadable func(path string, err error)
}

// ReadAt implements vfs.File. Pebble reads nothing behind the end of a file.
func (t table) ReadAt(p []byte, offset int64) (int, error) {
	n, err := t.File.ReadAt(p, offset)
	if err != nil {
		t.unreadable(t.path, err)
		err = errors.Join(pebble.ErrCorruption, err)
	}
	return n, err
}
