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

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/client/column"
)

const (
	manifestFile   = "manifest.json"
	manifestFormat = "countd backup 1"
	// manifestBytesMax bounds the bytes that readManifest reads. The manifest of a backup with
	// 4,096 groups has about 1 MB.
	manifestBytesMax = 16 << 20
	// modulusMax bounds the moduli of a manifest. It is far above the most shards of a keyspace.
	modulusMax = 1 << 16
)

// manifest describes the content of a backup. It is written last, so a directory without a manifest
// is not a complete backup.
type manifest struct {
	Format    string             `json:"format"` // manifestFormat
	ClusterID string             `json:"cluster_id"`
	Program   string             `json:"program"` // version of the program that wrote the manifest, for information
	Begun     time.Time          `json:"begun"`   // start of the backup; it has every write that was acknowledged earlier
	Ended     time.Time          `json:"ended"`
	Keyspaces []manifestKeyspace `json:"keyspaces"`
	// Sources has each source whose number did not change during the backup. A source gets a new
	// number when it is created, and when the meaning of its messages changes. The snapshots of the
	// shards contain the positions of the sources.
	Sources []admin.SavedSource `json:"sources,omitempty"`
}

type manifestKeyspace struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Columns []string `json:"columns"`
	Shards  int      `json:"shards"`
	// Numbered lists the columns in the order of their numbers in the snapshots, with "" for a
	// dropped column. It is absent if no column was dropped; then Columns has this order. Older
	// programs, which lack this field, refuse a manifest that has it.
	Numbered []string `json:"numbered_columns,omitempty"`
	column.Settings[int64]
	// Sharding is "" for modulo. Older programs, which lack this field, refuse a manifest that has
	// it.
	Sharding string `json:"sharding,omitempty"`
	// CreatedShards is the number of shards at the creation; 0 unless the keyspace has grown. The keys in the
	// snapshots depend on it.
	CreatedShards int `json:"created_shards,omitempty"`
	// Groups has one for each shard, in the order of shards. If the keyspace grew during the backup, it may have some shards
	// from before their split, and the parts of others. Each id is in one of them.
	Groups []manifestGroup `json:"groups"`
}

// settle completes the description of a keyspace from the moduli of its groups. If all shards had split, the backup is one
// of the grown keyspace.
func (k *manifestKeyspace) settle() {
	slices.SortFunc(k.Groups, func(a, b manifestGroup) int { return cmp.Compare(a.Shard, b.Shard) })
	modulus := k.Groups[0].Modulus
	if !slices.ContainsFunc(k.Groups, func(g manifestGroup) bool { return g.Modulus != modulus }) && modulus != k.Shards {
		k.Shards, k.CreatedShards = modulus, cmp.Or(k.CreatedShards, k.Shards)
	}
	for i := range k.Groups {
		if g := &k.Groups[i]; g.Modulus == k.Shards {
			g.Modulus = 0
		}
	}
}

// mixed reports whether the backup has shards from before and after a growth.
func (k *manifestKeyspace) mixed() bool {
	return slices.ContainsFunc(k.Groups, func(g manifestGroup) bool { return g.Modulus != 0 })
}

// parts returns the largest modulus of the groups. In a keyspace that is created with so many shards, each shard has its ids from
// one file.
func (k *manifestKeyspace) parts() int {
	most := k.Shards
	for _, g := range k.Groups {
		most = max(most, g.Modulus)
	}
	return most
}

// covers reports whether each id is in exactly one group.
func (k *manifestKeyspace) covers() bool {
	most := k.parts()
	if k.Shards < 1 || most > modulusMax {
		return false
	}
	covered := make([]bool, most) // by remainder
	for _, g := range k.Groups {
		modulus := cmp.Or(g.Modulus, k.Shards)
		if g.Shard < 0 || modulus < 1 || g.Shard >= modulus || most%modulus != 0 {
			return false
		}
		for s := g.Shard; s < most; s += modulus {
			if covered[s] {
				return false
			}
			covered[s] = true
		}
	}
	return !slices.Contains(covered, false)
}

