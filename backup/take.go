package backup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/program"
)

// retryFor bounds how long a backup retries one shard: while its group elects a leader, or has split and its new
// parts take their first snapshots. A majority must store those of all parts, which takes minutes if a shard is large.
const retryFor = 15 * time.Minute

// Report hears about the progress of a backup. A nil function is not called.
type Report struct {
	Say   func(text string)           // something unusual
	Saved func(shard string, f *File) // a shard, such as posts/0, is stored
}

func (r *Report) say(format string, args ...any) {
	if r.Say != nil {
		r.Say(fmt.Sprintf(format, args...))
	}
}

// Store stores the snapshot of one shard, which it reads from in. If it returns nil, the snapshot is durable. It
// may be called again for the same file after an error.
type Store func(ctx context.Context, f *File, in io.Reader) error

// Take reads a cluster, hands each snapshot to store, and returns the manifest. The caller stores the manifest,
// which makes the backup complete.
func Take(ctx context.Context, cluster Cluster, store Store, report Report) (*Manifest, error) {
	t := taking{cluster: cluster, store: store, Report: report}
	return t.all(ctx)
}

// taking is the state of one backup.
type taking struct {
	Report
	cluster Cluster
	store   Store
}

func (t *taking) all(ctx context.Context) (*Manifest, error) {
	m := &Manifest{Format: manifestFormat, Program: program.VersionText(), Begun: time.Now().UTC(), Keyspaces: []Keyspace{}}
	var err error
	if m.ClusterID, err = t.cluster.ID(ctx); err != nil {
		return nil, err
	}
	numbers, err := t.cluster.Groups(ctx) // before the keyspaces: see addColumns
	if err != nil {
		return nil, err
	}
	keyspaces, err := t.cluster.Keyspaces(ctx)
	if err != nil {
		return nil, err
	}
	keyspaces = WithNames(keyspaces, numbers)
	before, err := t.cluster.Sources(ctx)
	if err != nil {
		return nil, err
	}
	InOrder(keyspaces, func(k client.Keyspace) string { return k.Kind })
	for _, k := range keyspaces {
		in := Keyspace{Name: k.Name, Kind: k.Kind, Shards: k.Shards, IDs: k.IDs, Sharding: k.Sharding, CreatedShards: k.CreatedShards}
		for shard := range k.Shards {
			if in.Files, err = t.shards(ctx, k.Name, shard, k.Shards, numbers, in.Files); err != nil {
				return nil, err
			}
		}
		in.settle()
		m.Keyspaces = append(m.Keyspaces, in)
	}
	if err := t.addColumns(ctx, m, numbers); err != nil {
		return nil, err
	}
	if m.Sources, err = t.sources(ctx, before); err != nil {
		return nil, err
	}
	m.Ended = time.Now().UTC()
	return m, nil
}

