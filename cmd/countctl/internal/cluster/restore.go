package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

type restoreOutput struct {
	Dir     string        `json:"dir"`
	Backup  string        `json:"backup,omitempty"` // the name of one in an archive
	Shards  int           `json:"shards"`
	Rows    uint64        `json:"rows"`
	Seconds float64       `json:"seconds"`
	Verify  *verifyOutput `json:"verify,omitempty"` // nil with --check, because that restores nothing
}

func restoreCommand(c *cli.CLI) *cobra.Command {
	r, check := restore{CLI: c}, false
	cmd := &cobra.Command{
		Use:   "restore DIR",
		Short: "Restore the rows of a backup into a cluster whose keyspaces are empty",
		Long: `Set all rows to those of a backup, in a cluster whose keyspaces are empty. DIR has a single backup,
or an archive: then --at names the backup.

All files are verified before anything changes. Missing keyspaces are created; existing
ones get the columns and floors of the backup, and may have other numbers of shards. Keep
others from writing until it is done. At the end all replicas are compared. With --force,
existing rows are deleted first; use that also to complete a restore that was interrupted.

In another cluster than that of the backup it creates the sources of the backup, paused; each shard
continues where it was. Resume them once nothing reads their queues for the former cluster any more.
In the same cluster, sources stay as they are, and each restored shard reads again what it lacks.

Cursors beyond the end of the backup's board are set back to its end, so that no later notice
is hidden from a user.

Shards forget all requests, and a restore does not bring back those of the backup. So a
repeated request counts again, whatever its key or number, even one from before the backup.

With --keyspace only those keyspaces are restored, and with --shard one shard of one keyspace, if
the keyspace has the same shards as in the backup. All others stay as they are. No sources are created. unread
is restored only with board, and feed only with users, because their numbers mean nothing without.
For the same reason, board is restored alone only while unread has no rows, and users while feed has none.`,
		Example: "  countctl restore before-the-upgrade\n  countctl restore /backups --at latest --keyspace songs --force",
		RunE: func(cmd *cobra.Command, args []string) error {
			r.dir, r.part.keyspaces = args[0], sortedUnique(r.part.keyspaces)
			if !cmd.Flags().Changed("shard") {
				r.part.shard = -1
			} else if len(r.part.keyspaces) != 1 || r.part.shard < 0 {
				return cli.Usagef("--shard is a number from 0, of the shard of one --keyspace")
			}
			return r.run(cmd.Context(), check)
		},
	}
	cmd.Flags().BoolVar(&r.force, "force", false, "delete the rows that are there")
	cmd.Flags().BoolVar(&r.noSources, "no-sources", false, "create no sources in another cluster than that of the backup")
	cmd.Flags().BoolVar(&check, "check", false, "only check the files of the backup")
	cmd.Flags().StringVar(&r.identity, "identity", "", identityHelp)
	cmd.Flags().StringVar(&r.at, "at", "", "the backup of an archive: its name, the beginning of its name, or "+backup.Latest)
	cmd.Flags().StringArrayVar(&r.part.keyspaces, "keyspace", nil, "restore only this keyspace; may be repeated")
	cmd.Flags().IntVar(&r.part.shard, "shard", 0, "restore only this shard of the keyspace")
	cmd.Flags().Lookup("shard").DefValue = "" // so that the help shows no default
	return cmd
}

// restore is the state of one run of the command restore.
type restore struct {
	*cli.CLI
	dir      string
	at       string
	identity string // file
	part     part
	force    bool
	// noSources is set if no sources are created in another cluster than that of the backup.
	noSources bool
	server    *client.Client
	backup    *backup.Backup
	there     []client.Keyspace // keyspaces of the cluster
	numbers   map[string]uint32 // numbers of the cluster's groups, by group name
	// moved has an entry for each keyspace whose column numbers in the snapshots are not those in
	// the cluster. The key is the name of the keyspace. The value lists the columns like
	// backup.Keyspace.Numbered.
	moved map[string][]string
}

