package cold

import (
	"errors"
	"time"
)

// This file keeps a full disk from ending the process: no generation is begun while
// there is little room, and what Pebble has under way when there is none waits for
// some. Rows that were read or counted meanwhile need no disk that takes bytes.

const (
	// roomMin is how much space must be free to write generations: about forty times
	// the largest batch, for its log, its files, and what Pebble rewrites meanwhile.
	roomMin  = 64 << 20
	roomPoll = 200 * time.Millisecond
)

// ErrFull is returned by Group.Write and Records.Write while the disk has no room. It is worth trying
// again.
var ErrFull = errors.New("the disk has no room for cold rows")

// hasRoom reports whether the disk has room for generations, and true where that is
// unknown.
func (s *Store) hasRoom() bool {
	usage, err := s.cfg.FS.GetDiskUsage(s.cfg.Dir)
	return err != nil || usage.AvailBytes >= roomMin
}

// awaitRoom returns once there is room, or the store is closing. A write that found no
// room calls it and is then retried once; other writes wait meanwhile. Open does not
// wait but returns the error.
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
