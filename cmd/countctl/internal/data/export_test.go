package data

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

func itoa(n int) string { return strconv.Itoa(n) }

func gunzip(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestExport(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	server.Put(10, 1, 0, -5, 0)
	server.Put(9, 0, math.MaxInt64, 0, math.MinInt64)
	server.Put(math.MaxUint64, 0, 0, 1, 0)
	const all = "id,repost,comment,like,view\n" +
		"9,0,9223372036854775807,0,-9223372036854775808\n" +
		"10,1,0,-5,0\n" +
		"18446744073709551615,0,0,1,0\n"
	i := against(t, server)
	dir := t.TempDir()
	t.Run("plain", func(t *testing.T) {
		path := filepath.Join(dir, "a.csv")
		out := proctest.Decode[exportOutput](t, i.OK("export", path, "-o", "json"))
		if out.Rows != 3 || proctest.ReadAll(t, path) != all {
			t.Fatalf("%+v\n%s", out, proctest.ReadAll(t, path))
		}
	})
	t.Run("gzip", func(t *testing.T) {
		path := filepath.Join(dir, "a.csv.gz")
		i.OK("export", path)
		if got := gunzip(t, path); got != all {
			t.Fatal(got)
		}
	})
	t.Run("standard output", func(t *testing.T) {
		if got := i.OK("export", "-", "-o", "json"); got != all {
			t.Fatal(got)
		}
	})
	t.Run("columns", func(t *testing.T) {
		const want = "id,like,repost\n10,-5,1\n18446744073709551615,1,0\n"
		if got := i.OK("export", "-", "--columns", "like,repost"); got != want {
			t.Fatalf("a row without a count in these columns is left out:\n%s", got)
		}
	})
	t.Run("device", func(t *testing.T) {
		i.OK("export", "/dev/null")
		if info, err := os.Stat("/dev/null"); err != nil || info.Mode().IsRegular() {
			t.Fatalf("the device was replaced: %v, %v", info, err)
		}
	})
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Fatalf("temporary files are left: %v", entries)
	}
}

func TestExportThenImport(t *testing.T) {
	t.Parallel()
	from, to := nodetest.New(t), nodetest.New(t)
	const n = 25_000 // rows for three pages of a scan
	for id := uint64(1); id <= n; id++ {
		from.Put(id*7919, int64(id), -int64(id), 0, int64(id%2))
	}
	path := filepath.Join(t.TempDir(), "a.csv.gz")
	against(t, from).OK("export", path)
	against(t, to).OK("import", path)
	again := filepath.Join(t.TempDir(), "b.csv.gz")
	against(t, to).OK("export", again)
	if to.Rows() != n || gunzip(t, path) != gunzip(t, again) {
		t.Fatalf("%d rows of %d came over", to.Rows(), n)
	}
}

func TestExportLeavesTheOldFileWhenItFails(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		stop func(cancel context.CancelFunc) *nodetest.Fault
		err  string
	}{
		{"refused", func(context.CancelFunc) *nodetest.Fault { return &nodetest.Fault{Status: 500, Code: "internal"} }, "internal"},
		{"interrupted", func(cancel context.CancelFunc) *nodetest.Fault { cancel(); return &nodetest.Fault{Hang: true} }, "was interrupted"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			for id := range uint64(15_000) {
				server.Put(id, 1, 1, 1, 1)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pages := 0
			server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
				if !strings.HasSuffix(r.URL.Path, "/scan") {
					return nil
				}
				if pages++; pages < 2 {
					return nil
				}
				return c.stop(cancel)
			}
			i := against(t, server)
			i.Ctx = ctx
			path := proctest.WriteTemp(t, "a.csv", "old")
			got := i.Run("export", path, "--yes")
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, c.err) {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			entries, _ := os.ReadDir(filepath.Dir(path))
			if proctest.ReadAll(t, path) != "old" || len(entries) != 1 {
				t.Fatalf("the old file is gone, or a temporary one is left: %v", entries)
			}
		})
	}
}

func TestExportTriesAPageAgain(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	server.Put(1, 1, 1, 1, 1)
	scans := 0
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/scan") {
			if scans++; scans < 3 {
				return &nodetest.Fault{Status: 503, Code: "no_leader"}
			}
		}
		return nil
	}
	if got := against(t, server).OK("export", "-"); strings.Count(got, "\n") != 2 {
		t.Fatal(got)
	}
}

// If no node has a replica of a shard, an export with --skip-unreadable writes the other rows,
// names the missing shard, and exits with an error.
func TestExportSkipsShardsThatNobodyHas(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	server.Put(9, 1, 0, 0, 0)
	server.SetFail(func(r *http.Request, body []byte) *nodetest.Fault {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/scan"):
			return nil
		case bytes.Contains(body, []byte(`"skip_unreadable":true`)):
			return &nodetest.Fault{Status: 200, Body: `{"results":[{"id":"9","counts":{"repost":1,"comment":0,"like":0,"view":0}}],"next":null,"unreadable_shards":[2]}`}
		}
		return &nodetest.Fault{Status: 503, Code: "no_quorum", Message: "no living node has a replica of a shard"}
	})
	i := against(t, server)
	path := filepath.Join(t.TempDir(), "a.csv")
	got := i.Run("export", path, "--consistency", "stale", "--skip-unreadable", "-o", "json")
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "no living node has a replica of posts/2") {
		t.Errorf("exit %d, %q", got.Code, got.Err)
	}
	if out := proctest.Decode[exportOutput](t, got.Out); out.Rows != 1 || len(out.UnreadableShards) != 1 || out.UnreadableShards[0] != 2 {
		t.Errorf("%+v", out)
	}
	if want := "id,repost,comment,like,view\n9,1,0,0,0\n"; proctest.ReadAll(t, path) != want {
		t.Errorf("the file holds %q", proctest.ReadAll(t, path))
	}
	if got := i.Run("export", path, "--skip-unreadable"); got.Code != cli.ExitUsage || !strings.Contains(got.Err, "--consistency stale") {
		t.Errorf("of reads that wait for a leader: exit %d, %q", got.Code, got.Err)
	}
	got = i.Run("export", path, "--yes", "--consistency", "stale", "--retry-for", "0s")
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "--skip-unreadable") {
		t.Errorf("without the flag it is not named: exit %d, %q", got.Code, got.Err)
	}
}