func (r *restore) run(ctx context.Context, check bool) error {
	began := time.Now()
	out, err := r.checkFiles(ctx)
	if err != nil {
		return err
	}
	if !check {
		if err := r.begin(ctx); err != nil {
			return err
		}
		defer r.server.Close()
		if err := r.all(ctx, &out); err != nil {
			return err
		}
	}
	out.Seconds = time.Since(began).Seconds()
	return r.Print(out, func(t *cli.Table) {
		t.Row("BACKUP", "SHARDS", "ROWS", "SECONDS")
		t.Row(cmp.Or(out.Backup, r.dir), out.Shards, cli.Grouped(out.Rows), fmt.Sprintf("%.1f", out.Seconds))
	})
}

// checkFiles checks every file of the backup.
func (r *restore) checkFiles(ctx context.Context) (restoreOutput, error) {
	out := restoreOutput{Dir: r.dir}
	var err error
	if r.backup, err = openBackup(ctx, r.dir, r.at, r.identity); err != nil {
		return out, err
	}
	if r.at != "" {
		out.Backup = r.backup.From
	}
	if err := r.part.cut(r.backup.Manifest); err != nil {
		return out, err
	}
	for _, k := range r.backup.Keyspaces {
		for _, g := range k.Files {
			if err := r.backup.Check(ctx, &g); err != nil {
				return out, err
			}
		}
	}
	out.Shards, out.Rows, _ = r.backup.Totals()
	r.Say("all %s of the backup of cluster %s from %s are whole: %s", cli.Counted(out.Shards, "file"),
		r.backup.ClusterID, r.backup.Begun.Format(time.RFC3339), cli.Counted(out.Rows, "row"))
	return out, nil
}

// begin connects to the cluster and asks for confirmation.
func (r *restore) begin(ctx context.Context) error {
	server, _, err := r.Operate(ctx)
	if err != nil {
		return err
	}
	r.server = server
	what := "Restore it into the cluster at " + server.Addr() + "?"
	ask := r.Confirm
	if r.force {
		what, ask = fmt.Sprintf("Delete all rows of %s and restore the backup into the cluster at %s?", r.part, server.Addr()), r.ConfirmRisk
	}
	if err := ask(what); err != nil {
		server.Close()
		return err
	}
	return nil
}

// all creates keyspaces and sources, restores every shard, and then compares all replicas.
func (r *restore) all(ctx context.Context, out *restoreOutput) error {
	if err := r.refuse(ctx); err != nil {
		return err
	}
	if err := r.makeKeyspaces(ctx); err != nil {
		return err
	}
	if err := r.makeSources(ctx); err != nil {
		return err
	}
	backup.InOrder(r.backup.Keyspaces, func(k backup.Keyspace) string { return k.Kind })
	for _, k := range slices.Backward(r.backup.Keyspaces) {
		if err := r.shards(ctx, k); err != nil {
			return fmt.Errorf("%w; repeat it all with --force", err)
		}
	}
	r.Say("compare all replicas")
	verdict, err := verifyOnce(ctx, r.server, verifyWait)
	if err != nil {
		return err
	}
	out.Verify = &verdict
	return verdict.Verdict()
}

// refuse returns an error if the restore must not begin. It changes nothing in the cluster.
func (r *restore) refuse(ctx context.Context) error {
	var err error
	if err = r.readKeyspaces(ctx); err != nil {
		return err
	}
	for _, k := range r.backup.Keyspaces {
		there, found := r.keyspace(k.Name)
		if err := r.refuseIDs(k, there, found); err != nil {
			return err
		}
		if !found && k.Kind != backup.KindCounters && k.Kind != backup.KindNames {
			return fmt.Errorf("the cluster has no keyspace %s of kind %s yet; see countctl upgrade status", k.Name, k.Kind)
		}
		if found && there.Kind != k.Kind {
			return fmt.Errorf("keyspace %s is of kind %s, the backup's of %s", k.Name, there.Kind, k.Kind)
		}
		if there.Growing != nil {
			return fmt.Errorf("keyspace %s grows from %d to %d shards: restore after the growth, or withdraw it", k.Name, there.Shards, there.Growing.To)
		}
	}
	if err := r.refusePart(ctx); err != nil {
		return err
	}
	if err := r.refuseSources(ctx); err != nil || r.force {
		return err
	}
	return r.mustBeEmpty(ctx)
}

