package data

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func keyspaceCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("keyspace", "List, create, change and drop keyspaces",
		c.ListCommand("keyspaces", listKeyspaces), keyspaceCreateCommand(c), keyspaceAddColumnsCommand(c), keyspaceLimitCommand(c), keyspaceEverywhereCommand(c), keyspaceGrowCommand(c),
		keyspaceDropCommand(c), keyspaceDropColumnCommand(c))
}

func listKeyspaces(ctx context.Context, server *client.Client) (any, func(*cli.Table), error) {
	list, err := server.Keyspaces(ctx)
	return map[string]any{"keyspaces": list}, func(t *cli.Table) { keyspaceRows(t, list) }, err
}

func keyspaceCreateCommand(c *cli.CLI) *cobra.Command {
	var columns []string
	var shards int
	var settings settings
	var sharding, ids string
	var limits limits
	cmd := &cobra.Command{
		Use:     "create NAME --columns A,B…",
		Short:   "Create a keyspace of counters, unless one of the same shape exists",
		Example: "  countctl keyspace create songs --columns plays,likes --floor likes=0",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(columns) == 0 {
				return cli.Usagef("keyspace create needs --columns, such as --columns plays,likes")
			}
			if cmd.Flags().Changed("shards") && shards < 1 {
				return cli.Usagef("--shards is 1 to 64, not %d", shards)
			}
			all, err := settings.apply(columns)
			if err != nil {
				return err
			}
			of, err := limits.chosen(cmd)
			if err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				made, err := server.CreateKeyspace(cmd.Context(), client.NewKeyspace{Name: args[0], Columns: all, Shards: shards, Sharding: sharding, IDs: ids, Limits: of})
				if err != nil {
					return fmt.Errorf("cannot create keyspace %s: %w", args[0], err)
				}
				if made.Warning != "" {
					fmt.Fprintf(c.Err, "warning: %s\n", made.Warning)
				}
				return c.Print(made, func(t *cli.Table) { keyspaceRows(t, []client.Keyspace{made}) })
			})
		},
	}
	cmd.Flags().StringVar(&sharding, "sharding", "", "how ids are spread over the shards, cannot be changed later: modulo, or hash for ids that share their low bits (default: modulo; an existing keyspace may have any)")
	cmd.Flags().StringVar(&ids, "ids", "", "text if ids are texts of 1 to 128 bytes, cannot be changed later (default: numbers)")
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns, 1 to 64")
	settings.add(cmd, false)
	limits.add(cmd)
	cmd.Flags().IntVar(&shards, "shards", 0, "number of shards, 1 to 64, cannot be changed later (default: the server's choice; an existing keyspace may have any)")
	return cmd
}

func keyspaceAddColumnsCommand(c *cli.CLI) *cobra.Command {
	var settings settings
	cmd := &cobra.Command{
		Use:   "add-columns NAME COLUMN…",
		Short: "Add columns to a keyspace, or set floors of existing columns",
		Example: "  countctl keyspace add-columns songs shares\n" +
			"  countctl keyspace add-columns unread at,comment,like,dm --floor at=0,comment=0,like=0,dm=0",
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := settings.apply(strings.Split(strings.Join(args[1:], ","), ",")) // accept the columns as "a b" and as "a,b"
			if err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				changed, err := server.ChangeColumns(cmd.Context(), args[0], all)
				return c.Answer(err, "add columns to keyspace "+args[0], changed, func(t *cli.Table) { keyspaceRows(t, []client.Keyspace{changed}) })
			})
		},
	}
	settings.add(cmd, true)
	return cmd
}

// settings holds the values of two flags for each setting of columns: one that sets it, such as
// --floor, and one that removes it, such as --no-floor.
type settings [column.Count]struct {
	values  map[string]int64
	removed []string
}

// add adds the flag that sets each setting of columns. If removes is set, add also adds the flag
// that removes each setting.
func (s *settings) add(cmd *cobra.Command, removes bool) {
	for _, which := range column.All() {
		of := &s[which]
		cmd.Flags().StringToInt64Var(&of.values, which.String(), nil, fmt.Sprintf("%ss of columns as `COLUMN=N,…`, such as like=0: %s", which, which.Effect()))
		if removes {
			cmd.Flags().StringSliceVar(&of.removed, "no-"+which.String(), nil, fmt.Sprintf("columns to remove the %s of", which))
		}
	}
}

