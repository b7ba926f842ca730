package cold

import (
	"errors"

	"github.com/countd/countd/internal/scarce"
)

// This file keeps a full disk from ending the process. While free space is low, the store writes no
// new generations or records. While there is no free space at all, Pebble's pending writes wait
// (scarce.Wait). Reads, and changes of counts in memory, need no space on disk.

// ErrFull is returned by Group.Write and Records.Write while the disk is too full. The caller may retry.
var ErrFull = errors.New("the disk has no room for cold rows")

// hasRoom reports whether the disk has enough free space for a batch of generations, and for the files that
// Pebble rewrites meanwhile. It returns true if the free space is unknown.
func (s *Store) hasRoom() bool {
	usage, err := s.cfg.FS.GetDiskUsage(s.cfg.Dir)
	return err != nil || usage.AvailBytes >= scarce.RoomMin
}
