package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// TestDropUnderLoad drops a keyspace while clients write to it through all nodes, and kills a node
// with kill -9, round after round:
//
//  1. writes in flight end with 404 unknown_keyspace, or with an unknown outcome. Once all running
//     nodes know of the drop, each write gets 404;
//  2. the name is free at once. A new keyspace of that name starts from zero, and contains exactly
//     the writes to the new keyspace;
//  3. all nodes, even the node that was down, delete the directories of the dropped groups, and the
//     disk space is free again;
//  4. a backup from before the drop restores the keyspace.
func TestDropUnderLoad(t *testing.T) {
	long(t)
	beside(t)
	for _, store := range stores("boltdb") {
		t.Run(store, func(t *testing.T) {
			c := newCluster(t, proctest.Options{LogStore: store})
			for round := range short(1, 10) {
				d := &dropRun{t: t, c: c, at: c.Nodes()[round%3], killed: c.Nodes()[(round+1)%3]}
				d.run()
			}
		})
	}
}

type dropRun struct {
	t      *testing.T
	c      *proctest.Cluster
	at     *proctest.Member // receives the order to drop
	killed *proctest.Member
}

const dropShards = 4

func (d *dropRun) run() {
	t := d.t
	t.Helper()
	d.at.MustCtl("keyspace", "create", "songs", "--columns", "plays,likes", "--shards", fmt.Sprint(dropShards))
	d.at.MustCtl("incr", "7", "plays=5", "likes=2", "--keyspace", "songs")
	dir := filepath.Join(t.TempDir(), "backup")
	d.at.MustCtl("backup", dir)
	first := d.firstGroup()

	var dropped atomic.Bool
	var written atomic.Int64
	var writers sync.WaitGroup
	ctx := must.Context(t)
	for i, n := range d.c.Nodes() {
		for w := range 3 {
			writers.Go(func() { d.write(ctx, n, i*3+w, &dropped, &written) })
		}
	}
	eventually(t, "writes go on", func() bool { return written.Load() > 500 })
	d.killed.Kill()
	d.at.MustCtl("keyspace", "drop", "songs", "--yes")
	for _, n := range d.c.Others(d.killed) {
		eventually(t, n.Name+" was told of the drop", func() bool { return !strings.Contains(n.MustCtl("keyspace", "list"), "songs") })
	}
	dropped.Store(true)
	writers.Wait()

	d.at.MustCtl("keyspace", "create", "songs", "--columns", "plays", "--shards", "2")
	other := d.c.Others(d.at, d.killed)[0]
	other.MustCtl("incr", "7", "plays=1", "--keyspace", "songs")
	d.killed.StartReady()
	eventually(t, "the node that was killed knows the new keyspace", func() bool {
		status, err := d.killed.Call(http.MethodGet, "/v1/counters/songs/7?consistency=linearizable", nil, nil)
		return err == nil && status == http.StatusOK
	})
	for _, n := range d.c.Nodes() {
		if row := n.Rows("songs", []string{"7"})[0]; len(row.Counts) != 1 || row.Counts["plays"] != 1 {
			t.Errorf("%s: the new keyspace has %v", n.Name, row.Counts)
		}
		if rows := n.Rows("songs", []string{"0", "1", "2", "3"}); rows[0].Counts["plays"]+rows[1].Counts["plays"]+rows[2].Counts["plays"]+rows[3].Counts["plays"] != 0 {
			t.Errorf("%s: the new keyspace has %v", n.Name, rows)
		}
		eventually(t, n.Name+" deletes the dropped groups", func() bool { return groupBytes(t, n.Dir, first, dropShards) == 0 })
	}
	d.at.MustCtl("keyspace", "drop", "songs", "--yes")
	d.restore(dir)
	d.at.MustCtl("keyspace", "drop", "songs", "--yes")
}

// write adds to songs through a node until the keyspace is unknown, or the node is down.
func (d *dropRun) write(ctx context.Context, n *proctest.Member, writer int, dropped *atomic.Bool, written *atomic.Int64) {
	for i := 0; ; i++ {
		was := dropped.Load()
		var ops []map[string]any
		for id := range 5 {
			ops = append(ops, map[string]any{"id": fmt.Sprint(id), "add": map[string]int{"plays": 1, "likes": 1}})
		}
		header := http.Header{"Idempotency-Key": {fmt.Sprintf("%s-%d-%d", d.at.Name, writer, i)}}
		var answer struct {
			Error struct{ Code string }
		}
		began := time.Now()
		status, err := n.Send(ctx, http.MethodPost, "/v1/counters/songs/incr", header, map[string]any{"ops": ops}, &answer)
		switch {
		case err != nil && n == d.killed:
			return
		case err != nil:
			d.t.Errorf("%s: %v", n.Name, err)
			return
		case status == http.StatusNotFound && answer.Error.Code == "unknown_keyspace":
			return
		case was:
			d.t.Errorf("%s: a write after the drop is answered %d %s after %v", n.Name, status, answer.Error.Code, time.Since(began))
			return
		case status == http.StatusOK:
			written.Add(1)
		case status != http.StatusGatewayTimeout && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests:
			d.t.Errorf("%s: a write is answered %d %s", n.Name, status, answer.Error.Code)
			return
		}
	}
}

