package cluster

import (
	"context"
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

	"github.com/countd/countd/backup"
	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/program"
)

type backupOutput struct {
	Dir     string  `json:"dir"`
	Shards  int     `json:"shards"`
	Rows    uint64  `json:"rows"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func backupCommand(c *cli.CLI) *cobra.Command {
	to, keep, recipients := "", "", ""
	cmd := &cobra.Command{
		Use:   "backup [DIR]",
		Short: "Back up all rows of all keyspaces, into a new directory or an archive",
		Long: `Back up all rows of all keyspaces, into a new directory or an archive.

Each shard is saved as it was at one moment, including all writes acknowledged before
the backup began; different shards may be of different moments. A keyspace may grow meanwhile. Users' cursors and feeds
are saved before the notices and posts that they refer to. Writes continue meanwhile. The
files have checksums, and restore verifies them all. The files include what the shards
remember of requests, but a restore does not use it. Sources are in it, with the position of each
shard; users and their tokens are not.

A backup to DIR that is interrupted or fails removes what it wrote. An archive has many backups
of one cluster: --to stores only what no earlier backup has, and creates the archive in an empty or
missing directory. With --keep it then deletes older backups: it keeps the newest of each of so many
hours, days and weeks that have one, and always the newest two. It reads the new backup first, because a
damaged one must not take the place of others. --keep 0 keeps all, and frees what failed backups left.

An archive may be in a bucket of S3 or of a store with its interface, which must exist:
s3://BUCKET/PREFIX?endpoint=HOST:PORT&insecure=true&region=REGION. Without endpoint it is that of AWS;
insecure=true is HTTP; without region, the store is asked. The first of these that has credentials counts:
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN), MINIO_ROOT_USER and
MINIO_ROOT_PASSWORD, MINIO_ACCESS_KEY and MINIO_SECRET_KEY, ~/.aws/config and ~/.aws/credentials
(AWS_PROFILE), ~/.mc/config.json (MINIO_ALIAS), the role of the machine or container.
A bucket with versions keeps what is deleted: let them expire.

