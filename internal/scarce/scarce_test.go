package scarce

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func TestIs(t *testing.T) {
	file := func(err error) error { return fmt.Errorf("cannot: %w", &fs.PathError{Op: "open", Err: err}) }
	full, files, broken := file(syscall.ENOSPC), file(syscall.EMFILE), file(syscall.EIO)
	for _, c := range []struct {
		err                 error
		is, noFiles, noRoom bool
	}{
		{nil, false, false, false},
		{errors.New("no space left on device"), false, false, false},
		{broken, false, false, false},
		{full, true, false, true},
		{file(syscall.EDQUOT), true, false, true},
		{files, true, true, false},
		{file(syscall.ENFILE), true, true, false},
		{errors.Join(full, files), true, false, false},
		{errors.Join(full, nil), true, false, true},
		// If one of the errors is no lack of space or files, the result is false.
		{errors.Join(full, broken), false, false, false},
		{fmt.Errorf("%w: %w", broken, full), false, false, false},
		{errors.Join(fs.ErrClosed, files), false, false, false},
	} {
		if is, noFiles, noRoom := Is(c.err), NoFiles(c.err), NoRoom(c.err); is != c.is || noFiles != c.noFiles || noRoom != c.noRoom {
			t.Errorf("%v: %v, %v, %v", c.err, is, noFiles, noRoom)
		}
	}
}
