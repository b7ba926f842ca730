package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	reserveBytes  = 64 << 20         // more than the logs reserve at once
	fullDisks     = 5                // number of times that the disk gets full
	stopTimeout   = 10 * time.Second // that a node says it takes
	writesBetween = 300              // number of acknowledged writes before and after the disk is full
)

// writeCode sends a write without a new row. It returns the code of the refusal, or "" if the write
// succeeds.
func writeCode(n *proctest.Node) string {
	var got struct{ Error struct{ Code string } }
	body := map[string]any{"ops": []op{{"1", map[string]int64{"repost": 0}}}}
	if _, err := n.Call(http.MethodPost, incrPath, body, &got); err != nil {
		return err.Error()
	}
	return got.Error.Code
}

// someWrites starts writers, and returns once further writes are acknowledged. The writers keep
// running.
func someWrites(t *testing.T, n *proctest.Node, l *ledger) *writers {
	t.Helper()
	before := l.acknowledged()
	w := startWriters(n, l)
	eventually(t, "writes are acknowledged", func() bool { return l.acknowledged() > before+writesBetween })
	return w
}

// writeUntilRefused writes large requests, in rows of its own, until they are refused or
// the node is down. Small writes alone may continue for long on a full disk, in the space
// that a log has reserved.
func writeUntilRefused(n *proctest.Node) {
	for {
		status, err := n.Call(http.MethodPost, setPath, largeSet(), nil)
		if err != nil || status != http.StatusOK {
			return
		}
	}
}

// TestDiskReserve fills a disk under writers. A node with a reserve
//
//  1. refuses writes with disk_full while the reserve is still free;
//  2. answers reads, even after a start on such a disk;
//  3. accepts writes again, without a restart, once there is free space;
//  4. loses no acknowledged write, even if it is killed at each of these points.
func TestDiskReserve(t *testing.T) { eachLogStore(t, diskReserve) }

func diskReserve(t *testing.T, logStore string) {
	d, l := smallDisk(t), newLedger()
	n := proctest.NewNode(t, bin, d.data(), logStore, "--disk-reserve=64MiB", "--shards=posts=2", "--shards=users=1")
	n.StartReady()
	w := someWrites(t, n, l)
	d.fill(t, reserveBytes+2<<20)
	writeUntilRefused(n)
	eventually(t, "the disk counts as full", func() bool { return writeCode(n) == "disk_full" })
	n.Rows("posts", l.ids)
	n.Kill()
	w.wait(t)
	if free := d.free(t); free < reserveBytes/2 {
		t.Errorf("%d bytes are left of a reserve of %d", free, reserveBytes)
	}

	n.StartReady()
	l.check(t, n)
	d.fill(t, reserveBytes-1<<20) // the start may have released a file that the log had reserved
	eventually(t, "the disk counts as full after a restart", func() bool { return writeCode(n) == "disk_full" })
	d.makeRoom(t)
	eventually(t, "writes are taken again", func() bool { return writeCode(n) == "" })
	w = someWrites(t, n, l)
	n.Kill()
	w.wait(t)
	n.StartReady()
	l.check(t, n)
	t.Logf("%d requests acknowledged", l.acknowledged())
}

// TestFullDisk makes a node without a reserve write until its disk is full, again and again
// on one data directory. Each time
//
//  1. the node lives and refuses writes, and accepts them without a restart once there is
//     free space again;
//  2. without free space, the node refuses to start, or serves every count;
//  3. with free space again, the node has everything that it acknowledged, and continues.
func TestFullDisk(t *testing.T) { eachLogStore(t, fullDisk) }

func fullDisk(t *testing.T, logStore string) {
	d, l := smallDisk(t), newLedger()
	n := proctest.NewNode(t, bin, d.data(), logStore, "--disk-reserve=0", "--shards=posts=2", "--shards=users=1")
	for i := range fullDisks {
		n.StartReady()
		l.check(t, n)
		w := someWrites(t, n, l)
		d.fill(t, int64(i)*300<<10) // so that the disk gets full in the middle of different activities
		writeUntilRefused(n)
		time.Sleep(15 * time.Second)                                                   // longer than a disk may hang
		if code := writeCode(n); code == "" && strings.HasSuffix(logStore, "shared") { // a bolt file has free pages
			t.Error("a write was accepted on a full disk")
		}
		d.makeRoom(t)
		eventually(t, "writes are accepted again", func() bool { return writeCode(n) == "" })
		if strings.Contains(n.Log(), "fatal") {
			t.Errorf("the node ended:\n%s", n.Log())
		}
		d.fill(t, 0)
		n.Kill()
		w.wait(t)
		d.fill(t, 0) // also of what the exit gave back
		n.Start()
		switch ready, code := n.WaitReady(openTimeout); {
		case ready:
			t.Log("serves from a full disk")
			l.check(t, n)
		case code != 1:
			t.Errorf("neither serves nor refuses a full disk, exit code %d", code)
		}
		n.Kill()
		d.makeRoom(t)
	}
	n.StartReady()
	l.check(t, n)
	t.Logf("%d requests acknowledged", l.acknowledged())
}

// TestStopOnAFullDisk stops a node that has no disk space for its next snapshot. The node skips the
// snapshot and exits with 0, and its log has all acknowledged writes.
func TestStopOnAFullDisk(t *testing.T) { eachLogStore(t, stopOnAFullDisk) }

func stopOnAFullDisk(t *testing.T, logStore string) {
	d, l := smallDisk(t), newLedger()
	n := proctest.NewNode(t, bin, d.data(), logStore, "--disk-reserve=0", "--shards=posts=1", "--shards=users=1")
	n.StartReady()
	growLog(t, n)
	w := someWrites(t, n, l)
	n.Kill()
	w.wait(t)
	n.StartReady() // without writes, so that the snapshot is the first to need disk space
	d.fill(t, 0)
	n.Signal(syscall.SIGTERM)
	if code := n.Exited(stopTimeout); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, n.Log())
	}
	if !strings.Contains(n.Log(), "the disk has no room for a snapshot") {
		t.Errorf("no snapshot met the full disk:\n%s", n.Log())
	}
	d.makeRoom(t)
	n.StartReady()
	l.check(t, n)
	n.Stop()
	n.StartReady()
	hasSnapshots(t, n)
	l.check(t, n)
}
