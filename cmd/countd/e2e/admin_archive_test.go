package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// TestAdminArchive stores backups of a cluster in one archive: two under load, and one after it. Then
//
//  1. the second one stores little more than what changed;
//  2. each is restored into a new cluster: exactly the rows that nobody wrote to meanwhile, and of the others each increment
//     that was answered before the backup began, and none that was sent after it;
//  3. the last one, which has no such rows, has the digests of the cluster;
//  4. whichever file has a bit flipped, a restore of a backup that needs the file changes nothing.
func TestAdminArchive(t *testing.T) {
	long(t)
	beside(t)
	const songs = 500_000
	c := proctest.NewCluster(t, bin, proctest.Options{})
	at := c.Nodes()[0]
	at.MustCtl("keyspace", "create", "songs", "--columns", "plays", "--shards", "1")
	at.MustCtl("import", songsCSV(t, songs), "--keyspace", "songs")

	load := beginLikes(t, c, 3)
	type stored struct {
		Backup      string `json:"backup"`
		Bytes       int64  `json:"bytes"`
		StoredBytes int64  `json:"stored_bytes"`
		least, most likeCounts
		song        int64 // plays of song 1000
	}
	archive := filepath.Join(t.TempDir(), "archive")
	take := func(song int64) (s stored) {
		t.Helper()
		s.song = song
		s.least, s.most = load.during(func() {
			if err := json.Unmarshal([]byte(at.MustCtl("backup", "--to", archive, "-o", "json")), &s); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("backup %s has %d bytes and stored %d", s.Backup, s.Bytes, s.StoredBytes)
		return s
	}
	first := take(1001)
	at.MustCtl("incr", "1000", "plays=5", "--keyspace", "songs")
	second := take(1006)
	load.stop()
	last := take(1006)
	if second.StoredBytes > first.StoredBytes/2 || last.StoredBytes > first.StoredBytes/2 {
		t.Errorf("the backups stored %d, %d and %d bytes", first.StoredBytes, second.StoredBytes, last.StoredBytes)
	}
	at.MustCtl("backup", "verify", archive)

	fresh := proctest.NewNode(t, bin, t.TempDir(), c.ShardArgs()...)
	fresh.StartReady()
	refusesDamagedArchives(t, fresh, archive, second.Backup)
	for _, b := range []stored{first, second, last} {
		fresh.MustCtl("restore", archive, "--at", b.Backup, "--force", "--yes")
		checkLikes(t, "backup "+b.Backup, fresh, b.least, b.most)
		if got := fresh.Rows("songs", []string{"1000"})[0].Counts["plays"]; got != b.song {
			t.Errorf("backup %s: song 1000 has %d plays, want %d", b.Backup, got, b.song)
		}
		if got := fresh.Cluster().Rows("songs"); got != songs {
			t.Errorf("backup %s has %d songs, want %d", b.Backup, got, songs)
		}
	}
	for _, keyspace := range []string{"posts", "users", "songs"} {
		want, got := at.Cluster().Digests(keyspace), fresh.Cluster().Digests(keyspace)
		if len(want) == 0 || !maps.Equal(got, want) {
			t.Errorf("digests of %s after the restore: %v, want %v", keyspace, got, want)
		}
	}
	fresh.MustCtl("restore", archive, "--at", first.Backup, "--keyspace", "songs", "--shard", "0", "--force", "--yes")
	if got := fresh.Rows("songs", []string{"1000"})[0].Counts["plays"]; got != 1001 {
		t.Errorf("song 1000 has %d plays after a restore of its shard, want 1001", got)
	}
	if want, got := at.Cluster().Digests("posts"), fresh.Cluster().Digests("posts"); !maps.Equal(got, want) {
		t.Errorf("digests of posts after a restore of songs: %v, want %v", got, want)
	}
}

// songsCSV writes a file with the plays of songs 0 to n-1: one more than the id.
func songsCSV(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "songs.csv")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, "id,plays")
	for id := range n {
		fmt.Fprintf(w, "%d,%d\n", id, id+1)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// refusesDamagedArchives flips a bit in each file of an archive. If verify says that the backup needs the file, a restore
// must leave the node unchanged.
func refusesDamagedArchives(t *testing.T, n *proctest.Node, archive, name string) {
	t.Helper()
	refused := 0
	err := filepath.WalkDir(archive, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		flip := func(raw []byte) []byte { raw[len(raw)*2/3] ^= 4; return raw }
		if err := changeFile(path, flip); err != nil {
			return err
		}
		defer func() {
			if err := changeFile(path, flip); err != nil {
				t.Error(err)
			}
		}()
		if n.Ctl("backup", "verify", archive, "--at", name).Code == 0 {
			if got := n.Ctl("backup", "verify", archive); got.Code != 1 {
				t.Errorf("%s: no backup is damaged: %s", path, got.Stdout)
			}
			return nil
		}
		if got := n.Ctl("restore", archive, "--at", name); got.Code != 1 || !regexp.MustCompile("damaged|not a whole backup|of another cluster").MatchString(got.Stderr) {
			t.Errorf("%s: exit code %d, %s", path, got.Code, got.Stderr)
		}
		refused++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rows := n.Cluster().Rows("posts") + n.Cluster().Rows("songs"); rows != 0 || refused < 5 {
		t.Errorf("%d rows were restored from damaged archives; %d files were damaged", rows, refused)
	}
}
