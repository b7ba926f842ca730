package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// onceText ends the help of a command that writes.
const onceText = `

The request is sent once, with a key under which it counts only once, however often it
is sent. If its outcome stays unknown, the error names the key: run the same command
again with that --key.`

func (c *cli) incrCommand() *cobra.Command {
	var floor floorFlag
	cmd := c.writeCommand("incremented", func(server *client.Client, ctx context.Context, keyspace string, ops []client.Op, o client.WriteOptions) (client.WriteResult, error) {
		ops[0].Floor = floor.value
		return server.IncrMany(ctx, keyspace, ops, o)
	})
	cmd.Use = "incr ID COLUMN=+N…"
	cmd.Aliases = []string{"add"}
	cmd.Short = "Add to columns of one row and print it"
	cmd.Long = cmd.Short + "." + onceText
	cmd.Example = "  countctl incr 4467107636950632 like=+1 repost=-1\n  countctl incr 4467107636950632 like=-1 --floor 0"
	floor.add(cmd)
	return cmd
}

// floorFlag is --floor, nil while it is not given.
type floorFlag struct{ value *int64 }

func (f *floorFlag) add(cmd *cobra.Command) {
	cmd.Flags().Var(f, "floor", "bound below which no sum drops; a count that is already below it is unchanged")
}

func (f *floorFlag) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return errors.New("not a signed 64-bit integer")
	}
	f.value = &n
	return nil
}

func (f *floorFlag) Type() string { return "N" }

func (f *floorFlag) String() string {
	if f.value == nil {
		return ""
	}
	return strconv.FormatInt(*f.value, 10)
}

func (c *cli) setCommand() *cobra.Command {
	cmd := c.writeCommand("set", (*client.Client).Set)
	cmd.Use = "set ID COLUMN=N…"
	cmd.Short = "Set columns of one row, keep the others, and print it"
	cmd.Long = cmd.Short + "." + onceText
	cmd.Example = "  countctl set 4467107636950632 like=10"
	return cmd
}

// writeCommand is a command that changes columns of one row.
func (c *cli) writeCommand(done string, write func(*client.Client, context.Context, string, []client.Op, client.WriteOptions) (client.WriteResult, error)) *cobra.Command {
	var keyspace, key string
	cmd := &cobra.Command{
		Args: atLeast(2, "ID and one COLUMN=N or more"),
		RunE: func(cmd *cobra.Command, args []string) error {
			op, err := parseOp(args)
			if err != nil {
				return err
			}
			key, err := writeKey(cmd, key, client.KeyBytesMax)
			if err != nil {
				return err
			}
			server, err := c.connect()
			if err != nil {
				return err
			}
			defer server.Close()
			answer, err := write(server, cmd.Context(), keyspace, []client.Op{op}, client.WriteOptions{Key: key})
			if errors.Is(err, client.ErrUnknown) {
				return &unknownError{fmt.Sprintf("row %d was %s", op.ID, done), key, err}
			}
			if err == nil {
				err = refusal(answer)
			}
			if err != nil {
				return fmt.Errorf("row %d was not %s: %w", op.ID, done, withKeyRemedy(ofCommandLine(err)))
			}
			row := client.Row{ID: answer.Results[0].ID, Counts: answer.Results[0].Counts}
			out := struct {
				client.WrittenRow
				Added client.Counts `json:"added,omitempty"`
			}{client.WrittenRow{Row: row, Duplicate: answer.Duplicate, Token: answer.Token}, answer.Results[0].Added}
			return c.print(out, func(t *table) { t.counts([]client.Row{row}) })
		},
	}
	c.keyspaceFlag(cmd, &keyspace)
	keyFlag(cmd, &key)
	return cmd
}

// ofCommandLine turns a refusal of the only op of a request into an error of usage, because
// the op is on the command line.
func ofCommandLine(err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.Code == "invalid_argument" {
		if _, isOp := refused.Op(); isOp {
			return usagef("%v", err)
		}
	}
	return err
}

func keyFlag(cmd *cobra.Command, key *string) {
	cmd.Flags().StringVar(key, "key", "", "Idempotency-Key of the write, 1 to 128 bytes, to send one again that may have happened (a new one when not given)")
}

// writeKey returns --key, or a new key.
func writeKey(cmd *cobra.Command, key string, bytesMax int) (string, error) {
	if !cmd.Flags().Changed("key") {
		return client.NewKey()
	}
	if len(key) < 1 || len(key) > bytesMax {
		return "", usagef("--key is 1 to %d bytes here, not %d", bytesMax, len(key))
	}
	return key, nil
}

// unknownError is of a write that may have happened.
type unknownError struct {
	what string // it did, if it did
	key  string // to send it again with
	err  error
}

func (e *unknownError) Error() string {
	why := strings.TrimPrefix(e.err.Error(), client.ErrUnknown.Error()+": ") // it repeats this text
	return fmt.Sprintf("it is unknown whether %s: %s; run it again with --key %s, so that it counts once", e.what, why, e.key)
}

func (e *unknownError) Unwrap() error { return e.err }

// withKeyRemedy adds what to do about a key that was refused.
func withKeyRemedy(err error) error {
	var refused *client.Error
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case "idempotency_conflict":
		return fmt.Errorf("%w; repeat the original write, or leave the key out", err)
	case "idempotency_expired":
		return fmt.Errorf("%w; read the row to see whether it happened, and leave the key out to write again", err)
	}
	return err
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

// deleteOutput is the JSON output of delete.
type deleteOutput struct {
	Results []client.WrittenRow `json:"results"`
}

// deleteKeyBytesMax leaves room for an id after the key.
const deleteKeyBytesMax = client.KeyBytesMax - len("/18446744073709551615")

// keyOf returns the key for the delete of one row: with several rows, each has its own.
func keyOf(key string, id client.ID, rows int) string {
	if rows == 1 {
		return key
	}
	return key + "/" + id.String()
}

func (c *cli) deleteCommand() *cobra.Command {
	var keyspace, key string
	cmd := &cobra.Command{
		Use:   "delete ID…",
		Short: "Set all columns of rows to zero; - reads ids from standard input",
		Long: `Set all columns of rows to zero. Deleting an absent row is not an error.

On a terminal it asks first, unless --yes is given.` + onceText,
		Args: atLeast(1, "one ID or more"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := c.ids(args)
			if err != nil {
				return err
			}
			key, err := writeKey(cmd, key, deleteKeyBytesMax)
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
			out := deleteOutput{Results: []client.WrittenRow{}}
			for i, id := range ids {
				row, err := server.Delete(cmd.Context(), keyspace, id, client.WriteOptions{Key: keyOf(key, id, len(ids))})
				if errors.Is(err, client.ErrUnknown) {
					return &unknownError{fmt.Sprintf("row %d was deleted (%d of %d rows are)", id, i, len(ids)), key, err}
				}
				if err != nil {
					return fmt.Errorf("cannot delete %d (%d of %d rows are deleted): %w", id, i, len(ids), withKeyRemedy(err))
				}
				out.Results = append(out.Results, row)
			}
			return c.print(out, func(t *table) {
				t.row("DELETED")
				for _, row := range out.Results {
					t.row(row.ID)
				}
			})
		},
	}
	c.keyspaceFlag(cmd, &keyspace)
	keyFlag(cmd, &key)
	return cmd
}
