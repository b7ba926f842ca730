package headroom

import (
	"fmt"
	"sync"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
)

// DiskRoom gives what is free on the disk to the snapshots that are written at
// the same time.
type DiskRoom struct {
	Free func() (uint64, error)

	mu struct {
		sync.Mutex
		taken uint64 // by snapshots under way: some of it is written, and not free either
	}
}

// Take returns ErrNoRoom unless the disk has that many bytes for a snapshot. The
// caller calls give once it is written, or was not.
func (d *DiskRoom) Take(bytes uint64) (give func(), err error) {
	free, err := d.Free()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.taken+bytes > free {
		return nil, fmt.Errorf("%w of about %d bytes: %d are free, %d of them taken", replica.ErrNoRoom, bytes, free, min(free, d.mu.taken))
	}
	d.mu.taken += bytes
	return func() {
		d.mu.Lock()
		d.mu.taken -= bytes
		d.mu.Unlock()
	}, nil
}

// Room is how much of something this node needs and has.
type Room struct {
	Full                  bool
	NeededBytes, HasBytes uint64
}

func (h *Headroom) Disk() Room {
	return Room{Full: h.DiskFull.Load(), NeededBytes: h.diskNeeds.Load(), HasBytes: h.diskFree.Load()}
}

func (h *Headroom) Memory() Room {
	return Room{Full: h.MemoryFull.Load(), NeededBytes: h.memoryNeeds.Load(), HasBytes: h.MemoryLimit}
}

// DiskFullError is returned for a write to a node whose disk has too little free. It is
// an ErrDiskFull.
type DiskFullError struct {
	FreeBytes    uint64
	NeededBytes  uint64 // the reserve, and what the next snapshots may take
	ReserveBytes uint64 // the setting
}

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("%v: %d bytes are free and more than %d are needed, of which %d are the reserve",
		errs.ErrDiskFull, e.FreeBytes, e.NeededBytes, e.ReserveBytes)
}

func (e *DiskFullError) Unwrap() error { return errs.ErrDiskFull }
