package cluster

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

// archived returns an archive with two backups of a server, between which a row has changed.
func archived(t *testing.T) (place string, server *nodetest.Server, first, second archivedOutput) {
	t.Helper()
	server = nodetest.New(t)
	for id := range uint64(50) {
		server.Put(id, int64(id), 1, 2, 3)
	}
	place = filepath.Join(t.TempDir(), "archive")
	ctl := against(t, server.URL)
	first = proctest.Decode[archivedOutput](t, ctl.OK("backup", "--to", place, "-o", "json"))
	server.Put(7, 700, 1, 2, 3)
	second = proctest.Decode[archivedOutput](t, ctl.OK("backup", "--to", place, "-o", "json"))
	return place, server, first, second
}

// Each backup of an archive is restored as it was. The second one stores less than the first.
func TestArchiveIsRestored(t *testing.T) {
	place, _, first, second := archived(t)
	if first.Rows != 50 || first.Shards != 11 || second.Rows != 50 || second.StoredBytes >= first.StoredBytes {
		t.Errorf("stored %+v, then %+v", first, second)
	}
	list := proctest.Decode[struct{ Backups []listedOutput }](t, against(t, "http://127.0.0.1:1").OK("backup", "list", place, "-o", "json"))
	if len(list.Backups) != 2 || list.Backups[0].Rows != 50 || list.Backups[0].Error != "" {
		t.Errorf("listed %+v", list)
	}
	against(t, "http://127.0.0.1:1").OK("backup", "verify", place)
	for name, want := range map[string]int64{first.Backup: 7, second.Backup: 700} {
		to := nodetest.New(t)
		out := proctest.Decode[restoreOutput](t, against(t, to.URL).OK("restore", place, "--at", name, "-o", "json"))
		if got := to.Row(7)[0]; got != want || to.Rows() != 50 || out.Backup != name || out.Verify == nil {
			t.Errorf("backup %s: row 7 is %d, want %d; %+v", name, got, want, out)
		}
	}
	to := against(t, nodetest.New(t).URL)
	for what, args := range map[string][]string{
		"is an archive: give --at latest": {"restore", place},
		"has no backup \"1999\"":          {"restore", place, "--at", "1999"},
		"has no archive":                  {"restore", t.TempDir(), "--at", "latest"},
		"backup takes either":             {"backup", "dir", "--to", place},
		"--keep is for an archive":        {"backup", filepath.Join(t.TempDir(), "dir"), "--keep", "hours=1"},
		"from 0 to 10000":                 {"backup", "--to", place, "--keep", "hours=-1"},
		"an archive at gopher://":         {"backup", "--to", "gopher://x"},
		"there is no archive":             {"backup", "list", t.TempDir()},
		"is of cluster":                   {"backup", "--to", place},
		"--to: the place of the archive":  {"backup", "--to", ""},
	} {
		if got := to.Run(args...); got.Code == cli.ExitOK || !strings.Contains(got.Err, what) {
			t.Errorf("%q: exit %d, %s", args, got.Code, got.Err)
		}
	}
}

