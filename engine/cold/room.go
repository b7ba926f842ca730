package cold

import (
	"errors"
	"time"
)

// This file keeps a full disk from ending the process: no generation is begun while
// there is little room, and what Pebble has under way when there is none waits for
// some. Rows that were read or counted meanwhile need no disk that takes bytes.

const (
	// roomMin is what must be free to write generations: some forty times the
	// largest batch, for its log, its files, and what Pebble rewrites meanwhile.
	roomMin  = 64 << 20
	roomPoll = 200 * time.Millisecond
)

// ErrFull is returned by Group.Write and Records.Write while the disk has no room. It is worth trying
// again.
var ErrFull = errors.New("the disk has no room for cold rows")

// hasRoom reports whether the disk takes generations, and true where it does not tell.
func (s *Store) hasRoom() bool {
	usage, err := s.cfg.FS.GetDiskUsage(s.cfg.Dir)
	return err != nil || usage.AvailBytes >= roomMin
}

// awaitRoom returns once there is room, or the store is to be closed. A write that
// found none calls it, and is tried once more; others wait meanwhile. Open does not
// wait: who starts is told.
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
			s.cfg.Logger.Info("writes of cold rows go on", "dir", s.cfg.Dir)
			return
		}
	}
}
