package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

type archivedOutput struct {
	Target      string   `json:"target"`
	Backup      string   `json:"backup"`
	Shards      int      `json:"shards"`
	Rows        uint64   `json:"rows"`
	Bytes       int64    `json:"bytes"`
	StoredBytes int64    `json:"stored_bytes"` // that no earlier backup had, compressed
	Seconds     float64  `json:"seconds"`
	Deleted     []string `json:"deleted"` // backups
}

// runArchive stores a backup in the archive at a place, sealed for the recipients in a file unless that is "". If keep is
// not "", it then deletes old backups.
func runArchive(ctx context.Context, c *cli.CLI, place, keep, recipientsFile string) error {
	var rule backup.Keep
	var recipients *backup.Recipients
	if recipientsFile != "" {
		var err error
		if recipients, err = backup.ReadRecipients(recipientsFile); err != nil {
			return cli.Usagef("--backup-recipients: %v", err)
		}
	}
	if keep != "" {
		var err error
		if rule, err = backup.ParseKeep(keep); err != nil {
			return cli.Usagef("--keep: %v", err)
		}
	}
	target, err := backup.OpenTarget(ctx, place)
	if err != nil {
		return cli.Usagef("--to: %v", err)
	}
	server, _, err := c.Operate(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	nodes, err := admin.New(server).ClusterNodes(ctx)
	if err != nil {
		return err
	}
	a, err := backup.CreateArchive(ctx, target, nodes.ClusterID, recipients)
	if err != nil {
		return fmt.Errorf("cannot back up to %s: %w", place, err)
	}
	store := func() (*backup.Saved, error) { return a.Backup(ctx, httpCluster{c, server}, reportTo(c)) }
	if keep != "" { // a damaged backup must not take the place of others
		store = func() (*backup.Saved, error) { return a.BackupChecked(ctx, httpCluster{c, server}, reportTo(c), nil) }
	}
	saved, err := store()
	if err != nil {
		return fmt.Errorf("cannot back up to %s: %w", place, err)
	}
	sayUsers(ctx, c, server)
	out := archivedOutput{Target: place, Backup: saved.Name, Bytes: saved.Bytes, StoredBytes: saved.StoredBytes, Seconds: saved.Took.Seconds(), Deleted: []string{}}
	out.Shards, out.Rows, _ = saved.Manifest.Totals()
	pruned := backup.Pruned{}
	if keep != "" {
		if pruned, err = a.Prune(ctx, rule, saved.Name); err != nil {
			err = fmt.Errorf("backup %s is complete, but old ones cannot be deleted: %w", saved.Name, err)
		}
		out.Deleted = append(out.Deleted, pruned.Backups...)
	}
	return errors.Join(c.Print(out, func(t *cli.Table) {
		t.Row("BACKUP", "SHARDS", "ROWS", "BYTES", "STORED", "SECONDS", "DELETED")
		t.Row(out.Backup, out.Shards, cli.Grouped(out.Rows), cli.Grouped(out.Bytes), cli.Grouped(out.StoredBytes), fmt.Sprintf("%.1f", out.Seconds), len(out.Deleted))
	}), err)
}

// openArchive opens the archive at a place, and its chunks by the identities in a file unless that is "".
func openArchive(ctx context.Context, place, identityFile string) (*backup.Archive, error) {
	var identities *backup.Identities
	if identityFile != "" {
		var err error
		if identities, err = backup.ReadIdentities(identityFile); err != nil {
			return nil, cli.Usagef("--identity: %v", err)
		}
	}
	target, err := backup.OpenTarget(ctx, place)
	if err != nil {
		return nil, cli.Usagef("%v", err)
	}
	a, err := backup.OpenArchive(ctx, target, identities)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	return a, nil
}

// listedOutput is a backup in a list.
type listedOutput struct {
	Backup string    `json:"backup"`
	Begun  time.Time `json:"begun"`
	Shards int       `json:"shards"`
	Rows   uint64    `json:"rows"`
	Bytes  int64     `json:"bytes"`
	Error  string    `json:"error,omitempty"`
	Unread bool      `json:"unread,omitempty"` // verify read no chunk: the backup is sealed, and there was no identity
}

func listedOf(e backup.Entry) listedOutput {
	out := listedOutput{Backup: e.Name, Begun: e.Begun()}
	if e.Err != nil {
		out.Error = e.Err.Error()
		return out
	}
	out.Begun = e.Manifest.Begun
	out.Shards, out.Rows, out.Bytes = e.Manifest.Totals()
	return out
}

func backupListCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "list TARGET",
		Short: "List the backups of an archive, the oldest first; exit 1 if a manifest is damaged",
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := openArchive(cmd.Context(), args[0], "")
			if err != nil {
				return err
			}
			entries, err := a.List(cmd.Context())
			if err != nil {
				return err
			}
			all, damaged := []listedOutput{}, error(nil)
			for _, e := range entries {
				all, damaged = append(all, listedOf(e)), cmp.Or(damaged, e.Err)
			}
			return errors.Join(c.Print(map[string]any{"cluster_id": a.ClusterID(), "backups": all}, func(t *cli.Table) {
				t.Row("BACKUP", "BEGUN", "SHARDS", "ROWS", "BYTES")
				for _, b := range all {
					if b.Error != "" {
						t.Row(b.Backup, b.Begun.Format(time.RFC3339), "-", "-", b.Error)
						continue
					}
					t.Row(b.Backup, b.Begun.Format(time.RFC3339), b.Shards, cli.Grouped(b.Rows), cli.Grouped(b.Bytes))
				}
			}), damaged)
		},
	}
}