// sources lists the sources for the manifest. It runs after the last snapshot, so that the list has
// every partition for which a snapshot has a position. earlier is the list from before the
// snapshots. sources omits a source whose number is not the same in both lists: some snapshots have
// positions under the old number, others under the new one, so messages would count twice or never.
func (t *taking) sources(ctx context.Context, earlier []admin.SavedSource) (kept []admin.SavedSource, err error) {
	after, err := t.cluster.Sources(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range after {
		if i := slices.IndexFunc(earlier, func(was admin.SavedSource) bool { return was.Name == s.Name }); i < 0 || earlier[i].Number != s.Number {
			t.say("source %s was made, or what its messages mean was changed, during the backup: it is left out", s.Name)
			continue
		}
		kept = append(kept, s)
	}
	return kept, nil
}

// addColumns adds the columns of the keyspaces to the manifest. It runs after all snapshots, so
// that every column with counts in a snapshot is included. numbers holds the group numbers from
// before the first list of keyspaces. If a group has another number now, its keyspace was dropped and created
// again. A keyspace that is still the same has the number of shards at its creation that settle assumed.
func (t *taking) addColumns(ctx context.Context, m *Manifest, numbers map[string]uint32) error {
	keyspaces, err := t.cluster.Keyspaces(ctx)
	if err != nil {
		return err
	}
	now, err := t.cluster.Groups(ctx)
	if err != nil {
		return err
	}
	keyspaces = WithNames(keyspaces, now)
	for i := range m.Keyspaces {
		in := &m.Keyspaces[i]
		at := slices.IndexFunc(keyspaces, func(k client.Keyspace) bool { return k.Name == in.Name })
		first := GroupName(in.Name, 0)
		if at < 0 || now[first] != numbers[first] || keyspaces[at].Sharding != in.Sharding {
			return fmt.Errorf("keyspace %s was dropped meanwhile, and perhaps created again", in.Name)
		}
		k := keyspaces[at]
		if was, is := cmp.Or(in.CreatedShards, in.Shards), cmp.Or(k.CreatedShards, k.Shards); is != was {
			return fmt.Errorf("keyspace %s was dropped and created again meanwhile: it was created with %d shards, not %d", in.Name, is, was)
		}
		in.Columns, in.Settings = k.Columns, k.Settings
		if len(k.DroppedColumns) > 0 {
			in.Numbered = k.Numbered()
		}
	}
	return nil
}

// shards stores the files of the ids of shard number shard of modulus shards, and appends their descriptions to files. A
// shard that has split takes a snapshot only once its parts have their rows.
func (t *taking) shards(ctx context.Context, keyspace string, shard, modulus int, numbers map[string]uint32, files []File) ([]File, error) {
	most := modulus
	return withParts(shard, modulus, files, func(part int) (*File, error) {
		f, err := t.shard(ctx, keyspace, part, numbers)
		if err != nil {
			return nil, fmt.Errorf("cannot back up %s: %w", GroupName(keyspace, part), err)
		}
		if f.Modulus > most {
			t.say("%s has split into %d", GroupName(keyspace, shard), f.Modulus/modulus)
			most = f.Modulus
			numbers, err = t.cluster.Groups(ctx)
		}
		return f, err
	})
}

// withParts appends the descriptions of the files with the ids of shard number shard of modulus shards to files. read stores
// the file of a shard. If the shard has split, its file has a part of the ids, and names a multiple of modulus. Then the
// other parts are shards of that multiple. Such a part may be of a growth that has not split its parent yet, because two growths
// may overlap with one backup: then the file of the parent, which has a lower number and so was read before, has its ids.
func withParts(shard, modulus int, files []File, read func(part int) (*File, error)) ([]File, error) {
	most := modulus
	for part := shard; part < most; part += modulus {
		if slices.ContainsFunc(files, func(f File) bool { return part%f.Modulus == f.Shard }) {
			continue
		}
		f, err := read(part)
		if err != nil {
			return nil, err
		}
		f.Modulus = cmp.Or(f.Modulus, modulus) // an older program sends none, and does not split
		if f.Modulus%modulus != 0 || f.Modulus%most != 0 && most%f.Modulus != 0 || part >= f.Modulus {
			return nil, fmt.Errorf("cannot back up shard %d: its snapshot has the ids of %d shards, want %d", part, f.Modulus, most)
		}
		files, most = append(files, *f), max(most, f.Modulus)
	}
	return files, nil
}

// GroupName returns the name of a shard's group, as in Cluster.Groups.
func GroupName(keyspace string, shard int) string { return fmt.Sprintf("%s/%d", keyspace, shard) }

// shard stores the snapshot of one shard. After an error that may pass, such as a change of the leader, it
// stores a new snapshot from the start.
func (t *taking) shard(ctx context.Context, keyspace string, shard int, numbers map[string]uint32) (*File, error) {
	name := GroupName(keyspace, shard)
	number, there := numbers[name]
	if !there {
		return nil, errors.New("it has no group")
	}
	f := &File{Shard: shard, Name: fmt.Sprintf("%s-%02d%s", strings.ReplaceAll(keyspace, "@", "."), shard, FileSuffix)}
	retry := client.Retry{For: retryFor, OnWait: func(err error, _ time.Duration) { t.say("%s: %v", name, err) }}
	err := retry.Do(ctx, func() error { return t.file(ctx, number, f) })
	if err == nil && t.Saved != nil {
		t.Saved(name, f)
	}
	return f, err
}

func (t *taking) file(ctx context.Context, number uint32, f *File) error {
	in, err := t.cluster.Snapshot(ctx, number)
	if err != nil {
		return err
	}
	defer in.Close()
	s := summed{in: in, sum: sha256.New(), left: in.Bytes}
	f.Bytes, f.Index, f.Rows, f.Digest, f.Modulus = in.Bytes, in.Index, in.Rows, in.Digest, in.Modulus
	if err := t.store(ctx, f, &s); err != nil {
		return err
	}
	if n, err := s.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("cannot store %s: the store returned before the end of the snapshot: %w", f.Name, cmp.Or(err, io.ErrUnexpectedEOF))
	}
	f.SHA256 = hex.EncodeToString(s.sum.Sum(nil))
	return nil
}

// summed reads a snapshot to its end, which comes after exactly as many bytes as the snapshot's length. If it ends
// earlier or continues, Read fails, so that no store takes it for whole.
type summed struct {
	in   *Snapshot
	sum  hash.Hash
	left int64
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	s.sum.Write(p[:n])
	s.left -= int64(n)
	switch {
	case s.left < 0:
		return 0, fmt.Errorf("%w: the snapshot has more than its %d bytes", client.ErrNoAnswer, s.in.Bytes)
	case errors.Is(err, io.EOF) && s.left == 0:
		return n, io.EOF
	case err != nil:
		return n, fmt.Errorf("%w: the snapshot ends after %d of %d bytes: %w", client.ErrNoAnswer, s.in.Bytes-s.left, s.in.Bytes, err)
	}
	return n, nil
}