// An archive in a bucket is used as one in a directory.
func TestArchiveInABucket(t *testing.T) {
	store := s3mem.New()
	must.Do(t, store.CreateBucket("backups"))
	s3 := httptest.NewServer(gofakes3.New(store).Server())
	t.Cleanup(s3.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	place := "s3://backups/countd?insecure=true&region=us-east-1&endpoint=" + strings.TrimPrefix(s3.URL, "http://")
	from, to := nodetest.New(t), nodetest.New(t)
	from.Put(7, 700, 1, 2, 3)
	against(t, from.URL).OK("backup", "--to", place, "--keep", "hours=1")
	against(t, from.URL).OK("backup", "verify", place)
	against(t, to.URL).OK("restore", place, "--at", "latest")
	if got := to.Row(7)[0]; got != 700 {
		t.Errorf("row 7 is %d, want 700", got)
	}
	nothing := strings.Replace(place, "/countd", "/other", 1)
	for _, args := range [][]string{{"restore", nothing}, {"restore", nothing, "--at", "latest"}, {"backup", "list", nothing}} {
		if got := against(t, to.URL).Run(args...); got.Code == cli.ExitOK || !strings.Contains(got.Err, "there is no archive") {
			t.Errorf("%q: exit %d, %s", args, got.Code, got.Err)
		}
	}
}

// A sealed archive is restored with an identity, and not without.
func TestSealedArchive(t *testing.T) {
	key, err := age.GenerateX25519Identity()
	must.Do(t, err)
	other, err := age.GenerateX25519Identity()
	must.Do(t, err)
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "key")
		must.Do(t, os.WriteFile(name, []byte(text+"\n"), 0o600))
		return name
	}
	recipients, identity := file(key.Recipient().String()), file(key.String())
	from, to := nodetest.New(t), nodetest.New(t)
	from.Put(7, 700, 1, 2, 3)
	place := filepath.Join(t.TempDir(), "archive")
	ctl := against(t, from.URL)
	ctl.OK("backup", "--to", place, "--backup-recipients", recipients)
	for want, args := range map[string][]string{
		"there, not read": {"backup", "verify", place},
		"whole":           {"backup", "verify", place, "--identity", identity},
	} {
		if got := ctl.OK(args...); !strings.Contains(got, want) {
			t.Errorf("%q: %s", args, got)
		}
	}
	for what, args := range map[string][]string{
		"no identity was given":     {"restore", place, "--at", "latest"},
		"none of the identities":    {"restore", place, "--at", "latest", "--identity", file(other.String())},
		"opens it":                  {"backup", "verify", place, "--identity", file(other.String())},
		"no file of age identities": {"restore", place, "--at", "latest", "--identity", recipients},
		"no file of age recipients": {"backup", "--to", place, "--backup-recipients", identity},
		"is sealed":                 {"backup", "--to", place},
		"is for an archive":         {"backup", filepath.Join(t.TempDir(), "x"), "--backup-recipients", recipients},
		"--identity opens a sealed": {"restore", t.TempDir(), "--identity", identity},
	} {
		if got := against(t, from.URL).Run(args...); got.Code == cli.ExitOK || !strings.Contains(got.Err, what) {
			t.Errorf("%q: exit %d, %s", args, got.Code, got.Err)
		}
	}
	against(t, to.URL).OK("restore", place, "--at", "latest", "--identity", identity)
	if got := to.Row(7)[0]; got != 700 {
		t.Errorf("row 7 is %d, want 700", got)
	}
}

// Older backups are deleted only with --keep.
func TestArchiveKeeps(t *testing.T) {
	place, server, _, _ := archived(t)
	ctl := against(t, server.URL)
	if third := proctest.Decode[archivedOutput](t, ctl.OK("backup", "--to", place, "-o", "json")); len(third.Deleted) != 0 {
		t.Errorf("deleted %q", third.Deleted)
	}
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // names are ordered by the second
	if fourth := proctest.Decode[archivedOutput](t, ctl.OK("backup", "--to", place, "--keep", "hours=1", "-o", "json")); len(fourth.Deleted) != 2 {
		t.Errorf("deleted %q", fourth.Deleted)
	}
	ctl.OK("backup", "verify", place)
}

// With --keep, a new backup that reuses damaged chunks does not take the place of others: it is stored again with them.
func TestArchiveKeepHealsDamage(t *testing.T) {
	server, place := nodetest.New(t), filepath.Join(t.TempDir(), "archive")
	server.Put(7, 700, 1, 2, 3)
	ctl := against(t, server.URL)
	ctl.OK("backup", "--to", place)
	mustDo(t, filepath.WalkDir(filepath.Join(place, "chunks"), func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text := []byte(proctest.ReadAll(t, path))
		return os.WriteFile(path, must.Flipped(text, len(text)/2), 0o600)
	}))
	if got := ctl.Run("backup", "--to", place, "--keep", "hours=1"); got.Code != cli.ExitOK || !strings.Contains(got.Err, "is damaged") {
		t.Errorf("exit %d, %s", got.Code, got.Err)
	}
	ctl.OK("backup", "verify", place)
	names, err := filepath.Glob(filepath.Join(place, "backups", "*.json"))
	mustDo(t, err)
	if len(names) != 2 {
		t.Fatalf("there are %q", names)
	}
	mustDo(t, os.WriteFile(names[0], []byte("{}"), 0o600))
	if got := ctl.Run("backup", "list", place); got.Code != cli.ExitFail || !strings.Contains(got.Out, filepath.Base(names[1])[:16]) {
		t.Errorf("a damaged manifest: exit %d, %s", got.Code, got.Out)
	}
}