// apply returns the columns with these names, with the settings from the flags.
func (s *settings) apply(names []string) ([]column.Column, error) {
	columns := column.Named(names...)
	for _, which := range column.All() {
		of := &s[which]
		for i, name := range names {
			value, has := of.values[name]
			switch removed := slices.Contains(of.removed, name); {
			case has && removed:
				return nil, cli.Usagef("column %s is in both --%s and --no-%[2]s", name, which)
			case has:
				columns[i].Set(which, &value)
			case removed:
				columns[i].Set(which, nil)
			}
		}
		for _, name := range append(slices.Sorted(maps.Keys(of.values)), of.removed...) {
			if !slices.Contains(names, name) {
				return nil, cli.Usagef("a %s is given for %s, which is not one of the columns named", which, name)
			}
		}
	}
	return columns, nil
}

func keyspaceEverywhereCommand(c *cli.CLI) *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use:   "everywhere NAME",
		Short: "Put a replica of each shard of a keyspace on every node, so that each can read it locally",
		Long: `Put a replica of each shard of a keyspace on every node, so that each can read it locally.

Nodes without a vote in a shard copy it and follow it. Their reads of the keyspace then
need no other node, and each write goes to all nodes. The command returns before they have
copied it; countctl group list shows them as non-voters.`,
		Example: "  countctl keyspace everywhere users\n  countctl keyspace everywhere users --off",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			changed, err := admin.New(server).SetEverywhere(ctx, args[0], !off)
			return c.Answer(err, "locate keyspace "+args[0], changed, func(t *cli.Table) { keyspaceRows(t, []client.Keyspace{changed}) })
		}),
	}
	cmd.Flags().BoolVar(&off, "off", false, "remove these replicas again: only the voters of each shard keep one")
	return cmd
}

// limits holds the flags for the limits of a keyspace.
type limits struct {
	rows  uint64
	bytes string
}

func (l *limits) add(cmd *cobra.Command) {
	cmd.Flags().Uint64Var(&l.rows, "rows", 0, "maximum number of rows; 0 for none")
	cmd.Flags().StringVar(&l.bytes, "bytes", "", "maximum memory, such as 512MiB; 0 for none")
}

// given returns the limits whose flags are given, and nil for others.
func (l *limits) given(cmd *cobra.Command) (rows, bytes *uint64, err error) {
	if cmd.Flags().Changed("rows") {
		rows = &l.rows
	}
	if cmd.Flags().Changed("bytes") {
		n, err := units.RAMInBytes(l.bytes)
		if err != nil || n < 0 {
			return nil, nil, cli.Usagef("--bytes is a size such as 512MiB, not %q", l.bytes)
		}
		size := uint64(n)
		bytes = &size
	}
	return rows, bytes, nil
}

// chosen returns the limits of a new keyspace.
func (l *limits) chosen(cmd *cobra.Command) (of client.Limits, err error) {
	rows, bytes, err := l.given(cmd)
	if rows != nil {
		of.Rows = *rows
	}
	if bytes != nil {
		of.Bytes = *bytes
	}
	return of, err
}

func keyspaceLimitCommand(c *cli.CLI) *cobra.Command {
	var limits limits
	cmd := &cobra.Command{
		Use:   "limit NAME",
		Short: "Limit the rows and the memory of a keyspace of counters",
		Long: `Limit the rows and the memory of a keyspace of counters.

A write that needs a new row above a limit is refused, with the keyspace, the limit and what the
keyspace has. Counts of existing rows go on, and rows above a new limit stay. Each shard may have an
equal share. The leader of a shard measures it once a second, so a limit takes effect within a
second, and a shard may exceed its share by the rows of a second. status warns from 90 % on.`,
		Example: "  countctl keyspace limit songs --rows 10000000 --bytes 1GiB\n  countctl keyspace limit songs --rows 0",
		RunE: func(cmd *cobra.Command, args []string) error {
			rows, bytes, err := limits.given(cmd)
			if err != nil {
				return err
			}
			if rows == nil && bytes == nil {
				return cli.Usagef("keyspace limit needs --rows or --bytes")
			}
			return c.WithServer(func(server *client.Client) error {
				changed, err := admin.New(server).SetLimits(cmd.Context(), args[0], rows, bytes)
				return c.Answer(err, "limit keyspace "+args[0], changed, func(t *cli.Table) { keyspaceRows(t, []client.Keyspace{changed}) })
			})
		},
	}
	limits.add(cmd)
	return cmd
}