// readKeyspaces sets there and numbers.
func (r *restore) readKeyspaces(ctx context.Context) error {
	list, err := cli.KeyspacesNow(ctx, r.server)
	if err != nil {
		return err
	}
	if r.numbers, err = groupNumbers(ctx, r.server); err != nil {
		return err
	}
	r.there = backup.WithNames(list, r.numbers)
	return nil
}

// refuseSources returns an error if the backup is of another cluster (sameSources) and this cluster has a
// different source of the same name. A source that an earlier restore created from this backup is
// accepted. It also returns an error if sources that continue would have several positions in a shard.
func (r *restore) refuseSources(ctx context.Context) error {
	nodes, err := admin.New(r.server).ClusterNodes(ctx)
	if err != nil {
		return err
	}
	there, err := admin.New(r.server).SavedSources(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the sources: %w", err)
	}
	same := sameSources(nodes.ClusterID, r.backup.ClusterID)
	for _, s := range r.backup.Sources {
		i := slices.IndexFunc(there, func(is admin.SavedSource) bool { return is.Name == s.Name })
		if !same && i >= 0 && there[i].Origin != s.Number {
			return fmt.Errorf("the cluster has another source %s than the backup: delete that one", s.Name)
		}
		if !same && i < 0 && !r.makesSources() {
			continue
		}
		if same && (i < 0 || there[i].Number != s.Number) {
			continue // it is gone, and so its positions mean nothing
		}
		if err := r.refuseMerge(s.Name); err != nil {
			return err
		}
	}
	return nil
}

// refuseMerge returns an error if a shard would get several files, each with its own position of a source. Messages between
// two positions are in the rows of one file only, so no position would be right for all rows.
func (r *restore) refuseMerge(source string) error {
	for _, k := range r.backup.Keyspaces {
		there, found := r.keyspace(k.Name)
		if !slices.Contains(sourceKinds, k.Kind) || !found || !k.Merges(there) {
			continue // without the keyspace, makeKeyspaces creates one that merges none
		}
		how := "drop it, so that the restore creates it"
		if k.Kind != backup.KindCounters || slices.Contains(builtinCounters, k.Name) {
			how = fmt.Sprintf("start the new cluster with --shards %s=%d", k.Name, k.Parts())
		}
		return fmt.Errorf("keyspace %s has %s, and with source %s each needs its rows from one file of the backup, which has %s: %s, "+
			"or delete the source in the cluster, if it is there, and give --no-sources", k.Name,
			layoutText(there.Shards, there.CreatedShards, there.Sharding, false), source, layoutText(k.Parts(), k.CreatedShards, k.Sharding, k.Mixed()), how)
	}
	return nil
}

// sourceKinds lists the kinds of keyspaces whose shards have positions of sources.
var sourceKinds = []string{backup.KindCounters, "unread"}

// builtinCounters lists the keyspaces of kind counters that no client can drop or create.
var builtinCounters = []string{"posts", "users"}

// sameSources reports whether the sources of two clusters with these ids have the same numbers: the
// ids are equal, or countctl recover made one cluster from the other and kept the first half of the
// id.
func sameSources(a, b string) bool {
	const half = 16 // hex digits
	return a == b || len(a) == 2*half && len(b) == 2*half && a[:half] == b[:half]
}

// keyspace returns the keyspace with a name, if it exists.
func (r *restore) keyspace(name string) (client.Keyspace, bool) {
	i := slices.IndexFunc(r.there, func(k client.Keyspace) bool { return k.Name == name })
	if i < 0 {
		return client.Keyspace{}, false
	}
	return r.there[i], true
}

