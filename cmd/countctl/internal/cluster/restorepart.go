package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// part is what is restored of a backup. The zero value is all.
type part struct {
	keyspaces []string
	shard     int // -1 for all
}

// referred has the keyspace to which the keyspaces of a kind refer: cursors have numbers of notices on the board, and feeds
// count the posts of users.
var referred = map[string]string{"unread": "board", "feed": "users"}

func (p part) isAll() bool { return len(p.keyspaces) == 0 }

// String describes a part in questions.
func (p part) String() string {
	switch {
	case p.isAll():
		return "the keyspaces"
	case p.shard >= 0:
		return backup.GroupName(p.keyspaces[0], p.shard)
	}
	return "the keyspaces " + strings.Join(p.keyspaces, ", ")
}

// has reports whether a shard of the cluster is restored.
func (p part) has(keyspace string, shard int) bool {
	return p.isAll() || slices.Contains(p.keyspaces, keyspace) && (p.shard < 0 || p.shard == shard)
}

// cut removes from a backup all that is not in the part. A reference must not be restored without its target: a cursor could
// be beyond the last notice of another board, and so hide later notices.
func (p part) cut(m *backup.Manifest) error {
	if p.isAll() {
		return nil
	}
	var names []string
	for _, k := range m.Keyspaces {
		names = append(names, k.Name)
	}
	for _, name := range p.keyspaces {
		if !slices.Contains(names, name) {
			return fmt.Errorf("--keyspace: the backup has no keyspace %q; it has %s", name, strings.Join(names, ", "))
		}
	}
	part := slices.Clone(p.keyspaces)
	for _, k := range m.Keyspaces {
		if own, users := k.Names(); slices.Contains(p.keyspaces, k.Name) {
			part = append(part, own, users) // names only join those in the cluster
		}
	}
	m.Keyspaces = slices.DeleteFunc(slices.Clone(m.Keyspaces), func(k backup.Keyspace) bool { return !slices.Contains(part, k.Name) })
	for i := range m.Keyspaces {
		k := &m.Keyspaces[i]
		if target, refers := referred[k.Kind]; refers && !slices.Contains(p.keyspaces, target) {
			return fmt.Errorf("--keyspace: %s refers to %s: restore both, with --keyspace %[1]s --keyspace %[2]s", k.Name, target)
		}
		if p.shard < 0 || k.Kind == backup.KindNames {
			continue
		}
		if k.Mixed() {
			return fmt.Errorf("--shard: keyspace %s grew during the backup, so its files are of no single number of shards: restore it whole", k.Name)
		}
		if p.shard >= k.Shards {
			return fmt.Errorf("--shard is %d: keyspace %s has the shards 0 to %d in the backup", p.shard, k.Name, k.Shards-1)
		}
		k.Files = slices.DeleteFunc(slices.Clone(k.Files), func(f backup.File) bool { return f.Shard != p.shard })
	}
	return nil
}

// refusePart returns an error if the part cannot be restored alone into the cluster: a keyspace of the cluster refers to it,
// or the shard has other ids there.
func (r *restore) refusePart(ctx context.Context) error {
	if r.part.isAll() {
		return nil
	}
	groups, err := admin.New(r.server).ClusterGroups(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the groups: %w", err)
	}
	rows := map[string]uint64{}
	for _, g := range groups {
		rows[g.Keyspace] += g.Rows
	}
	for _, k := range r.there {
		if target, refers := referred[k.Kind]; refers && rows[k.Name] > 0 && slices.Contains(r.part.keyspaces, target) && !slices.Contains(r.part.keyspaces, k.Name) {
			return fmt.Errorf("keyspace %s of the cluster has %s that refer to %s: restore both, with --keyspace %[1]s --keyspace %[3]s",
				k.Name, cli.Counted(rows[k.Name], "row"), target)
		}
	}
	for _, k := range r.backup.Keyspaces {
		if there, found := r.keyspace(k.Name); found && r.part.shard >= 0 && !k.SameShards(there) {
			return fmt.Errorf("--shard: keyspace %s has %s, and the backup %s, so their shards have different ids: restore it whole", k.Name,
				layoutText(there.Shards, there.CreatedShards, there.Sharding, false), layoutText(k.Shards, k.CreatedShards, k.Sharding, false))
		}
	}
	return nil
}

// openBackup opens the backup at a place: the backup at of an archive, or the only one of a directory.
func openBackup(ctx context.Context, place, at, identity string) (*backup.Backup, error) {
	target, err := backup.OpenTarget(ctx, place)
	if err != nil {
		return nil, cli.Usagef("%v", err)
	}
	is, err := backup.HasArchive(ctx, target)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read %s: %w", place, err)
	case !is && !isDirectory(target):
		return nil, fmt.Errorf("%s: %w", place, backup.ErrNoArchive)
	case !is && identity != "":
		return nil, cli.Usagef("--identity opens a sealed archive, and %s has no archive", place)
	case !is && at != "":
		return nil, cli.Usagef("--at names a backup of an archive, and %s has no archive", place)
	case !is:
		return backup.ReadDir(place)
	case at == "":
		return nil, cli.Usagef("%s is an archive: give --at %s, or --at with a name of countctl backup list", place, backup.Latest)
	}
	a, err := openArchive(ctx, place, identity)
	if err != nil {
		return nil, err
	}
	name, err := a.Find(ctx, at)
	if err != nil {
		return nil, err
	}
	return a.Open(ctx, name)
}

// isDirectory reports whether a target can hold a single backup instead of an archive.
func isDirectory(target backup.Target) bool {
	_, is := target.(backup.Directory)
	return is
}

// sortedUnique returns the names without repetitions.
func sortedUnique(names []string) []string {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return slices.Sorted(maps.Keys(set))
}
