package main

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// writeOutput is what incr and set print as JSON: the row after the write.
type writeOutput struct {
	client.Row
	Token string `json:"token"` // --token of a read that must see the write
}

func (c *cli) incrCommand() *cobra.Command {
	cmd := c.writeCommand("incremented", (*client.Client).Incr)
	cmd.Use = "incr ID COLUMN=+N…"
	cmd.Short = "Add to columns of one row and print it"
	cmd.Long = cmd.Short + `.

An increment is never sent twice: after an error that leaves it unknown whether
it happened, read the row before you repeat it.`
	cmd.Example = "  countctl incr 4467107636950632 like=+1 repost=-1"
	return cmd
}

func (c *cli) setCommand() *cobra.Command {
	cmd := c.writeCommand("set", (*client.Client).Set)
	cmd.Use = "set ID COLUMN=N…"
	cmd.Short = "Set columns of one row, the others stay, and print it"
	cmd.Example = "  countctl set 4467107636950632 like=10"
	return cmd
}

// writeCommand is a command that changes columns of one row.
func (c *cli) writeCommand(done string, write func(*client.Client, context.Context, string, []client.Op, client.WriteOptions) (client.WriteResult, error)) *cobra.Command {
	var keyspace string
	cmd := &cobra.Command{
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			op, err := parseOp(args)
			if err != nil {
				return err
			}
			server, err := c.connect()
			if err != nil {
				return err
			}
			defer server.Close()
			answer, err := write(server, cmd.Context(), keyspace, []client.Op{op}, client.WriteOptions{Unkeyed: true})
			if err == nil {
				err = refusal(answer)
			}
			if err != nil {
				return fmt.Errorf("row %d was not %s: %w", op.ID, done, err)
			}
			out := writeOutput{client.Row{ID: answer.Results[0].ID, Counts: answer.Results[0].Counts}, answer.Token}
			return c.print(out, func(t *table) { t.counts([]client.Row{out.Row}) })
		},
	}
	keyspaceFlag(cmd, &keyspace)
	return cmd
}

// refusal returns the error of the only op of a request.
func refusal(answer client.WriteResult) error {
	if len(answer.Results) != 1 {
		return fmt.Errorf("the server answered with %d results for one op", len(answer.Results))
	}
	if e := answer.Results[0].Error; e != nil {
		return fmt.Errorf("%s: %s", e.Code, e.Message)
	}
	return nil
}

// parseOp reads ID COLUMN=N….
func parseOp(args []string) (client.Op, error) {
	id, err := client.ParseID(args[0])
	if err != nil {
		return client.Op{}, usagef("the id %v", err)
	}
	op := client.Op{ID: id}
	for _, arg := range args[1:] {
		column, number, ok := strings.Cut(arg, "=")
		value, err := strconv.ParseInt(number, 10, 64)
		if !ok || column == "" || err != nil {
			return client.Op{}, usagef("%q is not COLUMN=N with N a signed 64-bit integer", arg)
		}
		if _, twice := op.Cells.Get(column); twice {
			return client.Op{}, usagef("column %s is named twice", column)
		}
		op.Cells = append(op.Cells, client.Count{Column: column, Value: value})
	}
	return op, nil
}

// deleteOutput is what delete prints as JSON.
type deleteOutput struct {
	Results []writeOutput `json:"results"`
}

func (c *cli) deleteCommand() *cobra.Command {
	var keyspace string
	cmd := &cobra.Command{
		Use:   "delete ID…",
		Short: "Make all columns of rows zero; - reads ids from standard input",
		Long: `Make all columns of rows zero. Deleting a row that is absent is fine.

On a terminal it asks first, unless --yes is given.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := c.ids(args)
			if err != nil {
				return err
			}
			if err := c.confirm(fmt.Sprintf("Delete %s rows of %s?", grouped(len(ids)), keyspace)); err != nil {
				return err
			}
			server, err := c.connect()
			if err != nil {
				return err
			}
			defer server.Close()
			out := deleteOutput{Results: []writeOutput{}}
			for i, id := range ids {
				row, token, err := server.Delete(cmd.Context(), keyspace, id, client.WriteOptions{Unkeyed: true})
				if err != nil {
					return fmt.Errorf("cannot delete %d (%d of %d rows are deleted): %w", id, i, len(ids), err)
				}
				out.Results = append(out.Results, writeOutput{row, token})
			}
			return c.print(out, func(t *table) {
				t.row("DELETED")
				for _, row := range out.Results {
					t.row(row.ID)
				}
			})
		},
	}
	keyspaceFlag(cmd, &keyspace)
	return cmd
}

// confirm asks on a terminal. Without one, or with --yes, the command line is
// the answer.
func (c *cli) confirm(question string) error {
	if c.yes || !isTerminal(c.in) || !isTerminal(c.err) {
		return nil
	}
	fmt.Fprintf(c.err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(c.in).ReadString('\n')
	if err != nil || !strings.EqualFold(strings.TrimSpace(answer), "y") {
		return fmt.Errorf("nothing was done; answer y, or give --yes")
	}
	return nil
}