// makeKeyspaces creates the keyspaces and columns of the backup in the cluster. Then it
// sets there, moved and numbers.
func (r *restore) makeKeyspaces(ctx context.Context) error {
	for _, k := range r.backup.Keyspaces {
		there, found := r.keyspace(k.Name)
		if k.Kind == backup.KindNames {
			continue // a keyspace is created with its names
		}
		if !found {
			if _, err := r.server.CreateKeyspace(ctx, client.NewKeyspace{IDs: k.IDs, Name: k.Name, Columns: column.Columns(k.Columns, k.Settings), Shards: k.Parts(), Sharding: k.Sharding}); err != nil {
				return fmt.Errorf("cannot create keyspace %s: %w", k.Name, err)
			}
			continue
		}
		if changed := columnsToChange(there, k); len(changed) > 0 {
			if _, err := r.server.ChangeColumns(ctx, k.Name, column.Columns(changed, k.Settings)); err != nil {
				return fmt.Errorf("cannot add the columns and floors of the backup to keyspace %s: %w", k.Name, err)
			}
		}
	}
	if err := r.readKeyspaces(ctx); err != nil {
		return err
	}
	r.moved = map[string][]string{}
	for _, k := range r.backup.Keyspaces {
		if there, found := r.keyspace(k.Name); found && !k.SameNumbers(there.Numbered()) {
			r.moved[k.Name] = k.InFiles()
		}
	}
	return nil
}

// makesSources reports whether sources are created in another cluster. A part creates none: the shards that it leaves out
// would not have the positions of the backup.
func (r *restore) makesSources() bool { return r.part.isAll() && !r.noSources }

// makeSources creates the sources if the backup is of another cluster (sameSources). It runs before the shards
// are restored, so that each source continues in each shard at the position in the snapshot.
func (r *restore) makeSources(ctx context.Context) error {
	nodes, err := admin.New(r.server).ClusterNodes(ctx)
	if err != nil {
		return err
	}
	if sameSources(nodes.ClusterID, r.backup.ClusterID) {
		return nil
	}
	if !r.makesSources() {
		return nil
	}
	for _, s := range r.backup.Sources {
		if _, err := admin.New(r.server).RestoreSource(ctx, s); err != nil {
			return fmt.Errorf("cannot create source %s: %w", s.Name, err)
		}
		r.Say("source %s is paused, and continues where the backup was: countctl source resume %[1]s", s.Name)
	}
	return nil
}

// columnsToChange returns the columns of the backup that the keyspace there lacks or has with other
// settings. It ignores settings that the backup does not have.
func columnsToChange(there client.Keyspace, k backup.Keyspace) []string {
	return slices.DeleteFunc(slices.Clone(k.Columns), func(name string) bool {
		return slices.Contains(there.Columns, name) && column.Has(there.Settings, k.Settings, name)
	})
}

// mustBeEmpty returns an error if any shard of the keyspaces to restore has rows. Without this
// check, the server would refuse that shard only after the restore had changed other shards.
func (r *restore) mustBeEmpty(ctx context.Context) error {
	groups, err := admin.New(r.server).ClusterGroups(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the groups: %w", err)
	}
	for _, g := range groups {
		of := slices.ContainsFunc(r.backup.Keyspaces, func(k backup.Keyspace) bool { return k.Name == g.Keyspace && k.Kind != backup.KindNames })
		if of && r.part.has(g.Keyspace, g.Shard) && g.Rows > 0 {
			return fmt.Errorf("%s has %s; --force deletes them", cli.GroupName(g), cli.Counted(g.Rows, "row"))
		}
	}
	return nil
}

// shards restores a keyspace.
func (r *restore) shards(ctx context.Context, k backup.Keyspace) error {
	there, found := r.keyspace(k.Name)
	if !found {
		return fmt.Errorf("keyspace %s was dropped meanwhile", k.Name)
	}
	if !k.SameShards(there) {
		return r.byIDs(ctx, k, there)
	}
	for _, g := range k.Files {
		if err := r.shard(ctx, k.Name, g); err != nil {
			return fmt.Errorf("cannot restore %s/%d: %w", k.Name, g.Shard, err)
		}
	}
	return nil
}

