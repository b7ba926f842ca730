package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
	const ids = 60
	var sent, answered [ids]atomic.Int64
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() { // ends with stop
			node := c.Nodes()[w%3]
			for id := w; ; id = (id + 4) % ids {
				select {
				case <-stop:
					return
				default:
				}
				sent[id].Add(1)
				body := map[string]any{"ops": []op{{fmt.Sprint(id), map[string]int64{"like": 1}}}}
				if status, err := node.Call(http.MethodPost, incrPath, body, nil); err != nil || status != http.StatusOK {
					t.Errorf("increment of %d: %d, %v", id, status, err)
					return
				}
				answered[id].Add(1)
			}
		})
	}
	all := func(of *[ids]atomic.Int64) (counts [ids]int64) {
		for id := range of {
			counts[id] = of[id].Load()
		}
		return counts
	}
	type backup struct {
		dir         string
		least, most [ids]int64
	}
	var backups []backup
	take := func() {
		b := backup{dir: filepath.Join(t.TempDir(), fmt.Sprint(len(backups))), least: all(&answered)}
		if out := at.Ctl("backup", b.dir); out.Code != 0 {
			t.Fatalf("a backup: %s", out.Stderr)
		} else if strings.Contains(out.Stderr, "has split into 3") {
			t.Logf("backup %d has %d shards from after their split", len(backups), strings.Count(out.Stderr, "has split into 3"))
		}
		b.most = all(&sent)
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
	close(stop)
	writers.Wait()
	take()
	t.Logf("%d backups", len(backups))
	for _, shards := range []int{2, 5} {
		fresh := proctest.NewNode(t, bin, t.TempDir(), fmt.Sprintf("--shards=posts=%d,users=1,unread=1,feed=1", shards))
		fresh.StartReady()
		for _, b := range backups {
			fresh.MustCtl("restore", b.dir, "--force", "--yes")
			var texts []string
			for id := range ids {
				texts = append(texts, fmt.Sprint(id))
			}
			for id, row := range fresh.Rows("posts", texts) {
				if got := row.Counts["like"]; got < b.least[id] || got > b.most[id] {
					t.Errorf("%s into %d shards: id %d has %d, want %d to %d", b.dir, shards, id, got, b.least[id], b.most[id])
				}
			}
		}
		if last := backups[len(backups)-1]; last.least != last.most {
			t.Errorf("increments without an answer: %v, %v", last.least, last.most)
		}
	}
}
