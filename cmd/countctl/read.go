package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// stdinIDsMax bounds the ids that one command reads from standard input, because it prints
// its answer as a whole.
const stdinIDsMax = 1_000_000

func (c *cli) getCommand() *cobra.Command {
	var keyspace string
	var o client.ReadOptions
	cmd := &cobra.Command{
		Use:     "get ID",
		Short:   "Print one row; a row never written has zeros",
		Example: "  countctl get 4467107636950632",
		Args:    exactly(1, "one ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.readIDs(cmd, args, o, func(server *client.Client, ids []client.ID) error {
				if len(ids) != 1 {
					return usagef("get takes one id, not %d; mget takes many", len(ids))
				}
				row, err := server.Get(cmd.Context(), keyspace, ids[0], o)
				if err != nil {
					return fmt.Errorf("cannot get %d: %w", ids[0], err)
				}
				return c.print(row, func(t *table) { t.counts([]client.Row{row}) })
			})
		},
	}
	c.keyspaceFlag(cmd, &keyspace)
	readFlags(cmd, &o)
	return cmd
}

// rowsOutput is the JSON output of mget and top.
type rowsOutput struct {
	Results []client.Row `json:"results"`
}

func (c *cli) mgetCommand() *cobra.Command {
	var keyspace string
	var columns []string
	var o client.ReadOptions
	cmd := &cobra.Command{
		Use:     "mget ID…",
		Short:   "Print rows in the order asked; - reads ids from standard input",
		Example: "  countctl mget 4467107636950632 4467107636950633 -o json",
		Args:    atLeast(1, "one ID or more"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.readIDs(cmd, args, o, func(server *client.Client, ids []client.ID) error {
				rows := rowsOutput{Results: []client.Row{}}
				for some := range slices.Chunk(ids, client.GetIDsMax) {
					page, err := server.GetMany(cmd.Context(), keyspace, some, columns, o)
					if err != nil {
						return fmt.Errorf("cannot get rows: %w", err)
					}
					rows.Results = append(rows.Results, page...)
				}
				return c.print(rows, func(t *table) { t.counts(rows.Results) })
			})
		},
	}
	c.keyspaceFlag(cmd, &keyspace)
	readFlags(cmd, &o)
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns to print (all when not given)")
	return cmd
}

// readIDs has read work on the ids of a command line whose flags are right.
func (c *cli) readIDs(cmd *cobra.Command, args []string, o client.ReadOptions, read func(*client.Client, []client.ID) error) error {
	if err := checkReadOptions(cmd, o); err != nil {
		return err
	}
	ids, err := c.ids(args)
	if err != nil {
		return err
	}
	return c.withServer(func(server *client.Client) error { return read(server, ids) })
}

// ids parses the ids among the arguments; - stands for those on standard input.
func (c *cli) ids(args []string) ([]client.ID, error) {
	var ids []client.ID
	for _, arg := range args {
		if arg == "-" {
			more, err := scanIDs(c.in)
			if err != nil {
				return nil, err
			}
			ids = append(ids, more...)
			continue
		}
		id, err := client.ParseID(arg)
		if err != nil {
			return nil, usagef("the id %v", err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// scanIDs reads ids parted by white space.
func scanIDs(in io.Reader) ([]client.ID, error) {
	var ids []client.ID
	words := bufio.NewScanner(in)
	words.Split(bufio.ScanWords)
	for words.Scan() {
		id, err := client.ParseID(words.Text())
		if err != nil {
			return nil, fmt.Errorf("standard input: id %d: %w", len(ids)+1, err)
		}
		if ids = append(ids, id); len(ids) > stdinIDsMax {
			return nil, fmt.Errorf("standard input holds more than %d ids; split it", stdinIDsMax)
		}
	}
	if err := words.Err(); err != nil {
		return nil, fmt.Errorf("cannot read ids from standard input: %w", err)
	}
	if len(ids) == 0 {
		return nil, errors.New("standard input holds no ids")
	}
	return ids, nil
}
