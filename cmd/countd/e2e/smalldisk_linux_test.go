package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const diskBytes = 256 << 20

// disk is a small mounted file system.
type disk struct{ dir string }

// smallDisk mounts a small disk: ext4 in a file, or tmpfs if there is no loop device. It is
// unmounted when the test ends. Mounting needs root, so only make e2e-long runs tests that use
// smallDisk.
func smallDisk(t *testing.T) *disk {
	t.Helper()
	if !*smallDisks {
		t.Skip("mounts a small file system, which takes root: make e2e-long runs it, by -small-disks")
	}
	d := &disk{dir: t.TempDir()}
	image := filepath.Join(t.TempDir(), "image")
	err := os.WriteFile(image, nil, 0o600)
	if err == nil {
		err = os.Truncate(image, diskBytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	// Reserve no blocks for root, because this test may run as root.
	err = run("mkfs.ext4", "-q", "-m", "0", image)
	if err == nil {
		err = run("mount", "-o", "loop", image, d.dir)
	}
	if err != nil {
		t.Logf("tmpfs in place of ext4: %v", err)
		err = run("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", diskBytes), "tmpfs", d.dir)
	}
	if err != nil {
		t.Skipf("no small file system can be mounted, which takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := run("umount", d.dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// data returns the path of a node's data directory on the disk.
func (d *disk) data() string { return filepath.Join(d.dir, "data") }

// free returns the number of free bytes.
func (d *disk) free(t *testing.T) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// fill fills the disk until only spare bytes are free.
func (d *disk) fill(t *testing.T, spare int64) {
	t.Helper()
	f, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if more := d.free(t) - spare; more > 0 {
		err = unix.Fallocate(int(f.Fd()), 0, info.Size(), more)
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) { // ENOSPC is possible, because the file system also needs blocks for metadata
		t.Fatalf("cannot fill the disk: %v", err)
	}
}

// makeRoom undoes fill.
func (d *disk) makeRoom(t *testing.T) {
	t.Helper()
	if err := os.Remove(d.filler()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

func (d *disk) filler() string { return filepath.Join(d.dir, "filler") }
