package cold

import (
	"errors"

	"github.com/countd/countd/internal/scarce"
)

// This file keeps a full disk from ending the process. Little room: no generation is
// begun. No room: Pebble's pending writes wait for some (scarce.Wait). Meanwhile reads and
// counting in memory go on, which need no room on disk.

const (
	// roomMin is the free space that a write of generations requires: about forty times
	// the largest batch, for its log, its files, and what Pebble rewrites meanwhile.
	roomMin = scarce.RoomMin
)

// ErrFull is returned by Group.Write and Records.Write while the disk has no room. The
// caller may retry.
var ErrFull = errors.New("the disk has no room for cold rows")

// hasRoom reports whether the disk has room for generations. It returns true if that is
// unknown.
func (s *Store) hasRoom() bool {
	usage, err := s.cfg.FS.GetDiskUsage(s.cfg.Dir)
	return err != nil || usage.AvailBytes >= roomMin
}