// A restore from an archive that is damaged sends nothing to the cluster.
func TestRestoreRefusesADamagedArchive(t *testing.T) {
	place, _, first, second := archived(t)
	to := nodetest.New(t)
	var sent atomic.Int32
	to.Fail = func(*http.Request, []byte) *nodetest.Fault { sent.Add(1); return nil }
	ctl, refused := against(t, to.URL), 0
	mustDo(t, filepath.WalkDir(place, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text := []byte(proctest.ReadAll(t, path))
		mustDo(t, os.WriteFile(path, must.Flipped(text, len(text)/2), 0o600))
		defer func() { mustDo(t, os.WriteFile(path, text, 0o600)) }()
		if got := ctl.Run("backup", "verify", place, "--at", second.Backup); got.Code == cli.ExitOK {
			if got := ctl.Run("backup", "verify", place); got.Code != cli.ExitFail || !strings.Contains(got.Out, first.Backup) {
				t.Errorf("%s: exit %d, %s", path, got.Code, got.Out) // only the first backup needs the file
			}
			return nil
		}
		for _, args := range [][]string{{"restore", place, "--at", second.Backup}, {"restore", place, "--at", second.Backup, "--check"}} {
			if got := ctl.Run(args...); got.Code != cli.ExitFail || sent.Load() > 0 {
				t.Errorf("%s: %q: exit %d, %d requests, %s", path, args, got.Code, sent.Load(), got.Err)
			}
		}
		refused++
		return nil
	}))
	if refused < 10 {
		t.Errorf("%d files were damaged", refused)
	}
	ctl.OK("restore", place, "--at", second.Backup)
}

// A part of a backup is restored without the rest, which stays as it is.
func TestRestoreOfAPart(t *testing.T) {
	place, _, first, _ := archived(t)
	dir := filepath.Join(t.TempDir(), "single")
	server := nodetest.New(t)
	server.Put(7, 7, 1, 2, 3)
	server.Put(8, 8, 1, 2, 3)
	ctl := against(t, server.URL)
	ctl.OK("keyspace", "create", "songs", "--columns", "plays", "--shards", "3")
	ctl.OK("incr", "1", "plays=5", "--keyspace", "songs")
	ctl.OK("incr", "2", "plays=6", "--keyspace", "songs")
	ctl.OK("backup", dir)
	server.Put(7, 70, 1, 2, 3)
	ctl.OK("incr", "1", "plays=100", "--keyspace", "songs")
	ctl.OK("incr", "2", "plays=100", "--keyspace", "songs")

	refused := func(want string, args ...string) {
		t.Helper()
		if got := ctl.Run(args...); got.Code == cli.ExitOK || !strings.Contains(got.Err, want) {
			t.Errorf("%q: exit %d, %s", args, got.Code, got.Err)
		}
	}
	rows := func() string { return ctl.OK("export", "-", "--keyspace", "songs") }
	refused("--force deletes them", "restore", dir, "--keyspace", "songs")
	refused("has the shards 0 to 2", "restore", dir, "--keyspace", "songs", "--shard", "3", "--force", "--yes")
	refused("--shard is a number from 0", "restore", dir, "--shard", "1", "--force", "--yes")
	refused("--shard is a number from 0", "restore", dir, "--keyspace", "songs", "--keyspace", "posts", "--shard", "1", "--force", "--yes")
	refused("--shard is a number from 0", "restore", dir, "--keyspace", "songs", "--shard", "-1", "--force", "--yes")
	refused(`no keyspace "nothing"; it has `, "restore", dir, "--keyspace", "nothing")
	refused("unread refers to board: restore both, with --keyspace unread --keyspace board", "restore", dir, "--keyspace", "unread")
	refused("feed refers to users", "restore", dir, "--keyspace", "feed", "--keyspace", "songs")
	refused("feed refers to users", "restore", dir, "--keyspace", "feed", "--shard", "0")
	if got := rows(); got != "id,plays\n1,105\n2,106\n" {
		t.Errorf("refused restores changed songs:\n%s", got)
	}
	ctl.OK("restore", dir, "--keyspace", "songs", "--shard", "1", "--force", "--yes")
	if got := rows(); got != "id,plays\n1,5\n2,106\n" || server.Row(7)[0] != 70 {
		t.Errorf("after shard 1: row 7 is %d, songs are\n%s", server.Row(7)[0], got)
	}
	ctl.OK("restore", dir, "--keyspace", "songs", "--force", "--yes")
	if got := rows(); got != "id,plays\n1,5\n2,6\n" || server.Row(7)[0] != 70 {
		t.Errorf("after all of songs: row 7 is %d, songs are\n%s", server.Row(7)[0], got)
	}
	ctl.OK("restore", dir, "--keyspace", "unread", "--keyspace", "board", "--force", "--yes")
	ctl.OK("restore", dir, "--keyspace", "users")
	ctl.OK("restore", place, "--at", first.Backup, "--keyspace", "posts", "--force", "--yes")
	if got := rows(); got != "id,plays\n1,5\n2,6\n" || server.Row(7)[0] != 7 || server.Rows() != 50 {
		t.Errorf("after posts of another backup: row 7 is %d of %d rows, songs are\n%s", server.Row(7)[0], server.Rows(), got)
	}
	ctl.OK("keyspace", "drop", "songs", "--yes")
	ctl.OK("keyspace", "create", "songs", "--columns", "plays", "--shards", "2")
	refused("so their shards have different ids", "restore", dir, "--keyspace", "songs", "--shard", "1")
	ctl.OK("restore", dir, "--keyspace", "songs")
	if got := rows(); got != "id,plays\n1,5\n2,6\n" {
		t.Errorf("into other shards:\n%s", got)
	}
}

