package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	reserveBytes  = 64 << 20 // more than the space that the logs allocate in advance
	fullDisks     = 5        // number of times that the disk gets full
	writesBetween = 300      // number of acknowledged writes before and after the disk is full
)

// writeCode sends a write that adds no row. It returns the error code of a refusal, or "" if the
// write succeeds.
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

// writeUntilRefused sends large writes to rows of its own, until one is refused or the node is
// down. Small writes would fill the disk too slowly, because a log has allocated space in advance.
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
//  2. answers reads, even after a restart on the full disk;
//  3. accepts writes again, without a restart, once there is free space;
//  4. loses no acknowledged write, even if it is killed on the full disk and after writes resumed.
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
	d.fill(t, reserveBytes-1<<20) // the start may have deleted a file that the log had allocated in advance
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

// TestFullDisk makes a node without a reserve write until its disk is full. It repeats this on one
// data directory. Each time
//
//  1. the node keeps running and refuses writes. It accepts writes without a restart once there is
//     free space again;
//  2. after a kill, the node either refuses to start on the full disk or serves every count;
//  3. once there is free space again, the node starts, has every acknowledged write, and accepts
//     new ones.
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
		time.Sleep(15 * time.Second)                                                   // longer than the time after which a node counts its disk as hung
		if code := writeCode(n); code == "" && strings.HasSuffix(logStore, "shared") { // with bbolt the write may succeed, because its file has free pages
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
		d.fill(t, 0) // fill the space that the killed process released
		n.Start()
		switch ready, code := n.WaitReady(must.BecomeMax); {
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
// snapshot and exits with 0. Its log contains all acknowledged writes.
func TestStopOnAFullDisk(t *testing.T) { eachLogStore(t, stopOnAFullDisk) }

func stopOnAFullDisk(t *testing.T, logStore string) {
	d, l := smallDisk(t), newLedger()
	n := proctest.NewNode(t, bin, d.data(), logStore, "--disk-reserve=0", "--shards=posts=1", "--shards=users=1")
	n.StartReady()
	growLog(t, n)
	w := someWrites(t, n, l)
	n.Kill()
	w.wait(t)
	n.StartReady() // send no writes after this start, so that only the snapshot needs disk space
	d.fill(t, 0)
	n.Signal(syscall.SIGTERM)
	if code := n.Exited(); code != 0 {
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
