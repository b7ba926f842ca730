package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

const (
	wholeSet  = "../../../../shared/data/weibo_counts.csv.gz" // outside the repository; may be missing
	sampleSet = "../../../demo/posts.csv.gz"
	postsMap  = "reposts=repost,comments=comment,likes=like"
)

// TestRealPostsInAndOut imports real posts and exports them again. The exported rows are exactly
// the imported ones, although
//
//  1. the server and the client are killed in the middle of the import, which then continues where
//     it stopped;
//  2. the server alone is killed, and the import waits for its return;
//  3. the server restarts from snapshots, then from snapshots and the log.
func TestRealPostsInAndOut(t *testing.T) {
	long(t)
	t.Parallel()
	file, want := posts(t)
	rows := uint64(bytes.Count(want, []byte("\n")) - 1)
	n := proctest.NewNode(t, bin, t.TempDir(), "--shards=posts=2")
	// Import with many small requests, so that a kill can hit the middle of the import.
	importArgs := []string{"import", file, "--keyspace", "posts", "--map", postsMap, "--batch", strconv.Itoa(1 + int(rows/2000))}

	n.StartReady()
	client := n.StartCtl(importArgs...)
	eventually(t, "a quarter is in", func() bool { return n.Cluster().Rows("posts") > rows/4 })
	n.Kill()
	client.Kill()

	n.StartReady()
	client = n.StartCtl(importArgs...)
	eventually(t, "half is in", func() bool { return n.Cluster().Rows("posts") > rows/2 })
	n.Kill()
	n.StartReady()
	if client.Wait(); client.Code != 0 {
		t.Fatalf("the import did not outlive a restart of the server: exit code %d\n%s%s", client.Code, client.Stdout, client.Stderr)
	}
	digests := n.Cluster().Digests("posts")
	compareExport(t, n, want)

	growLog(t, n)
	sameDigests(t, "after rows that came and went", n, digests)
	n.Stop()
	n.StartReady()
	hasSnapshots(t, n)
	sameDigests(t, "after a stop", n, digests)
	n.MustCtl("incr", "4624358914132406", "like=1")
	n.MustCtl("incr", "4624358914132406", "like=-1")
	n.Kill()
	n.StartReady()
	sameDigests(t, "from snapshot and log", n, digests)
	compareExport(t, n, want)

	n.MustCtl(append(importArgs, "--restart")...)
	sameDigests(t, "after the same import once more", n, digests)
}

// posts returns a copy of the file of posts in a temporary directory, and the expected export.
func posts(t *testing.T) (file string, export []byte) {
	t.Helper()
	packed, err := os.ReadFile(wholeSet)
	if errors.Is(err, fs.ErrNotExist) || !*replayAll {
		packed, err = os.ReadFile(sampleSet)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, counts := copyPosts(t, packed)
	return file, exportOf(t, counts)
}

// copyPosts writes packed, a compressed file of posts, to a temporary directory, and returns the
// counts in it.
func copyPosts(t *testing.T, packed []byte) (file string, counts map[uint64]rowCounts) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "posts.csv.gz")
	if err := os.WriteFile(file, packed, 0o600); err != nil {
		t.Fatal(err)
	}
	records, err := csv.NewReader(bytes.NewReader(unpack(t, packed))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	counts = map[uint64]rowCounts{}
	for _, r := range records[1:] {
		id, err := strconv.ParseUint(r[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		var c rowCounts
		for i := range 3 {
			if c[i], err = strconv.ParseInt(r[2+i], 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		counts[id] = c
	}
	return file, counts
}

// rowCounts are the counts of repost, comment, like and view.
type rowCounts [4]int64

// exportOf returns the expected export of these counts: rows with a count, in the order of ids.
func exportOf(t *testing.T, counts map[uint64]rowCounts) []byte {
	t.Helper()
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	_ = w.Write([]string{"id", "repost", "comment", "like", "view"})
	for _, id := range slices.Sorted(maps.Keys(counts)) {
		if c := counts[id]; c != (rowCounts{}) {
			record := []string{strconv.FormatUint(id, 10)}
			for _, n := range c {
				record = append(record, strconv.FormatInt(n, 10))
			}
			_ = w.Write(record)
		}
	}
	if w.Flush(); w.Error() != nil {
		t.Fatal(w.Error())
	}
	return out.Bytes()
}

func unpack(t *testing.T, packed []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func compareExport(t *testing.T, n *proctest.Node, want []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "export.csv.gz")
	n.MustCtl("export", file, "--keyspace", "posts")
	packed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := unpack(t, packed)
	if bytes.Equal(got, want) {
		return
	}
	gotLines, wantLines := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(gotLines), len(wantLines)) {
		if !bytes.Equal(gotLines[i], wantLines[i]) {
			t.Fatalf("export, line %d of %d (want %d): %q, want %q", i+1, len(gotLines), len(wantLines), gotLines[i], wantLines[i])
		}
	}
	t.Fatalf("export has %d lines, want %d", len(gotLines), len(wantLines))
}

func sameDigests(t *testing.T, when string, n *proctest.Node, want map[int]string) {
	t.Helper()
	if got := n.Cluster().Digests("posts"); !maps.Equal(got, want) {
		t.Errorf("digests %s: %v, want %v", when, got, want)
	}
}
