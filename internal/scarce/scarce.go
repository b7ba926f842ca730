// Package scarce owns what a node does about a machine that has too little disk or too few file
// descriptors for a moment: which errors mean that, file systems that wait until it has more, and
// how the process shares its descriptors out.
//
// It never ends the process. Invariant: as long as the files of the node need no more descriptors
// than are kept for them, no client and no peer can take the last one.
package scarce

import (
	"errors"
	"syscall"
)

// Is reports whether err, or an error that it wraps, passes once the machine has more of what
// it lacks. What can wait is then tried again; the disk is not damaged.
func Is(err error) bool { return NoFiles(err) || NoRoom(err) }

// NoFiles reports whether err means that the process or the machine has no file descriptor left.
func NoFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// NoRoom reports whether err means that the disk is full, or the user's share of it.
func NoRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
