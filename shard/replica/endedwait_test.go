package replica

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/countd/countd/shard/errs"
)

// A write of the log may fail after a close has ended another wait. The failure of the disk is
// reported all the same: the owner must not open the replica again.
func TestDiskFailsBesideAnEndedWait(t *testing.T) {
	g, stores, told := startFaulty(t, nil)
	hang := make(chan struct{})
	stores.set(hang, syscall.EIO)
	before := stores.waiting.Load()
	future := g.Apply(number(7))
	eventually(t, "the entry is being stored", func() bool { return stores.waiting.Load() > before })
	g.EndWaits()
	if err := g.stop.Wait(syscall.ENOSPC); !errors.Is(err, errs.ErrGroupClosed) {
		t.Fatal(err)
	}
	close(hang)
	if err := future.Error(); err == nil {
		t.Error("the entry was answered")
	}
	ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
	defer cancel()
	if err := g.Close(ctx, false); err == nil && len(told) == 0 {
		t.Error("nobody heard of the failure")
	}
}
