// Package data owns the commands that read and write the data of a cluster: rows and keyspaces,
// members of columns, unread numbers, notices, dots, feeds, outboxes, timelines, polls and sources.
// It also owns the commands that copy or compare many rows. The package parses names, ids and
// values, checks flags and files, and prints the answers of servers. It leaves the work on many
// rows to package bulk.
//
// It computes none of the numbers that it prints, except for drifts. It never repeats a write of
// unknown outcome under another key, and never reads a source's queue itself.
//
// Invariant: it sends each write under a key. If the outcome is unknown, it prints the key. If the
// caller repeats the command with that key, the write still happens only once. If an import stops,
// the next run continues where the import stopped and adds no row twice, unless the import reads
// standard input.
package data

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// Commands returns the commands of this package.
func Commands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{
		getCommand(c), mgetCommand(c), topCommand(c), hotCommand(c), incrCommand(c), opsCommand(c), setCommand(c),
		deleteCommand(c), keyspaceCommand(c), membersCommand(c), unreadCommand(c), noticeCommand(c),
		dotCommand(c), feedCommand(c), outboxCommand(c), timelineCommand(c), pollCommand(c),
		sourceCommand(c), reconcileCommand(c), importCommand(c), replayCommand(c), exportCommand(c),
	}
}

func getCommand(c *cli.CLI) *cobra.Command {
	var keyspace string
	var o client.ReadOptions
	cmd := &cobra.Command{
		Use:     "get ID",
		Short:   "Print one row; a row never written has zeros",
		Example: "  countctl get 4467107636950632",
		RunE: func(cmd *cobra.Command, args []string) error {
			return readIDs(cmd, c, args, func(server *client.Client, ids []client.ID) error {
				if len(ids) != 1 {
					return cli.Usagef("get takes one id, not %d; mget takes many", len(ids))
				}
				row, err := server.Get(cmd.Context(), keyspace, ids[0], o)
				return c.Answer(err, fmt.Sprintf("get %s", ids[0]), row, func(t *cli.Table) { t.Counts("ID", row) })
			})
		},
	}
	c.KeyspaceFlag(cmd, &keyspace)
	cli.ReadFlags(cmd, &o)
	return cmd
}

// rowsOutput is the JSON output of the commands mget and top.
type rowsOutput struct {
	Results []client.Row `json:"results"`
}

func mgetCommand(c *cli.CLI) *cobra.Command {
	var keyspace string
	var columns []string
	var o client.ReadOptions
	cmd := &cobra.Command{
		Use:     "mget ID…",
		Short:   "Print rows in the order asked; - reads ids from standard input",
		Example: "  countctl mget 4467107636950632 4467107636950633 -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return readIDs(cmd, c, args, func(server *client.Client, ids []client.ID) error {
				rows := rowsOutput{Results: []client.Row{}}
				for some := range slices.Chunk(ids, client.GetIDsMax) {
					page, err := server.GetMany(cmd.Context(), keyspace, some, columns, o)
					if err != nil {
						return fmt.Errorf("cannot get rows: %w", err)
					}
					rows.Results = append(rows.Results, page...)
				}
				return c.Print(rows, func(t *cli.Table) { t.Counts("ID", rows.Results...) })
			})
		},
	}
	c.KeyspaceFlag(cmd, &keyspace)
	cli.ReadFlags(cmd, &o)
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns to print (default: all)")
	return cmd
}

// readIDs calls read with a client and the ids in args.
func readIDs(cmd *cobra.Command, c *cli.CLI, args []string, read func(*client.Client, []client.ID) error) error {
	ids, err := c.IDs(args)
	if err != nil {
		return err
	}
	return c.WithServer(func(server *client.Client) error {
		if err := takesIDs(cmd, server, cmd.Use, ids); err != nil {
			return err
		}
		return read(server, ids)
	})
}
