package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/must"
)

// A node backs its cluster up into an archive. It finds the newest backup there again, and removes backups that need
// not be kept. A backup has what a backup over HTTP has: all keyspaces, and the sources. An archive of another cluster is
// refused.
func TestNodeArchive(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 2)
	type source struct {
		Name       string         `json:"name"`
		Number     string         `json:"number"`
		Config     map[string]int `json:"config"`
		Partitions map[string]int `json:"partitions"`
	}
	a.cfg.SavedSources = func(context.Context) (any, error) {
		return []source{{Name: "likes", Number: "18446744073709551615", Config: map[string]int{"x": 1}, Partitions: map[string]int{}}}, nil
	}
	s := BackupSettings{To: t.TempDir(), Keep: backup.Keep{Hours: 1}}
	in, err := a.openArchive(t.Context(), s, true)
	must.Do(t, err)
	if newest, err := in.newest(t.Context()); err != nil || !newest.IsZero() {
		t.Errorf("the newest of no backups: %v, %v", newest, err)
	}
	var last addedBackup
	removed := 0
	for i := range uint64(3) {
		write(t, n, i, i+10)
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // names have seconds
		last, err = in.add(t.Context())
		must.Do(t, err)
		pruned, err := in.prune(t.Context())
		must.Do(t, err)
		if removed += pruned; last.bytes == 0 || last.stored == 0 {
			t.Errorf("backup %d: %+v", i, last)
		}
	}
	if newest, err := in.newest(t.Context()); err != nil || !newest.Equal(last.begun) {
		t.Errorf("the newest: %v, %v, want %v", newest, err, last.begun)
	}
	if removed != 1 {
		t.Errorf("%d backups were removed, want all but the newest two", removed)
	}
	target, err := backup.OpenTarget(t.Context(), s.To)
	must.Do(t, err)
	archive, err := backup.OpenArchive(t.Context(), target, nil)
	must.Do(t, err)
	whole, err := archive.Open(t.Context(), last.name)
	must.Do(t, err)
	rows := map[string]uint64{}
	for _, k := range whole.Keyspaces {
		for _, f := range k.Files {
			rows[k.Name] += f.Rows
		}
	}
	if len(rows) != len(n.Keyspaces()) || rows["posts"] != 6 || len(whole.Sources) != 1 || whole.Sources[0].Number != "18446744073709551615" {
		t.Errorf("the backup has rows %v and sources %+v", rows, whole.Sources)
	}

	must.Do(t, checkBackup(t.Context(), whole))
	f := &whole.Keyspaces[0].Files[0]
	was := *f
	for what, change := range map[string]func(){
		"rows":   func() { f.Rows++ },
		"digest": func() { f.Digest = "0123456789abcdef" },
		"sum":    func() { f.SHA256 = strings.Repeat("0", 64) },
	} {
		if change(); !errors.Is(checkBackup(t.Context(), whole), backup.ErrDiffers) {
			t.Errorf("a manifest with other %s passes", what)
		}
		*f = was
	}
	damageChunks(t, s.To)
	if err := checkBackup(t.Context(), whole); !errors.Is(err, backup.ErrIncomplete) {
		t.Errorf("a damaged chunk passes: %v", err)
	}
	if is, err := a.hasArchive(t.Context(), s.To); err != nil || !is {
		t.Errorf("its own archive: %t, %v", is, err)
	}
	must.Do(t, os.WriteFile(filepath.Join(s.To, "archive.json"), []byte(`{"format":"countd archive 1","cluster_id":"`+strings.Repeat("6", 32)+"\"}\n"), 0o600))
	if _, err := a.openArchive(t.Context(), s, true); !errors.Is(err, backup.ErrOtherCluster) {
		t.Errorf("another cluster's archive: %v", err)
	}
	if is, err := a.hasArchive(t.Context(), s.To); err != nil || is {
		t.Errorf("another cluster's archive is taken for its own: %v", err)
	}
}

// A node makes sealed backups, which it cannot read.
func TestSealedBackupsOfANode(t *testing.T) {
	t.Parallel()
	key, err := age.GenerateX25519Identity()
	must.Do(t, err)
	file := filepath.Join(t.TempDir(), "recipients")
	must.Do(t, os.WriteFile(file, []byte(key.Recipient().String()), 0o600))
	recipients, err := backup.ReadRecipients(file)
	must.Do(t, err)
	a, n := openCluster(t, 2)
	write(t, n, 1, 11)
	a.cfg.SavedSources = func(context.Context) (any, error) { return []struct{}{}, nil }
	s := BackupSettings{To: t.TempDir(), Recipients: recipients}
	in, err := a.openArchive(t.Context(), s, true)
	must.Do(t, err)
	if made, err := in.add(t.Context()); err != nil || made.stored == 0 {
		t.Errorf("%+v, %v", made, err)
	}
	s.Recipients = nil
	if _, err := a.openArchive(t.Context(), s, true); err == nil || !strings.Contains(err.Error(), "--backup-recipients") {
		t.Errorf("a node without recipients: %v", err)
	}
}