// limitsText returns the limits of a keyspace, or "-".
func limitsText(l client.Limits) string {
	var all []string
	if l.Rows > 0 {
		all = append(all, cli.Counted(l.Rows, "row"))
	}
	if l.Bytes > 0 {
		all = append(all, units.BytesSize(float64(l.Bytes)))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

func keyspaceRows(t *cli.Table, list []client.Keyspace) {
	t.Row("NAME", "KIND", "IDS", "SHARDS", "SHARDING", "REPLICAS", "LIMITS", "COLUMNS")
	for _, k := range list {
		replicas := "voters"
		if k.Everywhere || k.Kind == "board" {
			replicas = "everywhere"
		}
		columns := slices.Clone(k.Columns)
		for i, name := range columns {
			columns[i] = column.Text(name, k.Settings)
		}
		sharding := k.Sharding
		if sharding == "" {
			sharding = "modulo"
		}
		t.Row(k.Name, k.Kind, cmp.Or(k.IDs, "numbers"), k.Shards, sharding, replicas, limitsText(k.Limits), strings.Join(columns, ","))
	}
}

func keyspaceDropCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "drop NAME",
		Short: "Drop a keyspace, with all its rows",
		Long: `Drop a keyspace, with all its rows.

Only a backup can bring them back: countctl restore creates the keyspace again. On a
terminal the command shows how many rows it will drop and asks for the name; elsewhere it
needs --yes. The name is then free.`,
		Example: "  countctl keyspace drop songs",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			keyspace, rows, err := toDrop(ctx, c, server, args[0])
			if err != nil {
				return err
			}
			what := fmt.Sprintf("This drops keyspace %s with %s and columns %s.", keyspace.Name, rows, strings.Join(keyspace.Columns, ", "))
			if err := c.ConfirmTyped(what, keyspace.Name); err != nil {
				return err
			}
			dropped, err := admin.New(server).DropKeyspace(ctx, keyspace.Name)
			return c.Answer(err, "drop keyspace "+keyspace.Name, dropped, func(t *cli.Table) {
				t.Row("DROPPED")
				t.Row(dropped.Name)
			})
		}),
	}
}

func keyspaceDropColumnCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "drop-column NAME COLUMN",
		Short: "Drop a column of a keyspace, with all its counts",
		Long: `Drop a column of a keyspace, with all its counts.

Only a backup can bring them back. On a terminal the command asks for the name of the
column; elsewhere it needs --yes. The name is then free: a new column of that name counts
from zero. A dropped column still counts towards the 64 of a keyspace.`,
		Example: "  countctl keyspace drop-column songs skips",
		RunE: c.OnServer(func(ctx context.Context, server *client.Client, args []string) error {
			keyspace, rows, err := toDrop(ctx, c, server, args[0])
			if err != nil {
				return err
			}
			name := args[1]
			if !slices.Contains(keyspace.Columns, name) {
				return fmt.Errorf("keyspace %s has no column %s (it has %s)", keyspace.Name, name, strings.Join(keyspace.Columns, ", "))
			}
			what := fmt.Sprintf("This drops column %s of keyspace %s with its counts in %s.", name, keyspace.Name, rows)
			if err := c.ConfirmTyped(what, name); err != nil {
				return err
			}
			changed, err := admin.New(server).DropColumn(ctx, keyspace.Name, name)
			return c.Answer(err, fmt.Sprintf("drop column %s of keyspace %s", name, keyspace.Name), changed, func(t *cli.Table) { keyspaceRows(t, []client.Keyspace{changed}) })
		}),
	}
}

// toDrop returns the keyspace with a name, and a text with its number of rows. If the rows cannot
// be counted, the text has the reason.
func toDrop(ctx context.Context, c *cli.CLI, server *client.Client, name string) (client.Keyspace, string, error) {
	all, err := server.Keyspaces(ctx)
	if err != nil {
		return client.Keyspace{}, "", fmt.Errorf("cannot list the keyspaces: %w", err)
	}
	i := slices.IndexFunc(all, func(k client.Keyspace) bool { return k.Name == name })
	if i < 0 {
		return client.Keyspace{}, "", fmt.Errorf("the cluster has no keyspace %s", name)
	}
	rows, err := cli.RowsOf(ctx, server, name)
	if err != nil {
		return all[i], fmt.Sprintf("rows that are not counted (%v)", err), nil
	}
	return all[i], cli.Counted(rows, "row"), nil
}
