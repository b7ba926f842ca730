package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/client/column"
)

const (
	manifestFile   = "manifest.json"
	manifestFormat = "countd backup 1"
	// manifestBytesMax bounds the bytes that readManifest reads. A manifest of 4,096 groups
	// has about 1 MB.
	manifestBytesMax = 16 << 20
)

// manifest describes the content of a backup. It is written last: a directory without one is
// not a backup.
type manifest struct {
	Format    string             `json:"format"` // manifestFormat
	ClusterID string             `json:"cluster_id"`
	Program   string             `json:"program"` // version of the program that wrote the manifest; for people
	Begun     time.Time          `json:"begun"`   // the backup has every write that was acknowledged before this time
	Ended     time.Time          `json:"ended"`
	Keyspaces []manifestKeyspace `json:"keyspaces"`
	// Sources has each source that kept its number during the backup. A source gets a new number when
	// it is created, and when the meaning of its messages changes. The files of the shards have the
	// positions of the sources.
	Sources []admin.SavedSource `json:"sources,omitempty"`
}

type manifestKeyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"`
	Shards  int      `json:"shards"`
	// Numbered lists the columns in the order of their numbers in the files, with "" for a
	// dropped one. If no column was dropped, it is absent and Columns has that order. A
	// program that does not know the field refuses the manifest.
	Numbered []string `json:"numbered_columns,omitempty"`
	column.Settings[int64]
	// Sharding is "" for modulo. A program that does not know the field refuses the manifest.
	Sharding string          `json:"sharding,omitempty"`
	Groups   []manifestGroup `json:"groups"` // one for each shard, in order
}

// manifestGroup is the snapshot of one shard, a file next to the manifest.
type manifestGroup struct {
	Shard  int    `json:"shard"`
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // 64 hex digits
	Index  uint64 `json:"index"`  // last index of the group's log that the snapshot includes
	Rows   uint64 `json:"rows"`
	Digest string `json:"digest"` // digest of its rows, 16 hex digits
}

// errBackup is returned for a directory that holds no whole backup.
var errBackup = errors.New("not a whole backup")

// plainName matches the names that a backup's files may have. It excludes paths.
var plainName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]{0,99}$`)

// groupFileSuffix ends the name of each shard's file.
const groupFileSuffix = ".snapshot"

// readManifest reads the manifest in dir. It refuses a manifest that no backup could have written.
func readManifest(dir string) (*manifest, error) {
	f, err := os.Open(filepath.Join(dir, manifestFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: it has no %s", dir, errBackup, manifestFile)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := parseManifest(io.LimitReader(f, manifestBytesMax))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", f.Name(), errBackup, err)
	}
	return m, nil
}

func parseManifest(r io.Reader) (*manifest, error) {
	m := &manifest{}
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	var number *json.UnmarshalTypeError
	if err := d.Decode(m); errors.As(err, &number) && number.Field == "format" {
		return nil, errors.New("it is of a version of countd that was never released, which this one cannot read")
	} else if err != nil {
		return nil, err
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("format %q, this program reads %q", m.Format, manifestFormat)
	}
	for _, k := range m.Keyspaces {
		if len(k.Groups) != k.Shards || len(k.Columns) == 0 && k.Kind == kindCounters {
			return nil, fmt.Errorf("keyspace %q has %d of %d shards and %d columns", k.Name, len(k.Groups), k.Shards, len(k.Columns))
		}
		for i, g := range k.Groups {
			if g.Shard != i || !plainName.MatchString(g.File) || g.Bytes <= 0 {
				return nil, fmt.Errorf("invalid entry for shard %d of keyspace %q: group %d, %d bytes in file %q", i, k.Name, g.Shard, g.Bytes, g.File)
			}
		}
	}
	return m, nil
}

// check compares the file of a shard with its size and checksum in the manifest.
func (g *manifestGroup) check(dir string) error {
	f, err := os.Open(filepath.Join(dir, g.File))
	if err != nil {
		return fmt.Errorf("%w: %w", errBackup, err)
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != g.Bytes || got != g.SHA256 {
		return fmt.Errorf("%s: %w: %d bytes of SHA-256 %s, want %d of %s", f.Name(), errBackup, n, got, g.Bytes, g.SHA256)
	}
	return nil
}

// backupRefers lists which keyspaces refer to others. A backup copies the referring keyspace first,
// and a restore restores it last. So the backup contains the target of each reference, even if
// there are writes meanwhile. In the other order, a cursor could be beyond the last notice and hide
// later notices. A feed could mark posts as seen that the author does not have.
var backupRefers = []struct{ from, to string }{
	{"unread", "board"}, // cursors to notices and firings
	{"feed", "users"},   // followees to their column posts
}

// inBackupOrder sorts keyspaces in the order of a backup. A restore uses the reverse order.
func inBackupOrder[K any](keyspaces []K, name func(K) string) {
	slices.SortStableFunc(keyspaces, func(a, b K) int { return cmp.Compare(backupRank(name(b)), backupRank(name(a))) })
}

// backupRank returns 0 for a keyspace that refers to no other. Otherwise it returns one more than
// the highest rank of a keyspace to which name refers. References form no cycle.
func backupRank(name string) (rank int) {
	for _, r := range backupRefers {
		if r.from == name {
			rank = max(rank, backupRank(r.to)+1)
		}
	}
	return rank
}