func (r *restore) shard(ctx context.Context, keyspace string, g backup.File) error {
	name := backup.GroupName(keyspace, g.Shard)
	number, there := r.numbers[name]
	if !there {
		return errNoGroup
	}
	f, err := r.backup.Open(ctx, &g)
	if err != nil {
		return err
	}
	defer f.Close()
	moved := r.moved[keyspace]
	done, err := admin.New(r.server).Restore(ctx, number, f, g.Bytes, r.force, moved)
	if err != nil {
		return err
	}
	r.restored(name, done)
	// If the server has changed cursors on purpose, do not compare the digest; the server has checked the rows.
	if moved == nil && done.CursorsSetBack == 0 && (done.Rows != g.Rows || done.Digest != g.Digest) {
		return fmt.Errorf("%d rows of digest %s, want %d of %s", done.Rows, done.Digest, g.Rows, g.Digest)
	}
	return nil
}

var errNoGroup = errors.New("the cluster has no group for it yet")

func (r *restore) restored(name string, done admin.Restored) {
	setBack := ""
	if done.CursorsSetBack > 0 {
		setBack = fmt.Sprintf("; %s beyond the board of the backup set back to its end", cli.WereCounted(done.CursorsSetBack, "cursor"))
	}
	r.Say("%s: %s, digest %s%s", name, cli.Counted(done.Rows, "row"), done.Digest, setBack)
}

// byIDs restores a keyspace whose ids are in other shards than in the backup. It sends each shard all files that may have
// ids of the shard.
func (r *restore) byIDs(ctx context.Context, k backup.Keyspace, there client.Keyspace) error {
	r.Say("keyspace %s is restored by ids: it has %s, and the backup %s", k.Name,
		layoutText(there.Shards, there.CreatedShards, there.Sharding, false), layoutText(k.Shards, k.CreatedShards, k.Sharding, k.Mixed()))
	restored, setBack, want := uint64(0), uint64(0), uint64(0)
	for _, g := range k.Files {
		want += g.Rows
	}
	for shard := range there.Shards {
		done, err := r.shardByIDs(ctx, k, there, shard)
		if err != nil {
			return fmt.Errorf("cannot restore %s/%d: %w", k.Name, shard, err)
		}
		restored, setBack = restored+done.Rows, setBack+done.CursorsSetBack
	}
	if err := r.sameLayout(ctx, there); err != nil {
		return err
	}
	if r.moved[k.Name] == nil && setBack == 0 && restored != want {
		return fmt.Errorf("cannot restore %s: %d rows, want %d", k.Name, restored, want)
	}
	return nil
}

// sameLayout returns an error if a keyspace has grown, or grows, since r.there was read. A shard that split before it was
// restored lacks the rows of its parts.
func (r *restore) sameLayout(ctx context.Context, was client.Keyspace) error {
	now, err := cli.FindKeyspaceNow(ctx, r.server, was.Name)
	switch {
	case err != nil:
		return err
	case now.Growing != nil:
		return fmt.Errorf("keyspace %s began to grow from %d to %d shards during the restore, so it may lack rows", was.Name, was.Shards, now.Growing.To)
	case now.Shards != was.Shards:
		return fmt.Errorf("keyspace %s grew from %d to %d shards during the restore, so it may lack rows", was.Name, was.Shards, now.Shards)
	}
	return nil
}

func (r *restore) shardByIDs(ctx context.Context, k backup.Keyspace, there client.Keyspace, shard int) (done admin.Restored, err error) {
	name := backup.GroupName(k.Name, shard)
	number, exists := r.numbers[name]
	if !exists {
		return done, errNoGroup
	}
	var files []admin.SnapshotFile
	for _, g := range k.Files {
		if !k.Shares(g, there, shard) {
			continue
		}
		f, err := r.backup.Open(ctx, &g)
		if err != nil {
			return done, err
		}
		defer f.Close()
		files = append(files, admin.SnapshotFile{Reader: f, Bytes: g.Bytes})
	}
	if done, err = admin.New(r.server).RestoreByIDs(ctx, number, files, k.Divisor(), r.force, r.moved[k.Name]); err == nil {
		r.restored(name, done)
	}
	return done, err
}

// layoutText says how many shards a keyspace has, and how it got them.
func layoutText(shards, created int, sharding string, mixed bool) string {
	text := cli.Counted(shards, "shard")
	if created != 0 {
		text += fmt.Sprintf(" (created with %d)", created)
	}
	if sharding != "" {
		text += " by " + sharding
	}
	if mixed {
		text += ", some of them split"
	}
	return text
}