// A keyspace to which rows of the cluster refer is not restored without them.
func TestRestoreOfAPartKeepsReferences(t *testing.T) {
	server := nodetest.New(t)
	ctl := against(t, server.URL)
	dir := filepath.Join(t.TempDir(), "single")
	ctl.OK("backup", dir)
	groups := ctl.OK("group", "list", "-o", "json")
	for target, from := range map[string]string{"board": "unread", "users": "feed"} {
		server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
			if r.Method == http.MethodPost {
				t.Errorf("a restore sends %s %s", r.Method, r.URL.Path)
			}
			if r.URL.Path != "/v1/admin/groups" {
				return nil
			}
			var list struct {
				Groups []map[string]any `json:"groups"`
			}
			mustDo(t, json.Unmarshal([]byte(groups), &list))
			for _, g := range list.Groups {
				if g["keyspace"] == from {
					g["rows"] = 3
				}
			}
			text, err := json.Marshal(list)
			mustDo(t, err)
			return &nodetest.Fault{Status: 200, Body: string(text)}
		})
		got := ctl.Run("restore", dir, "--keyspace", target, "--force", "--yes")
		if got.Code != cli.ExitFail || !strings.Contains(got.Err, "keyspace "+from+" of the cluster has ") || !strings.Contains(got.Err, "restore both") {
			t.Errorf("%s: exit %d, %s", target, got.Code, got.Err)
		}
		server.SetFail(nil)
	}
}

// A part of a backup creates no sources.
func TestRestoreOfAPartMakesNoSources(t *testing.T) {
	from := nodetest.New(t)
	likes := fakeSource{Name: "likes", Number: "7", Config: json.RawMessage(`{"type":"nats"}`), Partitions: json.RawMessage(`{"0":{"since":3}}`)}
	from.SetFail((&fakeSources{all: []fakeSource{likes}}).answer)
	dir := filepath.Join(t.TempDir(), "backup")
	against(t, from.URL).OK("backup", dir)
	for what, c := range map[string]struct {
		args []string
		made int
	}{
		"all":             {nil, 1},
		"a part":          {[]string{"--keyspace", "posts"}, 0},
		"without sources": {[]string{"--no-sources"}, 0},
	} {
		to, sources := nodetest.New(t), &fakeSources{}
		to.SetFail(sources.answer)
		against(t, to.URL).OK(append([]string{"restore", dir}, c.args...)...)
		if len(sources.all) != c.made {
			t.Errorf("%s: created %d sources", what, len(sources.all))
		}
	}
}
