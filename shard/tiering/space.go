package tiering

import (
	"fmt"
	"sync"

	"github.com/countd/countd/shard/replica"
)

// SnapshotSpace divides the free disk space among snapshots that are written at the same time.
type SnapshotSpace struct {
	Free func() (uint64, error)

	mu struct {
		sync.Mutex
		taken uint64 // bytes reserved for running snapshots, including their written part
	}
}

// Take reserves bytes for a snapshot, or returns replica.ErrNoRoom. The caller must call release
// when the snapshot is written or has failed.
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

// Usage is the memory or disk space that this node needs and has.
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
