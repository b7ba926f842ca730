// Package scarce handles a temporary shortage of disk space or file descriptors. It recognises the
// errors of a shortage, and owns file systems that wait until it is over. It also divides the
// descriptors of the process between clients, peers and the node.
//
// It never ends the process. Invariant: while the node's files need no more descriptors than the
// package reserves for them, no client or peer can take the last descriptor.
package scarce

import (
	"syscall"
)

// Is reports whether the only cause of err is a lack of disk space or of file descriptors. If so,
// the disk is not damaged, and the caller may retry later. For a joined error, this must hold for
// each error in it.
func Is(err error) bool {
	return every(err, func(e syscall.Errno) bool { return isNoFiles(e) || isNoRoom(e) })
}

// NoFiles reports whether err means that the process or the machine has no file descriptor left.
func NoFiles(err error) bool { return every(err, isNoFiles) }

// NoRoom reports whether err means that the disk is full, or that the user's quota is used up.
func NoRoom(err error) bool { return every(err, isNoRoom) }

func isNoFiles(e syscall.Errno) bool { return e == syscall.EMFILE || e == syscall.ENFILE }

func isNoRoom(e syscall.Errno) bool { return e == syscall.ENOSPC || e == syscall.EDQUOT }

// every reports whether err wraps system errors only, and match returns true for each of them.
func every(err error, match func(syscall.Errno) bool) bool {
	switch e := err.(type) { //nolint:errorlint // this function unwraps, because errors.As finds only one of the joined errors
	case syscall.Errno:
		return match(e)
	case interface{ Unwrap() error }:
		return every(e.Unwrap(), match)
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		for _, one := range all {
			if !every(one, match) {
				return false
			}
		}
		return len(all) > 0
	}
	return false
}
