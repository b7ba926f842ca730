package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestBackupDuringGrowth backs up a cluster again and again while posts grows from 2 to 6 shards under load. Each
// backup is restored into a keyspace of 2 shards, and into one of 5. Then
//
//  1. each id has every increment that was answered before the backup began;
//  2. no id has an increment that was sent after the backup had ended, or one twice;
//  3. the backup after the load has exactly the sums.
func TestBackupDuringGrowth(t *testing.T) {
	long(t)
	beside(t)
	c := proctest.NewCluster(t, bin, proctest.Options{Shards: map[string]int{"posts": 2, "users": 1, "unread": 1, "feed": 1}})
	at := c.Nodes()[0]
	load := beginLikes(t, c, 4)
	type backup struct {
		dir         string
		least, most likeCounts
	}
	var backups []backup
	take := func() {
		b := backup{dir: filepath.Join(t.TempDir(), fmt.Sprint(len(backups)))}
		b.least, b.most = load.during(func() {
			if out := at.Ctl("backup", b.dir); out.Code != 0 {
				t.Fatalf("a backup: %s", out.Stderr)
			} else if strings.Contains(out.Stderr, "has split into 3") {
				t.Logf("backup %d has %d shards from after their split", len(backups), strings.Count(out.Stderr, "has split into 3"))
			}
		})
		backups = append(backups, b)
	}
	take()
	grown := make(chan struct{})
	go func() { defer close(grown); grow(t, c, "posts", 2) }() // the loop below waits for it
	for growing := true; growing; {
		select {
		case <-grown:
			growing = false
		default:
		}
		take()
	}
	load.stop()
	take()
	t.Logf("%d backups", len(backups))
	for _, shards := range []int{2, 5} {
		fresh := proctest.NewNode(t, bin, t.TempDir(), fmt.Sprintf("--shards=posts=%d,users=1,unread=1,feed=1", shards))
		fresh.StartReady()
		for _, b := range backups {
			fresh.MustCtl("restore", b.dir, "--force", "--yes")
			checkLikes(t, fmt.Sprintf("%s into %d shards", b.dir, shards), fresh, b.least, b.most)
		}
		if last := backups[len(backups)-1]; last.least != last.most {
			t.Errorf("increments without an answer: %v, %v", last.least, last.most)
		}
	}
}
