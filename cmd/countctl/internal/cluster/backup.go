package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/program"
)

// backupRetryFor bounds how long backup retries one shard: while its group elects a leader, or has split and its new
// parts take their first snapshots.
const backupRetryFor = 3 * time.Minute

type backupOutput struct {
	Dir     string  `json:"dir"`
	Shards  int     `json:"shards"`
	Rows    uint64  `json:"rows"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func backupCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "backup DIR",
		Short: "Write all rows of all keyspaces to a new directory",
		Long: `Write all rows of all keyspaces to a new directory.

Each shard is saved as it was at one moment, including all writes acknowledged before
the backup began; different shards may be of different moments. A keyspace may grow meanwhile. Users' cursors and feeds
are saved before the notices and posts that they refer to. Writes continue meanwhile. The
files have checksums, and restore verifies them all. A backup that is interrupted or fails
removes what it wrote. The files include what the shards remember of requests, but a
restore does not use it. Sources are in it, with the position of each shard; users and their
tokens are not.`,
		RunE: func(cmd *cobra.Command, args []string) error { return runBackup(cmd.Context(), c, args[0]) },
	}
}

func runBackup(ctx context.Context, c *cli.CLI, dir string) error {
	server, _, err := c.Operate(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	made, err := claimDir(dir)
	if err != nil {
		return err
	}
	b := backup{CLI: c, server: server, dir: dir, files: []string{manifestFile, claimFile}}
	began := time.Now()
	m, err := b.all(ctx)
	if err == nil {
		err = program.WriteJSON(filepath.Join(dir, manifestFile), m, (*program.AtomicFile).Commit)
	}
	if err == nil {
		err = os.Remove(filepath.Join(dir, claimFile))
	}
	if err != nil {
		b.remove(made)
		return fmt.Errorf("cannot back up to %s: %w", dir, err)
	}
	if users, err := admin.New(server).Users(ctx); err == nil && len(users) > 0 {
		c.Say("%s and their tokens are not in the backup: create them again where it is restored", cli.Counted(uint64(len(users)), "user"))
	}
	out := backupOutput{Dir: dir, Seconds: time.Since(began).Seconds()}
	for _, k := range m.Keyspaces {
		for _, g := range k.Groups {
			out.Shards++
			out.Rows += g.Rows
			out.Bytes += g.Bytes
		}
	}
	return c.Print(out, func(t *cli.Table) {
		t.Row("BACKUP", "SHARDS", "ROWS", "BYTES", "SECONDS")
		t.Row(dir, out.Shards, cli.Grouped(out.Rows), cli.Grouped(out.Bytes), fmt.Sprintf("%.1f", out.Seconds))
	})
}

// claimFile marks a directory whose backup is not complete yet. The run that created the file owns
// the directory: no other run writes or removes files in it.
const claimFile = "claim" + groupFileSuffix

// claimDir creates a directory, or uses an existing empty one, and creates claimFile in it. made is
// true if it created the directory.
func claimDir(dir string) (made bool, err error) {
	_, err = os.Lstat(dir)
	made = errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return false, fmt.Errorf("cannot make the directory of the backup: %w", err)
	}
	if err := checkEmpty(dir); err != nil {
		return false, err
	}
	claim, err := os.OpenFile(filepath.Join(dir, claimFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		err = claim.Close()
	}
	if errors.Is(err, os.ErrExist) {
		err = fmt.Errorf("another backup is under way there; it is not empty: %w", err)
	}
	if err != nil {
		return false, fmt.Errorf("cannot claim %s: %w", dir, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 { // another backup has written files here since the call of checkEmpty
		return false, errors.Join(err, os.Remove(claim.Name()), checkEmpty(dir))
	}
	return made, nil
}

// checkEmpty returns an error for a directory that is not empty.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the directory of the backup: %w", err)
	case len(entries) > 0 && isUnfinished(entries):
		return fmt.Errorf("%s is not empty: it holds an incomplete backup; remove it, or give a new directory; it may also be that of another backup under way", dir)
	case len(entries) > 0:
		return fmt.Errorf("%s is not empty; give a new directory for each backup", dir)
	}
	return nil
}

// isUnfinished reports whether a directory holds only files of a killed backup: complete or
// incomplete snapshots, but no manifest.
func isUnfinished(entries []os.DirEntry) bool {
	return !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return !strings.Contains(e.Name(), groupFileSuffix)
	})
}

// backup is the state of one run of the command backup.
type backup struct {
	*cli.CLI
	server *client.Client
	dir    string
	files  []string // files that are removed if the backup fails
}

// remove removes the files of a failed backup, and also its directory if made is set. The files are
// useless, because every backup writes all shards anew.
func (b *backup) remove(made bool) {
	left := error(nil)
	for _, file := range b.files {
		if err := os.Remove(filepath.Join(b.dir, file)); !errors.Is(err, os.ErrNotExist) {
			left = errors.Join(left, err)
		}
	}
	if made {
		left = errors.Join(left, os.Remove(b.dir))
	}
	if left != nil {
		b.Say("the backup is incomplete, and not all of it could be removed; remove %s: %v", b.dir, left)
		return
	}
	b.Say("the backup is incomplete; its files in %s were removed; run it again", b.dir)
}

func (b *backup) all(ctx context.Context) (*manifest, error) {
	m := &manifest{Format: manifestFormat, Program: program.VersionText(), Begun: time.Now().UTC(), Keyspaces: []manifestKeyspace{}}
	nodes, err := admin.New(b.server).ClusterNodes(ctx)
	if err != nil {
		return nil, err
	}
	m.ClusterID = nodes.ClusterID
	numbers, err := groupNumbers(ctx, b.server) // before the keyspaces: see addColumns
	if err != nil {
		return nil, err
	}
	keyspaces, err := cli.KeyspacesNow(ctx, b.server)
	if err != nil {
		return nil, err
	}
	before, err := admin.New(b.server).SavedSources(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sources: %w", err)
	}
	inBackupOrder(keyspaces, func(k client.Keyspace) string { return k.Kind })
	for _, k := range keyspaces {
		in := manifestKeyspace{Name: k.Name, Kind: k.Kind, Shards: k.Shards, Sharding: k.Sharding, CreatedShards: k.CreatedShards}
		for shard := range k.Shards {
			if in.Groups, err = b.shards(ctx, k.Name, shard, k.Shards, numbers, in.Groups); err != nil {
				return nil, err
			}
		}
		in.settle()
		m.Keyspaces = append(m.Keyspaces, in)
	}
	if err := b.addColumns(ctx, m, numbers); err != nil {
		return nil, err
	}
	if m.Sources, err = b.sources(ctx, before); err != nil {
		return nil, err
	}
	m.Ended = time.Now().UTC()
	return m, nil
}

// sources lists the sources for the manifest. It runs after the last snapshot, so that the list has
// every partition for which a snapshot has a position. earlier is the list from before the
// snapshots. sources omits a source whose number is not the same in both lists: some snapshots have
// positions under the old number, others under the new one, so messages would count twice or never.
func (b *backup) sources(ctx context.Context, earlier []admin.SavedSource) (kept []admin.SavedSource, err error) {
	after, err := admin.New(b.server).SavedSources(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sources: %w", err)
	}
	for _, s := range after {
		if i := slices.IndexFunc(earlier, func(was admin.SavedSource) bool { return was.Name == s.Name }); i < 0 || earlier[i].Number != s.Number {
			b.Say("source %s was made, or what its messages mean was changed, during the backup: it is left out", s.Name)
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
func (b *backup) addColumns(ctx context.Context, m *manifest, numbers map[string]uint32) error {
	keyspaces, err := cli.KeyspacesNow(ctx, b.server)
	if err != nil {
		return err
	}
	now, err := groupNumbers(ctx, b.server)
	if err != nil {
		return err
	}
	for i := range m.Keyspaces {
		in := &m.Keyspaces[i]
		at := slices.IndexFunc(keyspaces, func(k client.Keyspace) bool { return k.Name == in.Name })
		first := fmt.Sprintf("%s/%d", in.Name, 0)
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

// groupNumbers returns the numbers of all groups, by group name. They are as new as KeyspacesNow.
func groupNumbers(ctx context.Context, server *client.Client) (map[string]uint32, error) {
	groups, err := client.AskMember[[]admin.ClusterGroup](ctx, server, client.Call{
		Method: http.MethodGet, Path: "/v1/admin/groups?consistency=linearizable",
	}, "groups")
	if err != nil {
		return nil, fmt.Errorf("cannot list the groups: %w", err)
	}
	numbers := map[string]uint32{}
	for _, g := range groups {
		numbers[cli.GroupName(g)] = g.ID
	}
	return numbers, nil
}

// shards writes the files of the ids of shard number shard of modulus shards, and appends their descriptions to files. A
// shard that has split takes a snapshot only once its parts have their rows.
func (b *backup) shards(ctx context.Context, keyspace string, shard, modulus int, numbers map[string]uint32, files []manifestGroup) ([]manifestGroup, error) {
	most := modulus
	return withParts(shard, modulus, files, func(part int) (*manifestGroup, error) {
		g, err := b.shard(ctx, keyspace, part, numbers)
		if err != nil {
			return nil, fmt.Errorf("cannot back up %s/%d: %w", keyspace, part, err)
		}
		if g.Modulus > most {
			b.Say("%s/%d has split into %d", keyspace, shard, g.Modulus/modulus)
			most = g.Modulus
			numbers, err = groupNumbers(ctx, b.server)
		}
		return g, err
	})
}

// withParts appends the descriptions of the files with the ids of shard number shard of modulus shards to files. read writes
// the file of a shard. If the shard has split, its file has a part of the ids, and names a multiple of modulus. Then the
// other parts are shards of that multiple. Such a part may be of a growth that has not split its parent yet, because two growths
// may overlap with one backup: then the file of the parent, which has a lower number and so was read before, has its ids.
func withParts(shard, modulus int, files []manifestGroup, read func(part int) (*manifestGroup, error)) ([]manifestGroup, error) {
	most := modulus
	for part := shard; part < most; part += modulus {
		if slices.ContainsFunc(files, func(g manifestGroup) bool { return part%g.Modulus == g.Shard }) {
			continue
		}
		g, err := read(part)
		if err != nil {
			return nil, err
		}
		g.Modulus = cmp.Or(g.Modulus, modulus) // an older program sends none, and does not split
		if g.Modulus%modulus != 0 || g.Modulus%most != 0 && most%g.Modulus != 0 || part >= g.Modulus {
			return nil, fmt.Errorf("cannot back up shard %d: its snapshot has the ids of %d shards, want %d", part, g.Modulus, most)
		}
		files, most = append(files, *g), max(most, g.Modulus)
	}
	return files, nil
}

// shard writes the file of one shard. After a retryable error, such as a change of the leader, it
// writes the file again from the start.
func (b *backup) shard(ctx context.Context, keyspace string, shard int, numbers map[string]uint32) (*manifestGroup, error) {
	name := fmt.Sprintf("%s/%d", keyspace, shard)
	number, there := numbers[name]
	if !there {
		return nil, errors.New("it has no group")
	}
	g := &manifestGroup{Shard: shard, File: fmt.Sprintf("%s-%02d%s", keyspace, shard, groupFileSuffix)}
	retry := client.Retry{For: backupRetryFor, OnWait: func(err error, _ time.Duration) { b.Say("%s: %v", name, err) }}
	err := retry.Do(ctx, func() error { return b.file(ctx, number, g) })
	if err == nil {
		b.Say("%s: %s, %s", name, cli.Counted(g.Rows, "row"), cli.Counted(g.Bytes, "byte"))
	}
	return g, err
}

func (b *backup) file(ctx context.Context, number uint32, g *manifestGroup) error {
	source, err := b.leader(ctx, number)
	if err != nil {
		return err
	}
	defer source.Close()
	in, err := admin.New(source).Snapshot(ctx, number)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := program.CreateFile(filepath.Join(b.dir, g.File))
	if err != nil {
		return err
	}
	defer out.Abort()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), in)
	if err != nil || n != in.Bytes {
		return fmt.Errorf("%w: the snapshot ends after %d of %d bytes: %w", client.ErrNoAnswer, n, in.Bytes, err)
	}
	g.Bytes, g.Index, g.Rows, g.Digest, g.Modulus = n, in.Index, in.Rows, in.Digest, in.Modulus
	g.SHA256 = hex.EncodeToString(sum.Sum(nil))
	b.files = append(b.files, g.File)
	return out.Commit()
}

// leader returns a client of the node that leads the group. If the leader is unknown, it returns a
// client of any node.
func (b *backup) leader(ctx context.Context, number uint32) (*client.Client, error) {
	addr := b.server.Addr()
	seen, err := admin.New(b.server).ClusterNodes(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := admin.New(b.server).ClusterGroups(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if n, there := findNode(seen.Nodes, g.Leader); there && g.ID == number {
			addr = cli.NodeURL(b.server, n.HTTPAddr)
		}
	}
	return b.Dial([]string{addr}, client.Retry{})
}