// firstGroup returns the first group of songs.
func (d *dropRun) firstGroup() uint32 {
	first := uint32(0)
	for _, g := range d.at.Cluster().Groups {
		if g.Keyspace == "songs" && (first == 0 || g.ID < first) {
			first = g.ID
		}
	}
	if first == 0 {
		d.t.Fatal("songs has no groups")
	}
	return first
}

// restore restores the backup while the other keyspaces keep their rows.
func (d *dropRun) restore(dir string) {
	d.at.MustCtl("restore", dir, "--force", "--yes")
	for _, n := range d.c.Nodes() {
		if row := n.Rows("songs", []string{"7"})[0]; row.Counts["plays"] != 5 || row.Counts["likes"] != 2 {
			d.t.Errorf("%s: restored %v", n.Name, row.Counts)
		}
	}
}

// groupBytes returns the size of the files of the groups first to first+shards-1 in dir.
func groupBytes(t *testing.T, dir string, first uint32, shards int) (bytes int64) {
	t.Helper()
	for shard := range shards {
		all, err := filepath.Glob(filepath.Join(dir, "groups", fmt.Sprintf("%05d*", first+uint32(shard))))
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range all {
			// Files may disappear while they are counted.
			_ = filepath.WalkDir(group, func(_ string, e os.DirEntry, err error) error {
				if err == nil && !e.IsDir() {
					if info, err := e.Info(); err == nil {
						bytes += info.Size() + 1
					}
				}
				return nil
			})
		}
	}
	return bytes
}

// TestDropColumn drops a column with countctl. It restores backups from before and after the drop,
// which number the columns differently.
func TestDropColumn(t *testing.T) {
	long(t)
	beside(t)
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	n.MustCtl("keyspace", "create", "songs", "--columns", "plays,likes,skips", "--shards", "2")
	n.MustCtl("incr", "7", "plays=5", "likes=2", "skips=1", "--keyspace", "songs")
	n.MustCtl("incr", "8", "likes=3", "--keyspace", "songs")
	before, after := filepath.Join(t.TempDir(), "before"), filepath.Join(t.TempDir(), "after")
	n.MustCtl("backup", before)
	refused := func(code int, says string, args ...string) {
		t.Helper()
		if got := n.Ctl(args...); got.Code != code || !strings.Contains(got.Stderr, says) {
			t.Errorf("countctl %q: exit code %d, %q; want %d and %q", args, got.Code, got.Stderr, code, says)
		}
	}
	refused(2, "Give --yes", "keyspace", "drop-column", "songs", "likes")
	n.MustCtl("keyspace", "drop-column", "songs", "likes", "--yes")
	n.MustCtl("backup", after)
	wantRow := func(id string, want map[string]int64) {
		t.Helper()
		row := n.Rows("songs", []string{id})[0]
		if len(row.Counts) != len(want) {
			t.Errorf("row %s is %v, want %v", id, row.Counts, want)
		}
		for column, count := range want {
			if got, has := row.Counts[column]; !has || got != count {
				t.Errorf("row %s is %v, want %v", id, row.Counts, want)
			}
		}
	}
	wantRow("7", map[string]int64{"plays": 5, "skips": 1})
	if csv := n.MustCtl("export", "-", "--keyspace", "songs"); strings.Contains(csv, "likes") || strings.Contains(csv, "\n8,") {
		t.Errorf("exported\n%s", csv)
	}
	n.MustCtl("keyspace", "add-columns", "songs", "likes")
	wantRow("7", map[string]int64{"plays": 5, "skips": 1, "likes": 0})
	wantRow("8", map[string]int64{"plays": 0, "skips": 0, "likes": 0})
	n.Kill()
	n.StartReady()
	n.MustCtl("restore", after, "--force", "--yes")
	wantRow("7", map[string]int64{"plays": 5, "skips": 1, "likes": 0})
	n.MustCtl("restore", before, "--force", "--yes")
	wantRow("7", map[string]int64{"plays": 5, "skips": 1, "likes": 2})
	wantRow("8", map[string]int64{"plays": 0, "skips": 0, "likes": 3})
	n.MustCtl("keyspace", "drop", "songs", "--yes")
	n.MustCtl("restore", after, "--force", "--yes")
	wantRow("7", map[string]int64{"plays": 5, "skips": 1})
	wantRow("8", map[string]int64{"plays": 0, "skips": 0})
	refused(1, "built in", "keyspace", "drop", "posts", "--yes")
	refused(1, "built in", "keyspace", "drop-column", "posts", "like", "--yes")
}
