package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/countd/countd/client/admin"
)

const (
	manifestFormat = "countd backup 1"
	// manifestBytesMax bounds the bytes of a manifest that are read. The manifest of a backup with 4,096 groups
	// has about 1 MB.
	manifestBytesMax = 16 << 20
)

// ErrIncomplete is returned for something that is not a complete backup, or no longer one.
var ErrIncomplete = errors.New("not a whole backup")

// Manifest describes the content of a backup. It is written last, so without a manifest there is no complete
// backup.
type Manifest struct {
	Format    string     `json:"format"` // manifestFormat
	ClusterID string     `json:"cluster_id"`
	Program   string     `json:"program"` // version of the program that wrote the manifest, for information
	Begun     time.Time  `json:"begun"`   // start of the backup; it has every write that was acknowledged earlier
	Ended     time.Time  `json:"ended"`
	Keyspaces []Keyspace `json:"keyspaces"`
	// SealedFor is set if the chunks are encrypted: the SHA-256 of the recipients' public keys, 64 hex digits. It is part
	// of the names of the chunks.
	SealedFor string `json:"sealed_for,omitempty"`
	// Sources has each source whose number did not change during the backup. A source gets a new number when it
	// is created, and when the meaning of its messages changes. The snapshots of the shards contain the positions
	// of the sources.
	Sources []admin.SavedSource `json:"sources,omitempty"`
}

// File describes the snapshot of one shard.
type File struct {
	Shard  int    `json:"shard"`
	Name   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // 64 hex digits
	Index  uint64 `json:"index"`  // index of the last log entry that the snapshot includes
	Rows   uint64 `json:"rows"`
	Digest string `json:"digest"` // digest of the rows, 16 hex digits
	// Modulus is the number of shards by which the ids were chosen, if it is not the keyspace's; otherwise 0. Older
	// programs, which lack this field, refuse a manifest that has it.
	Modulus int `json:"modulus,omitempty"`
	// Chunks has the content of the file in order, in an archive. A backup in a directory of its own has none.
	Chunks []Chunk `json:"chunks,omitempty"`
}

// Chunk is a part of a snapshot.
type Chunk struct {
	SHA256 string `json:"sha256"` // of its plain bytes, 64 hex digits; its name unless it is encrypted
	Bytes  int64  `json:"bytes"`
}

// FileSuffix is the end of the name of each snapshot.
const FileSuffix = ".snapshot"

// plainName matches the allowed names of a backup's files. It does not match paths.
var plainName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]{0,99}$`)

// parseManifest returns an error for a manifest that no backup could have written.
func parseManifest(r io.Reader) (*Manifest, error) {
	m := &Manifest{}
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
		if !k.covers() || len(k.Columns) == 0 && k.Kind == KindCounters {
			return nil, fmt.Errorf("keyspace %q has %d files for %d shards, and %d columns", k.Name, len(k.Files), k.Shards, len(k.Columns))
		}
		for i, f := range k.Files {
			if !plainName.MatchString(f.Name) || f.Bytes <= 0 {
				return nil, fmt.Errorf("invalid entry for shard %d of keyspace %q: group %d, %d bytes in file %q", i, k.Name, f.Shard, f.Bytes, f.Name)
			}
		}
	}
	return m, nil
}