func backupVerifyCommand(c *cli.CLI) *cobra.Command {
	at, identity := "", ""
	cmd := &cobra.Command{
		Use:   "verify TARGET",
		Short: "Read every byte of an archive's backups; exit 1 if one is damaged",
		Long: `Read every byte of an archive's backups; exit 1 if one is damaged.

It names damaged and missing files. Delete a damaged one: the next backup stores its content
again, if the cluster still has it. Without --identity, a sealed backup is not read: then it only
says whether all files are there.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return verifyArchive(cmd.Context(), c, args[0], at, identity)
		},
	}
	cmd.Flags().StringVar(&identity, "identity", "", identityHelp)
	cmd.Flags().StringVar(&at, "at", "", "only this backup: its name, the beginning of its name, or "+backup.Latest)
	return cmd
}

// identityHelp is the help of --identity.
const identityHelp = "a file of age identities (private keys AGE-SECRET-KEY-1…, one in each line) that open a sealed archive"

func verifyArchive(ctx context.Context, c *cli.CLI, place, at, identity string) error {
	a, err := openArchive(ctx, place, identity)
	if err != nil {
		return err
	}
	if at != "" {
		if at, err = a.Find(ctx, at); err != nil {
			return err
		}
	}
	entries, err := a.List(ctx)
	if err != nil {
		return err
	}
	all, damaged, v := []listedOutput{}, error(nil), a.Verifier()
	for _, e := range entries {
		if at != "" && e.Name != at {
			continue
		}
		unread := e.Err == nil && identity == "" && e.Manifest.SealedFor != ""
		if unread {
			e.Err = a.CheckThere(ctx, e.Manifest)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.Say("%s: sealed, not read: give --identity", e.Name)
		} else if e.Err == nil {
			var read int
			read, e.Err = v.Verify(ctx, e.Manifest)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.Say("%s: %s read", e.Name, cli.Counted(read, "more chunk"))
		}
		if e.Err != nil {
			damaged = e.Err
		}
		out := listedOf(e)
		out.Unread = unread
		all = append(all, out)
	}
	return errors.Join(c.Print(map[string]any{"backups": all}, func(t *cli.Table) {
		t.Row("BACKUP", "STATE")
		for _, b := range all {
			switch {
			case b.Error != "":
			case b.Unread:
				b.Error = "there, not read"
			default:
				b.Error = "whole"
			}
			t.Row(b.Backup, b.Error)
		}
	}), damaged)
}
