package headroom

import (
	"fmt"
	"sync"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
)

// SnapshotSpace divides the free disk among the snapshots that are written at the same time.
type SnapshotSpace struct {
	Free func() (uint64, error)

	mu struct {
		sync.Mutex
		taken uint64 // by running snapshots; their written part is no longer free either
	}
}

// Take reserves bytes for a snapshot, or returns ErrNoRoom. The caller must call release once the
// snapshot is written or has failed.
func (d *SnapshotSpace) Take(bytes uint64) (release func(), err error) {
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

// Usage is what this node needs and has of memory or disk.
type Usage struct {
	Full                  bool
	NeededBytes, HasBytes uint64
}

func (h *Headroom) Disk() Usage {
	return Usage{Full: h.DiskFull.Load(), NeededBytes: h.diskNeeds.Load(), HasBytes: h.diskFree.Load()}
}

func (h *Headroom) Memory() Usage {
	return Usage{Full: h.MemoryFull.Load(), NeededBytes: h.memoryNeeds.Load(), HasBytes: h.MemoryLimit}
}

// DiskFullError is returned for a write while the disk has too little free space. It wraps
// ErrDiskFull.
type DiskFullError struct {
	FreeBytes    uint64
	NeededBytes  uint64 // the reserve plus the size of the next snapshots
	ReserveBytes uint64 // the configured reserve
}

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("%v: %d bytes are free and more than %d are needed, of which %d are the reserve",
		errs.ErrDiskFull, e.FreeBytes, e.NeededBytes, e.ReserveBytes)
}

func (e *DiskFullError) Unwrap() error { return errs.ErrDiskFull }
