package cold

import (
	"errors"

	"github.com/countd/countd/internal/scarce"
)

// This file keeps a full disk from ending the process. If free space is low, no generation is begun. If there
// is none, Pebble's pending writes wait for some (scarce.Wait). Meanwhile reads and counting in memory
// continue, because they need no space on disk.

const (
	// roomMin is the free space that a write of generations requires: about forty times
	// the largest batch, for its log, its files, and what Pebble rewrites meanwhile.
	roomMin = scarce.RoomMin
)

// ErrFull is returned by Group.Write and Records.Write while the disk is too full. The caller may retry.
var ErrFull = errors.New("the disk has no room for cold rows")

// hasRoom reports whether the disk has enough free space for generations. It returns true if the free space
// is unknown.
func (s *Store) hasRoom() bool {
	usage, err := s.cfg.FS.GetDiskUsage(s.cfg.Dir)
	return err != nil || usage.AvailBytes >= roomMin
}
