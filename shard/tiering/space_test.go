package tiering

import (
	"errors"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/replica"
)

// The space that is kept suffices for the snapshots of all parts, and other snapshots do not get it.
func TestKeptSpace(t *testing.T) {
	t.Parallel()
	free := uint64(100)
	d := &SnapshotSpace{Free: func() (uint64, error) { return free, nil }}
	d.Needs = func() uint64 { return 14 }
	if _, err := d.Keep(80); !errors.Is(err, replica.ErrNoRoom) {
		t.Errorf("the node would refuse writes: %v", err)
	}
	d.Needs = nil
	kept, err := d.Keep(80)
	must.Do(t, err)
	if _, err := d.Take(21); !errors.Is(err, replica.ErrNoRoom) {
		t.Errorf("another snapshot gets kept space: %v", err)
	}
	release, err := kept.Take(60, func() bool { return false })
	must.Do(t, err)
	if _, err := d.Take(21); !errors.Is(err, replica.ErrNoRoom) {
		t.Errorf("another snapshot gets space in use: %v", err)
	}
	release()
	if d.Kept() != 80 {
		t.Errorf("%d bytes are kept after a snapshot that failed", d.Kept())
	}
	for range 2 { // two parts, each with half of the space, fill the disk
		release, err := kept.Take(40, func() bool { return true })
		must.Do(t, err)
		free -= 40
		release()
	}
	if d.Kept() != 0 {
		t.Errorf("%d bytes are kept after all parts are saved", d.Kept())
	}
	last, err := kept.Take(20, func() bool { return false })
	must.Do(t, err)
	kept.End()
	last()
	if release, err := d.Take(20); err != nil {
		t.Errorf("after the end: %v", err)
	} else {
		release()
	}
	if _, err := d.Take(21); !errors.Is(err, replica.ErrNoRoom) {
		t.Errorf("more than the disk has: %v", err)
	}
}
