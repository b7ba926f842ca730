// Package scarce owns the judgement of errors that mean that the machine has too little of
// something for a moment: disk, or file descriptors.
//
// It never waits or retries. Invariant: an error that Is reports changed nothing on disk that
// its caller has not written itself.
package scarce

import (
	"errors"
	"syscall"
)

// Is reports whether err, or an error that it wraps, passes once the machine has more of what
// it lacks. What can wait is then tried again; the disk is not damaged.
func Is(err error) bool {
	return NoFiles(err) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// NoFiles reports whether err means that the process or the machine has no file descriptor left.
func NoFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
