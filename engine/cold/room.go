package cold

import (
	"errors"
	"time"
)

// This file keeps a full disk from ending the process. Little room: no generation is
// begun. No room: Pebble's pending writes wait for some. Meanwhile reads and counting in
// memory go on, which need no room on disk.

const (
	// roomMin is the free space that a write of generations requires: about forty times
	// the largest batch, for its log, its files, and what Pebble rewrites meanwhile.
	roomMin  = 64 << 20
	roomPoll = 200 * time.Millisecond
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

// awaitRoom blocks until there is room or the store is closing. Pebble calls it for a
// write that found no room, and then retries the write once; other writes wait meanwhile.
// During Open it returns at once, so that Open returns the error.
func (s *Store) awaitRoom() {
	if !s.opened.Load() {
		return
	}
	s.cfg.Logger.Error("the disk is full: writes of cold rows wait for room", "dir", s.cfg.Dir, "bytes", roomMin)
	tick := time.NewTicker(roomPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.closing:
			return
		}
		if s.hasRoom() {
			s.cfg.Logger.Info("writes of cold rows continue: the disk has room again", "dir", s.cfg.Dir)
			return
		}
	}
}