// divisor returns the number of ids of the whole keyspace that have the same key in the snapshots.
func (k *manifestKeyspace) divisor() int {
	if k.Sharding != "" {
		return 1
	}
	return cmp.Or(k.CreatedShards, k.Shards)
}

// sameShards reports whether each shard of the keyspace there has the ids and keys of a snapshot.
func (k *manifestKeyspace) sameShards(there client.Keyspace) bool {
	if there.Shards != k.Shards || there.Sharding != k.Sharding || k.mixed() {
		return false
	}
	return k.Sharding != "" || cmp.Or(there.CreatedShards, there.Shards) == k.divisor()
}

// shares reports whether an id may be both in a snapshot and in a shard of the keyspace there.
func (k *manifestKeyspace) shares(g manifestGroup, there client.Keyspace, shard int) bool {
	a, b := there.Shards, cmp.Or(g.Modulus, k.Shards)
	for b > 0 {
		a, b = b, a%b
	}
	return there.Sharding != k.Sharding || shard%a == g.Shard%a // a is the greatest common divisor
}

// merges reports whether a shard of the keyspace there would get the ids of several files.
func (k *manifestKeyspace) merges(there client.Keyspace) bool {
	for shard := range there.Shards {
		files := 0
		for _, g := range k.Groups {
			if k.shares(g, there, shard) {
				files++
			}
		}
		if files > 1 {
			return true
		}
	}
	return false
}

// manifestGroup describes the snapshot of one shard, which is a file in the manifest's directory.
type manifestGroup struct {
	Shard  int    `json:"shard"`
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // 64 hex digits
	Index  uint64 `json:"index"`  // index of the last log entry that the snapshot includes
	Rows   uint64 `json:"rows"`
	Digest string `json:"digest"` // digest of the rows, 16 hex digits
	// Modulus is the number of shards by which the ids were chosen, if it is not the keyspace's; otherwise 0. Older programs,
	// which lack this field, refuse a manifest that has it.
	Modulus int `json:"modulus,omitempty"`
}

// errBackup is returned for a directory that does not hold a complete backup.
var errBackup = errors.New("not a whole backup")

// plainName matches the allowed names of a backup's files. It does not match paths.
var plainName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]{0,99}$`)

// groupFileSuffix is the end of the file name of each snapshot.
const groupFileSuffix = ".snapshot"

// readManifest reads the manifest in dir. It returns an error for a manifest that no backup could
// have written.
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
		if !k.covers() || len(k.Columns) == 0 && k.Kind == kindCounters {
			return nil, fmt.Errorf("keyspace %q has %d files for %d shards, and %d columns", k.Name, len(k.Groups), k.Shards, len(k.Columns))
		}
		for i, g := range k.Groups {
			if !plainName.MatchString(g.File) || g.Bytes <= 0 {
				return nil, fmt.Errorf("invalid entry for shard %d of keyspace %q: group %d, %d bytes in file %q", i, k.Name, g.Shard, g.Bytes, g.File)
			}
		}
	}
	return m, nil
}

// check compares the file of a shard with the size and checksum in the manifest.
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

// referringKinds lists the kinds whose keyspaces refer to others: rows of unread numbers have cursors
// to notices and firings of the board, and feeds have counts of posts. A backup copies the referring
// keyspaces before the others, and a restore restores them after the others. So the backup contains
// the target of each reference, even if clients write meanwhile. In the reverse order, a cursor could
// be beyond the last notice of the backup and so hide later notices. A feed could mark posts as seen
// that are missing in the backup.
var referringKinds = []string{"unread", "feed"}

// inBackupOrder sorts keyspaces into the order in which a backup copies them. A restore uses the
// reverse order.
func inBackupOrder[K any](keyspaces []K, kind func(K) string) {
	rank := func(k K) int { return min(slices.Index(referringKinds, kind(k)), 0) } // 0 if k refers to others, or -1
	slices.SortStableFunc(keyspaces, func(a, b K) int { return cmp.Compare(rank(b), rank(a)) })
}