With --backup-recipients, rows are encrypted (age), and each recipient can restore them, with
restore --identity. Manifests are not: names of keyspaces and columns, sizes and hashes can be read. An archive
is sealed from its first backup on, or never. Once the file has other recipients, the next backup stores
everything again: earlier backups stay readable for their own recipients only. So keep former identities
until no backup needs them.`,
		Example: "  countctl backup before-the-upgrade\n  countctl backup --to /backups --keep hours=24,days=7,weeks=4\n  countctl backup --to 's3://backups/songs?region=eu-west-1'",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case (len(args) == 1) == cmd.Flags().Changed("to"):
				return cli.Usagef("backup takes either DIR or --to TARGET")
			case len(args) == 0:
				return runArchive(cmd.Context(), c, to, keep, recipients)
			case keep != "":
				return cli.Usagef("--keep is for an archive, with --to")
			case recipients != "":
				return cli.Usagef("--backup-recipients is for an archive, with --to")
			}
			return runBackup(cmd.Context(), c, args[0])
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the archive: a directory, or s3://BUCKET/PREFIX")
	cmd.Flags().StringVar(&keep, "keep", "", "delete older backups of the archive, such as hours=24,days=7,weeks=4")
	cmd.Flags().StringVar(&recipients, "backup-recipients", "", "a file of age recipients (public keys age1…, one in each line) that the archive is sealed for")
	cmd.AddCommand(backupListCommand(c), backupVerifyCommand(c))
	return cmd
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
	b := directory{CLI: c, dir: dir, files: []string{backup.ManifestFile, claimFile}}
	began := time.Now()
	m, err := backup.Take(ctx, httpCluster{c, server}, b.store, reportTo(c))
	if err == nil {
		err = program.WriteJSON(filepath.Join(dir, backup.ManifestFile), m, (*program.AtomicFile).Commit)
	}
	if err == nil {
		err = os.Remove(filepath.Join(dir, claimFile))
	}
	if err != nil {
		b.remove(made)
		return fmt.Errorf("cannot back up to %s: %w", dir, err)
	}
	sayUsers(ctx, c, server)
	out := backupOutput{Dir: dir, Seconds: time.Since(began).Seconds()}
	out.Shards, out.Rows, out.Bytes = m.Totals()
	return c.Print(out, func(t *cli.Table) {
		t.Row("BACKUP", "SHARDS", "ROWS", "BYTES", "SECONDS")
		t.Row(dir, out.Shards, cli.Grouped(out.Rows), cli.Grouped(out.Bytes), fmt.Sprintf("%.1f", out.Seconds))
	})
}

// sayUsers says that the users of the cluster are not in a backup.
func sayUsers(ctx context.Context, c *cli.CLI, server *client.Client) {
	if users, err := admin.New(server).Users(ctx); err == nil && len(users) > 0 {
		c.Say("%s and their tokens are not in the backup: create them again where it is restored", cli.Counted(uint64(len(users)), "user"))
	}
}

// reportTo writes the progress of a backup to standard error.
func reportTo(c *cli.CLI) backup.Report {
	return backup.Report{
		Say: func(text string) { c.Say("%s", text) },
		Saved: func(shard string, f *backup.File) {
			c.Say("%s: %s, %s", shard, cli.Counted(f.Rows, "row"), cli.Counted(f.Bytes, "byte"))
		},
	}
}

// claimFile marks a directory whose backup is not complete yet. The run that created the file owns
// the directory: no other run writes or removes files in it.
const claimFile = "claim" + backup.FileSuffix

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
		return !strings.Contains(e.Name(), backup.FileSuffix)
	})
}

// directory is the state of a backup into a new directory.
type directory struct {
	*cli.CLI
	dir   string
	files []string // files that are removed if the backup fails
}

// remove removes the files of a failed backup, and also its directory if made is set. The files are
// useless, because every backup writes all shards anew.
func (b *directory) remove(made bool) {
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

// store writes the snapshot of a shard into the directory.
func (b *directory) store(_ context.Context, f *backup.File, in io.Reader) error {
	out, err := program.CreateFile(filepath.Join(b.dir, f.Name))
	if err != nil {
		return err
	}
	defer out.Abort()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	b.files = append(b.files, f.Name)
	return out.Commit()
}

// httpCluster is a backup.Cluster that is read through the HTTP API.
type httpCluster struct {
	*cli.CLI
	server *client.Client
}

// ID implements backup.Cluster.
func (c httpCluster) ID(ctx context.Context) (string, error) {
	nodes, err := admin.New(c.server).ClusterNodes(ctx)
	return nodes.ClusterID, err
}

// Keyspaces implements backup.Cluster.
func (c httpCluster) Keyspaces(ctx context.Context) ([]client.Keyspace, error) {
	return cli.KeyspacesNow(ctx, c.server)
}

// Groups implements backup.Cluster.
func (c httpCluster) Groups(ctx context.Context) (map[string]uint32, error) {
	return groupNumbers(ctx, c.server)
}

// Sources implements backup.Cluster.
func (c httpCluster) Sources(ctx context.Context) ([]admin.SavedSource, error) {
	all, err := admin.New(c.server).SavedSources(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sources: %w", err)
	}
	return all, nil
}

// Snapshot implements backup.Cluster.
func (c httpCluster) Snapshot(ctx context.Context, group uint32) (*backup.Snapshot, error) {
	leader, err := c.leader(ctx, group)
	if err != nil {
		return nil, err
	}
	s, err := admin.New(leader).Snapshot(ctx, group)
	if err != nil {
		leader.Close()
		return nil, err
	}
	s.ReadCloser = withClient{s.ReadCloser, leader}
	return s, nil
}

// withClient closes the client of a stream with the stream.
type withClient struct {
	io.ReadCloser
	c *client.Client
}

func (w withClient) Close() error {
	defer w.c.Close()
	return w.ReadCloser.Close()
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

// leader returns a client of the node that leads the group. If the leader is unknown, it returns a
// client of any node.
func (c httpCluster) leader(ctx context.Context, number uint32) (*client.Client, error) {
	addr := c.server.Addr()
	seen, err := admin.New(c.server).ClusterNodes(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := admin.New(c.server).ClusterGroups(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if n, there := findNode(seen.Nodes, g.Leader); there && g.ID == number {
			addr = cli.NodeURL(c.server, n.HTTPAddr)
		}
	}
	return c.Dial([]string{addr}, client.Retry{})
}
