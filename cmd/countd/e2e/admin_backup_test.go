package e2e

import (
	"encoding/binary"
	"hash/crc32"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/countd/countd/internal/proctest"
)

// TestAdminBackup backs up a cluster during writes, and again without writes. It restores the
// second backup into a new cluster of one node. Then
//
//  1. both backups are complete. A restore refuses a damaged, truncated or incomplete backup before
//     it changes anything;
//  2. a restore refuses a cluster with rows;
//  3. the digests of the new cluster equal those of the first cluster.
func TestAdminBackup(t *testing.T) {
	long(t)
	beside(t)
	c := proctest.NewCluster(t, bin, proctest.Options{}) // the same number of shards as in the new cluster, so that digests can be compared
	l := startLoad(t, c)
	at := c.Nodes()[0]
	at.MustCtl("import", sampleSet, "--map", postsMap)
	at.MustCtl("keyspace", "create", "songs", "--columns", "plays,likes", "--shards", "2")
	at.MustCtl("incr", "7", "plays=-3", "--keyspace", "songs")
	during := filepath.Join(t.TempDir(), "during")
	at.MustCtl("backup", during)
	at.MustCtl("restore", during, "--check")
	l.end(c.Nodes()...)

	dir := filepath.Join(t.TempDir(), "after")
	at.MustCtl("backup", dir)
	refusesCtl(t, at, 1, "is not empty", "backup", dir)
	refusesCtl(t, at, 1, "--force deletes them", "restore", dir)
	fresh := proctest.NewNode(t, bin, t.TempDir(), c.ShardArgs()...)
	fresh.StartReady()
	refusesDamagedBackups(t, fresh, dir)
	fresh.MustCtl("restore", dir)
	for _, keyspace := range []string{"posts", "users", "songs"} {
		want, got := c.Nodes()[0].Cluster().Digests(keyspace), fresh.Cluster().Digests(keyspace)
		if len(want) == 0 || !maps.Equal(got, want) {
			t.Errorf("digests of %s after the restore: %v, want %v", keyspace, got, want)
		}
	}
	if got := fresh.Rows("songs", []string{"7"})[0].Counts["plays"]; got != -3 {
		t.Errorf("song 7 has %d plays, want -3", got)
	}
	fresh.MustCtl("incr", "7", "plays=9", "--keyspace", "songs")
	if got := fresh.Ctl("restore", dir, "--force"); got.Code != 2 || !strings.Contains(got.Stderr, "Give --yes") {
		t.Errorf("without --yes: exit code %d, %s", got.Code, got.Stderr)
	}
	fresh.MustCtl("restore", dir, "--force", "--yes")
	if want, got := c.Nodes()[0].Cluster().Digests("songs"), fresh.Cluster().Digests("songs"); !maps.Equal(got, want) {
		t.Errorf("digests of songs after the second restore: %v, want %v", got, want)
	}
}

// refusesDamagedBackups checks that restore refuses a backup that is not whole, and leaves the
// server unchanged.
func refusesDamagedBackups(t *testing.T, n *proctest.Node, whole string) {
	t.Helper()
	for name, damage := range map[string]func(dir string) error{
		"a bit flipped": func(dir string) error {
			return changeFile(filepath.Join(dir, "posts-02.snapshot"), func(raw []byte) []byte { raw[len(raw)/2] ^= 1; return raw })
		},
		"a file cut short": func(dir string) error {
			return changeFile(filepath.Join(dir, "posts-01.snapshot"), func(raw []byte) []byte { return raw[:len(raw)-1] })
		},
		"a file missing": func(dir string) error { return os.Remove(filepath.Join(dir, "users-00.snapshot")) },
		"no manifest":    func(dir string) error { return os.Remove(filepath.Join(dir, "manifest.json")) },
		"a manifest cut short": func(dir string) error {
			return changeFile(filepath.Join(dir, "manifest.json"), func(raw []byte) []byte { return raw[:len(raw)/2] })
		},
	} {
		dir := filepath.Join(t.TempDir(), "backup")
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		if got := n.Ctl("restore", dir); got.Code != 1 || !strings.Contains(got.Stderr, "not a whole backup") {
			t.Errorf("%s: exit code %d, %s", name, got.Code, got.Stderr)
		}
	}
	if rows := n.Cluster().Rows("posts"); rows != 0 {
		t.Errorf("%d rows were restored from backups that are not whole", rows)
	}
}

func changeFile(path string, change func([]byte) []byte) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, change(raw), 0o600)
}

// TestAdminVerifyFindsADifference changes one increment in the log of a stopped node and corrects
// the checksum, so that only verify can find the change.
func TestAdminVerifyFindsADifference(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{LogStore: "boltdb"})
	at, other := c.Nodes()[0], c.Nodes()[2]
	ctl[ctlVerify](t, at, "verify")
	at.MustCall(http.MethodPost, incrPath, map[string]any{"ops": []op{{"21", map[string]int64{"like": 63}}}}, nil)
	c.AwaitAgreement(c.Nodes()...)
	other.Kill()
	logs, err := filepath.Glob(filepath.Join(other.Dir, "groups", "00001.*", "raft.db"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("the logs of group 1: %v, %v", logs, err)
	}
	forgeDelta(t, logs[0], 63, 62)
	other.Start()
	c.AwaitReady(other)
	got := at.Ctl("verify")
	if got.Code != 1 || !strings.Contains(got.Stderr, "replicas differ: posts/0 at index") || !strings.Contains(got.Stderr, other.Name+" has term ") {
		t.Errorf("exit code %d\n%s%s", got.Code, got.Stdout, got.Stderr)
	}
}

// forgeDelta changes a delta in a log. It finds the last entry that ends with a delta equal to
// from, and sets this delta to the value of to.
func forgeDelta(t *testing.T, path string, from, to int64) {
	t.Helper()
	const crcBytes = 4
	store, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{NoFreelistSync: true}, MsgpackUseNewTimeFormat: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	last, err := store.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for ; last > 0; last-- {
		var entry raft.Log
		if err := store.GetLog(last, &entry); err != nil {
			t.Fatalf("no entry ends with the delta %d: %v", from, err)
		}
		body := len(entry.Data) - crcBytes
		if entry.Type != raft.LogCommand || !strings.HasSuffix(string(entry.Data[:body]), string(binary.AppendVarint(nil, from))) {
			continue
		}
		copy(entry.Data[body-len(binary.AppendVarint(nil, from)):], binary.AppendVarint(nil, to))
		binary.LittleEndian.PutUint32(entry.Data[body:], crc32.Checksum(entry.Data[:body], crc32.MakeTable(crc32.Castagnoli)))
		if err := store.StoreLog(&entry); err != nil {
			t.Fatal(err)
		}
		return
	}
}
