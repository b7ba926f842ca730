package shard

import (
	"fmt"
	"sync"

	"github.com/countd/countd/shard/replica"
)

// diskRoom gives what is free on the disk to the snapshots that are written at
// the same time.
type diskRoom struct {
	free func() (uint64, error)

	mu struct {
		sync.Mutex
		taken uint64 // by snapshots under way: some of it is written, and not free either
	}
}

// take returns ErrNoRoom unless the disk has that many bytes for a snapshot. The
// caller calls give once it is written, or was not.
func (d *diskRoom) take(bytes uint64) (give func(), err error) {
	free, err := d.free()
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

// snapshotBytes is what the next snapshot of each group of this node may take,
// all at once. The catalog's takes next to nothing.
func (n *Node) snapshotBytes() uint64 {
	total := uint64(0)
	for _, g := range n.groups.Load().all {
		if r := g.replica.Load(); r != nil {
			total += r.group.SnapshotBytes()
		}
	}
	return total
}
