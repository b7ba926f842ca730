package counters

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

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
			if err := confirmByName(c, what, keyspace.Name); err != nil {
				return err
			}
			dropped, err := server.DropKeyspace(ctx, keyspace.Name)
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
			column := args[1]
			if !slices.Contains(keyspace.Columns, column) {
				return fmt.Errorf("keyspace %s has no column %s (it has %s)", keyspace.Name, column, strings.Join(keyspace.Columns, ", "))
			}
			what := fmt.Sprintf("This drops column %s of keyspace %s with its counts in %s.", column, keyspace.Name, rows)
			if err := confirmByName(c, what, column); err != nil {
				return err
			}
			changed, err := server.DropColumn(ctx, keyspace.Name, column)
			return c.Answer(err, fmt.Sprintf("drop column %s of keyspace %s", column, keyspace.Name), changed, func(t *cli.Table) { keyspaceRows(t, []client.Keyspace{changed}) })
		}),
	}
}

// toDrop returns a keyspace and its number of rows as text.
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

// confirmByName asks for a name on a terminal before something is lost for good. Without a
// terminal --yes is needed.
func confirmByName(c *cli.CLI, what, name string) error {
	if err := c.MayAsk(what); err != nil || c.Yes {
		return err
	}
	answer, err := c.Ask(fmt.Sprintf("%s Type %s to continue: ", what, name))
	if err != nil || strings.TrimSpace(answer) != name {
		return fmt.Errorf("nothing was done; type %s, or give --yes", name)
	}
	return nil
}
