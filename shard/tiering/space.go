package tiering

import (
	"fmt"
	"sync"

	"github.com/countd/countd/shard/replica"
)

// SnapshotSpace divides the free disk space among snapshots that are written at the same time.
type SnapshotSpace struct {
	Free func() (uint64, error)
	// Needs returns the bytes that must be free, without those kept for growths: with less, the node refuses
	// writes. It is nil for none.
	Needs func() uint64

	mu struct {
		sync.Mutex
		taken uint64 // bytes reserved for running snapshots, including their written part, and kept
		kept  uint64 // bytes kept for growths
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
	if err := d.takeLocked(bytes, free); err != nil {
		return nil, err
	}
	return func() {
		d.mu.Lock()
		d.mu.taken -= bytes
		d.mu.Unlock()
	}, nil
}

func (d *SnapshotSpace) takeLocked(bytes, free uint64) error {
	if d.mu.taken+bytes > free {
		return fmt.Errorf("%w of about %d bytes: %d are free, %d of them taken", replica.ErrNoRoom, bytes, free, min(free, d.mu.taken))
	}
	d.mu.taken += bytes
	return nil
}

// Kept returns the bytes that are kept for growths.
func (d *SnapshotSpace) Kept() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.kept
}

// KeptSpace is disk space for the first snapshots of the parts of a shard. Nobody else gets it before
// End. Its methods are safe for concurrent use.
type KeptSpace struct {
	of   *SnapshotSpace
	left uint64 // under of.mu
	over bool   // under of.mu: End was called
}

// Keep reserves bytes until KeptSpace.End. It returns replica.ErrNoRoom if the disk lacks them, or if the node
// would then refuse writes.
func (d *SnapshotSpace) Keep(bytes uint64) (*KeptSpace, error) {
	free, err := d.Free()
	if err != nil {
		return nil, err
	}
	needs := uint64(0)
	if d.Needs != nil {
		needs = d.Needs()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if needs += d.mu.kept + bytes; needs >= free-free/fullShare {
		return nil, fmt.Errorf("%w: with about %d bytes for a growth, %d must be free, and %d are", replica.ErrNoRoom, bytes, needs, free)
	}
	if err := d.takeLocked(bytes, free); err != nil {
		return nil, err
	}
	d.mu.kept += bytes
	return &KeptSpace{of: d, left: bytes}, nil
}

// Take is SnapshotSpace.Take for a snapshot that may use the kept space. If saved returns false at the
// release, the snapshot has failed, and its share is kept again.
func (k *KeptSpace) Take(bytes uint64, saved func() bool) (release func(), err error) {
	d := k.of
	free, err := d.Free()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	share := min(bytes, k.left)
	k.addLocked(-share)
	if err := d.takeLocked(bytes, free); err != nil {
		k.addLocked(share)
		return nil, err
	}
	return func() {
		failed := !saved()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.mu.taken -= bytes
		if failed && !k.over {
			k.addLocked(share)
		}
	}, nil
}

// End releases the space. A second call does nothing.
func (k *KeptSpace) End() {
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	k.addLocked(-k.left)
	k.over = true
}

// addLocked adds bytes, which may be a negative number in two's complement, to what is kept.
func (k *KeptSpace) addLocked(bytes uint64) {
	k.left += bytes
	k.of.mu.kept += bytes
	k.of.mu.taken += bytes
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
