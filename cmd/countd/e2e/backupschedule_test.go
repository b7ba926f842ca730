package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// scheduled is a cluster that backs up every 2 s, with writers.
type scheduled struct {
	*testing.T
	c       *proctest.Cluster
	dir     string // the archive
	stopped atomic.Bool
	writers sync.WaitGroup
	// For each id, sent and answered have the times of its increments. Each id has one writer.
	mu             sync.Mutex
	sent, answered [scheduledIDs][]time.Time
}

const scheduledIDs = 24

// write increments an id until stopped. It repeats each increment with its key on another node until it is answered.
func (s *scheduled) write(id int) {
	body := map[string]any{"ops": []op{{fmt.Sprint(id), map[string]int64{"like": 1}}}}
	nodes := s.c.Nodes()
	for i := 0; !s.stopped.Load(); i++ {
		header := http.Header{"Idempotency-Key": {fmt.Sprintf("backup-%d-%d", id, i)}}
		s.note(&s.sent, id)
		for try := id; ; try++ {
			status, err := nodes[try%len(nodes)].Send(context.Background(), http.MethodPost, incrPath, header, body, nil)
			if err == nil && status == http.StatusOK {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		s.note(&s.answered, id)
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *scheduled) note(of *[scheduledIDs][]time.Time, id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of[id] = append(of[id], time.Now())
}

// backups returns the whole backups in the archive, the oldest first.
func (s *scheduled) backups() []backup.Entry {
	s.Helper()
	target, err := backup.OpenTarget(s.Context(), s.dir)
	must.Do(s, err)
	archive, err := backup.OpenArchive(s.Context(), target, nil)
	if err != nil {
		return nil
	}
	all, err := archive.List(s.Context())
	must.Do(s, err)
	return all
}

// catalogLeader returns the node that leads the catalog.
func (s *scheduled) catalogLeader() (leader *proctest.Member) {
	s.Helper()
	must.Become(s, "the catalog has a leader", func() bool {
		var answer struct {
			Groups []struct{ Keyspace, Leader string }
		}
		s.c.Nodes()[0].MustCall(http.MethodGet, "/v1/admin/groups", nil, &answer)
		for _, n := range s.c.Nodes() {
			for _, g := range answer.Groups {
				if g.Keyspace == "meta" && g.Leader == n.Name {
					leader = n
				}
			}
		}
		return leader != nil
	})
	return leader
}

var backedUp = regexp.MustCompile(`msg="backed up".* name=(\S+)`)

// TestScheduledBackups runs three nodes that back up every 2 s into one directory, under writes with keys, and kills
// the leader of the catalog. Then
//
//  1. only the leader makes backups; backups go on from another node after the kill;
//  2. a backup that was made after the kill and under writes, restored into a new cluster, has each increment that was
//     answered before it began, none twice, and none that was sent after it ended;
//  3. old backups are removed, and the newest two stay.
func TestScheduledBackups(t *testing.T) {
	long(t)
	beside(t)
	s := scheduled{T: t, dir: t.TempDir()}
	s.c = newCluster(t, proctest.Options{Args: []string{"--backup-to", s.dir, "--backup-schedule", "@every 2s", "--backup-keep", "hours=1"}})
	for id := range scheduledIDs {
		s.writers.Go(func() { s.write(id) })
	}
	stop := sync.OnceFunc(func() { s.stopped.Store(true); s.writers.Wait() })
	defer stop()
	leader := s.catalogLeader()
	must.Become(t, "five backups were made", func() bool { return len(backedUp.FindAllString(leader.Log(), -1)) >= 5 })
	for _, n := range s.c.Others(leader) {
		if made := backedUp.FindString(n.Log()); made != "" {
			t.Errorf("%s, which does not lead the catalog, logs %s", n.Name, made)
		}
	}
	if all := s.backups(); len(all) < 2 || len(all) > 3 { // the third is not pruned yet
		t.Errorf("%d backups are kept, want the newest two", len(all))
	}
	metrics := leader.Text("/metrics")
	for _, name := range []string{"last_success_timestamp_seconds", "last_bytes", "last_new_bytes", "last_seconds", "overdue_timestamp_seconds"} {
		if m := regexp.MustCompile(`(?m)^countd_backup_` + name + ` (\S+)$`).FindStringSubmatch(metrics); m == nil || m[1] == "0" {
			t.Errorf("%s: %v", name, m)
		}
	}

	leader.Kill()
	killed := time.Now()
	var last backup.Entry
	must.Become(t, "another node has made two backups", func() bool {
		since := 0
		for _, b := range s.backups() {
			if b.Err == nil && b.Manifest.Begun.After(killed) {
				last, since = b, since+1
			}
		}
		return since >= 2
	})
	copied := copyArchive(t, s.dir) // no later backup removes this one
	stop()
	fresh := proctest.NewNode(t, bin, t.TempDir(), s.c.ShardArgs()...)
	fresh.StartReady()
	fresh.MustCtl("restore", copied, "--at", last.Name)
	var ids []string
	for id := range scheduledIDs {
		ids = append(ids, fmt.Sprint(id))
	}
	for id, row := range fresh.Rows("posts", ids) {
		least, most := before(s.answered[id], last.Manifest.Begun), before(s.sent[id], last.Manifest.Ended)
		if got := row.Counts["like"]; got < least || got > most || least == 0 {
			t.Errorf("id %d has %d in the backup, want %d to %d", id, got, least, most)
		}
	}
	for id, row := range s.c.Others(leader)[0].Rows("posts", ids) {
		if got := row.Counts["like"]; got != int64(len(s.answered[id])) {
			t.Errorf("id %d has %d, want %d", id, got, len(s.answered[id]))
		}
	}
}

// before returns how many of the times are before t.
func before(times []time.Time, t time.Time) (n int64) {
	for _, at := range times {
		if at.Before(t) {
			n++
		}
	}
	return n
}

// copyArchive copies an archive. A sweep may remove files meanwhile: then it copies the archive again.
func copyArchive(t *testing.T, dir string) (to string) {
	t.Helper()
	must.Become(t, "the archive is copied", func() bool {
		to = filepath.Join(t.TempDir(), "copy")
		return os.CopyFS(to, os.DirFS(dir)) == nil
	})
	return to
}

// A node that cannot write to --backup-to serves, and tries again. Its metric, its log and the warning of status say why
// there is no backup. Once it can write there, it makes one, and the warning ends.
func TestBackupsCannotBeWritten(t *testing.T) {
	t.Parallel()
	blocked := filepath.Join(t.TempDir(), "file") // not a directory, because the tests of root may write to every directory
	must.Do(t, os.WriteFile(blocked, nil, 0o600))
	n := proctest.NewNode(t, bin, t.TempDir(), "--backup-to", filepath.Join(blocked, "archive"), "--backup-schedule", "@every 2s")
	n.StartReady()
	warnings := func() (texts []string) {
		var out struct{ Warnings []struct{ Code, Text string } }
		must.Do(t, json.Unmarshal([]byte(n.MustCtl("status", "-o", "json")), &out))
		for _, w := range out.Warnings {
			if w.Code == "backup" {
				texts = append(texts, w.Text)
			}
		}
		return texts
	}
	must.Become(t, "two tries have failed", func() bool {
		m := regexp.MustCompile(`(?m)^countd_backup_failures_total (\d+)$`).FindStringSubmatch(n.Text("/metrics"))
		if m == nil {
			return false
		}
		failures, err := strconv.Atoi(m[1])
		must.Do(t, err)
		return failures >= 2
	})
	if got := warnings(); len(got) != 1 || !strings.Contains(got[0], "tries to back up to "+blocked) || !strings.Contains(got[0], "not a directory") {
		t.Errorf("warnings %q", got)
	}
	if !strings.Contains(n.Log(), `msg="a backup failed"`) {
		t.Errorf("the log does not tell that a backup failed:\n%s", n.Log())
	}
	n.MustCtl("incr", "7", "like=1")
	must.Do(t, os.Remove(blocked))
	must.Do(t, os.MkdirAll(filepath.Join(blocked, "archive"), 0o700))
	must.Become(t, "a backup is made", func() bool { return backedUp.MatchString(n.Log()) })
	must.Become(t, "the warning ends", func() bool { return len(warnings()) == 0 })
}
