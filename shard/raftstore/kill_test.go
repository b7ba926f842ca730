package raftstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var errKilled = errors.New("the process was killed")

// A process is killed at any change of a file, or ends because a sync failed. The next process
// reads the system's memory, whether or not that data is on disk. Then the machine loses power,
// while that process opens the log or after a few changes. No acknowledged change is lost, and the
// log opens.
func TestKillAndThenPowerLoss(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 3
	}
	for killed := 0; ; killed += step {
		random := rand.New(rand.NewPCG(uint64(killed), 6))
		disk := newDisk()
		broken := &brokenFS{after: killed, err: errKilled}
		h := &history{states: []model{{}}}
		l, err := Open(testDir, Options{FS: &watchedFS{FS: disk, hook: broken.hook}, SegmentBytes: segmentBytesMin})
		if err == nil {
			for range 25 {
				if err = h.make(l, randomOp(random, h.last(), 5000)); err != nil {
					break
				}
			}
			_ = l.Close()
		}
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatalf("killed at change %d: %v", killed, err)
		}
		checkPowerLoss(t, fmt.Sprintf("killed at change %d, then a crash ", killed), h, disk, random)
		if err == nil {
			return
		}
	}
}

// checkPowerLoss opens the log on a disk with unsynced data in the system's memory, and checks the
// state that a crash leaves at each later change of a file.
func checkPowerLoss(t *testing.T, when string, h *history, disk *vfs.MemFS, random *rand.Rand) {
	t.Helper()
	c := &crashes{random: random, disk: disk, acked: h.ackedNow}
	onlySynced := func(next change) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		acked := c.acked()
		c.taken = append(c.taken, crash{disk.CrashClone(vfs.CrashCloneCfg{}), acked, acked, when + "at the " + next.kind + " of " + next.path})
		return nil
	}
	l, err := Open(testDir, Options{FS: &watchedFS{FS: disk, hook: onlySynced}, SegmentBytes: segmentBytesMin})
	if err != nil {
		t.Fatalf("%snever: %v", when, err)
	}
	mustDo(t, h.resume(l))
	for range 3 {
		mustDo(t, h.make(l, randomOp(random, h.last(), 500)))
	}
	mustDo(t, l.Close())
	for _, at := range c.taken {
		checkCrash(t, h, at, at.disk, func() {})
	}
}

// resume drops the interrupted change from the history, unless the reopened log has it.
func (h *history) resume(l *Log) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	diff := h.states[h.acked].differs(l)
	if diff != "" && h.acked+1 < len(h.states) {
		h.acked++
		diff = h.states[h.acked].differs(l)
	}
	if diff != "" {
		return errors.New(diff)
	}
	h.states = h.states[:h.acked+1]
	return nil
}