// A node begins an archive in an empty directory. It begins none in a directory that is missing, and none where it had one
// before: the file system may be unmounted.
func TestNodeArchiveThatIsGone(t *testing.T) {
	t.Parallel()
	a, _ := openCluster(t, 1)
	var log bytes.Buffer
	a.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := BackupSettings{To: filepath.Join(t.TempDir(), "mount")}
	if _, err := a.openArchive(t.Context(), s, true); err == nil || !strings.Contains(err.Error(), "mount does not exist: mount its file system") {
		t.Errorf("a missing directory: %v", err)
	}
	must.Do(t, os.Mkdir(s.To, 0o700))
	if _, err := a.openArchive(t.Context(), s, false); !errors.Is(err, backup.ErrNoArchive) || !strings.Contains(err.Error(), "countctl backup --to '"+s.To+"'") {
		t.Errorf("an archive that is gone: %v", err)
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
	_, err := a.openArchive(t.Context(), s, true)
	must.Do(t, err)
	if !strings.Contains(log.String(), "level=WARN msg=\"there was no archive") {
		t.Errorf("a new archive logs %s", log.String())
	}
	log.Reset()
	_, err = a.openArchive(t.Context(), s, false)
	must.Do(t, err)
	if log.Len() > 0 {
		t.Errorf("an archive that was there logs %s", log.String())
	}
}

// A damaged chunk of an earlier backup breaks no new one, and no new one that is broken stays.
func TestNodeBackupHealsDamage(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 1)
	write(t, n, 7)
	a.cfg.SavedSources = func(context.Context) (any, error) { return []struct{}{}, nil }
	s := BackupSettings{To: t.TempDir(), Keep: backup.Keep{Hours: 1}}
	in, err := a.openArchive(t.Context(), s, true)
	must.Do(t, err)
	_, err = in.add(t.Context())
	must.Do(t, err)
	damageChunks(t, s.To)
	in, err = a.openArchive(t.Context(), s, false)
	must.Do(t, err)
	made, err := in.add(t.Context())
	must.Do(t, err)
	_, err = in.prune(t.Context())
	must.Do(t, err)
	target, err := backup.OpenTarget(t.Context(), s.To)
	must.Do(t, err)
	archive, err := backup.OpenArchive(t.Context(), target, nil)
	must.Do(t, err)
	all, err := archive.List(t.Context())
	must.Do(t, err)
	if len(all) != 2 || all[0].Name != made.name && all[1].Name != made.name { // names of one second have no order
		t.Errorf("the archive has %+v, want two backups, one of them %s", all, made.name)
	}
	v := archive.Verifier()
	for _, e := range all {
		if _, err := v.Verify(t.Context(), e.Manifest); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
}

// damageChunks changes the last byte of each chunk of an archive.
func damageChunks(t *testing.T, dir string) {
	t.Helper()
	must.Do(t, filepath.WalkDir(filepath.Join(dir, "chunks"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, must.Flipped(raw, len(raw)-1), 0o600)
	}))
}

// What a backup reads by the node is what the API shows.
func TestBackupSource(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 2)
	from := backupSource{a}
	id, err := from.ID(t.Context())
	must.Do(t, err)
	keyspaces, err := from.Keyspaces(t.Context())
	must.Do(t, err)
	groups, err := from.Groups(t.Context())
	must.Do(t, err)
	if id != strings.Repeat("5", 32) || len(keyspaces) != len(n.Keyspaces()) {
		t.Errorf("cluster %s has %+v", id, keyspaces)
	}
	shards := 0
	for i, k := range keyspaces {
		ks := n.Keyspaces()[i]
		if k.Name != ks.Name || k.Kind != ks.Kind || k.Shards != ks.Shards || strings.Join(k.Columns, ",") != strings.Join(ks.Columns, ",") {
			t.Errorf("%+v, want %+v", k, ks)
		}
		for shard, number := range ks.Groups {
			if shards++; groups[fmt.Sprintf("%s/%d", k.Name, shard)] != number {
				t.Errorf("group %d of %s is not in %v", number, k.Name, groups)
			}
		}
	}
	if len(groups) != shards {
		t.Errorf("%d groups, want %d", len(groups), shards)
	}
	if _, err := from.Sources(t.Context()); !errors.Is(err, errNoSources) {
		t.Errorf("without sources: %v", err)
	}
	var _ backup.Cluster = from
	var _ []client.Keyspace = keyspaces
}

// The scheduler makes a real backup.
func TestScheduledBackup(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 1)
	write(t, n, 7)
	a.cfg.SavedSources = func(context.Context) (any, error) { return []struct{}{}, nil }
	b, err := NewBackups(a, BackupSettings{To: t.TempDir(), Schedule: eachHour{}}, func(clientadmin.AuditEvent) {}, prometheus.NewPedanticRegistry())
	must.Do(t, err)
	b.look()
	if p := b.Problem(b.now()); p != "" || metricOf(t, b.bytes) == 0 || metricOf(t, b.stored) == 0 || metricOf(t, b.success) == 0 {
		t.Errorf("after a backup: %s", p)
	}
	must.Do(t, b.Close(t.Context()))
}
