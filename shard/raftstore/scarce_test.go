package raftstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/internal/scarce"
)

// The disk is full, or no file descriptor is left, when the log needs its next file. The log
// refuses the change and stores nothing of it. The same change succeeds once the machine has the
// resource again, however often that happens. A restart finds every acknowledged change.
func TestNextSegmentThatCannotBeMade(t *testing.T) {
	refused := 0
	for _, failure := range []error{syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.EDQUOT} {
		for seed := range uint64(5) {
			t.Run(fmt.Sprint(failure, seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 9))
				disk := newDisk()
				broken := &brokenFS{only: "create"}
				l, err := Open(testDir, Options{FS: &watchedFS{FS: disk, hook: broken.hook}, SegmentBytes: segmentBytesMin})
				mustDo(t, err)
				h := &history{states: []model{{}}}
				for range 400 {
					broken.mu.Lock()
					broken.err = nil
					if random.IntN(2) == 0 {
						broken.err = failure
					}
					broken.mu.Unlock()
					o := randomOp(random, h.last(), 1500)
					for err := h.make(l, o); err != nil; err = h.make(l, o) {
						if !errors.Is(err, ErrNoSegment) || !errors.Is(err, failure) || !scarce.Is(err) {
							t.Fatal(err)
						}
						refused++
						h.states = h.states[:len(h.states)-1]
						if diff := h.fits(l, h.acked, h.acked); diff != "" {
							t.Fatalf("after a refused change: %s", diff)
						}
						broken.heal()
					}
				}
				mustDo(t, l.Close())
				l = openTest(t, disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: random}))
				if diff := h.fits(l, h.acked, h.acked); diff != "" {
					t.Fatalf("after a restart: %s", diff)
				}
			})
		}
	}
	if refused < 20 {
		t.Errorf("only %d changes were refused", refused)
	}
}
