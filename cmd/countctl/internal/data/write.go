package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func incrCommand(c *cli.CLI) *cobra.Command {
	var floor cli.FloorFlag
	cmd := cellsCommand(c, "incremented", func(server *client.Client, ctx context.Context, keyspace string, ops []client.Op, o client.WriteOptions) (client.WriteResult, error) {
		ops[0].Floor = floor.Value
		return server.IncrMany(ctx, keyspace, ops, o)
	})
	cmd.Use = "incr ID COLUMN=+N…"
	cmd.Aliases = []string{"add"}
	cmd.Short = "Add to columns of one row and print the row"
	cmd.Long = cmd.Short + "." + cli.OnceText
	cmd.Example = "  countctl incr 4467107636950632 like=+1 repost=-1\n  countctl incr 4467107636950632 like=-1 --floor 0"
	floor.Add(cmd)
	return cmd
}

func setCommand(c *cli.CLI) *cobra.Command {
	cmd := cellsCommand(c, "set", (*client.Client).Set)
	cmd.Use = "set ID COLUMN=N…"
	cmd.Short = "Set columns of one row, keep its other columns, and print the row"
	cmd.Long = cmd.Short + "." + cli.OnceText
	cmd.Example = "  countctl set 4467107636950632 like=10"
	return cmd
}

// cellsCommand returns a command that calls write for columns of one row. done is the participle
// for messages, such as "set".
func cellsCommand(c *cli.CLI, done string, write func(*client.Client, context.Context, string, []client.Op, client.WriteOptions) (client.WriteResult, error)) *cobra.Command {
	var keyspace, key string
	cmd := &cobra.Command{
		RunE: func(cmd *cobra.Command, args []string) error {
			op, err := cli.ParseOp(args)
			if err != nil {
				return err
			}
			key, err := cli.WriteKey(cmd, key, client.KeyBytesMax)
			if err != nil {
				return err
			}
			server, err := c.Connect()
			if err != nil {
				return err
			}
			defer server.Close()
			if err := cli.TakesIDs(cmd.Context(), server, keyspace, "id", op.ID); err != nil {
				return err
			}
			answer, err := write(server, cmd.Context(), keyspace, []client.Op{op}, client.WriteOptions{Key: key})
			if errors.Is(err, client.ErrUnknown) {
				return cli.Unknown(fmt.Sprintf("row %s was %s", op.ID, done), key, err)
			}
			if err == nil {
				err = refusal(answer)
			}
			if err != nil {
				return fmt.Errorf("row %s was not %s: %w", op.ID, done, cli.WithKeyRemedy(ofCommandLine(err)))
			}
			row := client.Row{ID: answer.Results[0].ID, Counts: answer.Results[0].Counts}
			out := struct {
				client.WrittenRow
				Added client.Counts `json:"added,omitempty"`
			}{client.WrittenRow{Row: row, Written: answer.Written}, answer.Results[0].Added}
			return c.Print(out, func(t *cli.Table) { t.Counts("ID", row) })
		},
	}
	c.KeyspaceFlag(cmd, &keyspace)
	cli.KeyFlag(cmd, &key)
	return cmd
}

// ofCommandLine turns an error about the op of a request into a usage error, because the op comes
// from the command line.
func ofCommandLine(err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.Code == "invalid_argument" {
		if _, isOp := refused.Op(); isOp {
			return cli.Usagef("%v", err)
		}
	}
	return err
}

// refusal returns the error in the answer to a request of one op, or nil if the op succeeded.
func refusal(answer client.WriteResult) error {
	if len(answer.Results) != 1 {
		return fmt.Errorf("the server answered with %d results for one op", len(answer.Results))
	}
	if e := answer.Results[0].Error; e != nil {
		return fmt.Errorf("%s: %s", e.Code, e.Message)
	}
	return nil
}

type deleteOutput struct {
	Results []client.WrittenRow `json:"results"`
}

// deleteKeyBytesMax is the maximum length of --key for delete. It leaves space for what keyOf appends.
const deleteKeyBytesMax = client.KeyBytesMax - len("/18446744073709551615")

// keyOf returns the key for the request that deletes one row. If the command deletes several rows,
// keyOf appends the number of the row, or a hash of its text, so that each request has its own key.
func keyOf(key string, id client.ID, rows int) string {
	if rows == 1 {
		return key
	}
	if _, number := id.Number(); !number {
		of := sha256.Sum256([]byte(id.String()))
		return key + "/" + hex.EncodeToString(of[:10])
	}
	return key + "/" + id.String()
}

func deleteCommand(c *cli.CLI) *cobra.Command {
	var keyspace, key string
	cmd := &cobra.Command{
		Use:   "delete ID…",
		Short: "Set all columns of rows to zero; - reads ids from standard input",
		Long: `Set all columns of rows to zero. Deleting an absent row is not an error.

On a terminal it asks first, unless --yes is given.` + cli.OnceText,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := c.IDs(args)
			if err != nil {
				return err
			}
			key, err := cli.WriteKey(cmd, key, deleteKeyBytesMax)
			if err != nil {
				return err
			}
			if err := c.Confirm(fmt.Sprintf("Delete %s of %s?", cli.Counted(len(ids), "row"), keyspace)); err != nil {
				return err
			}
			server, err := c.Connect()
			if err != nil {
				return err
			}
			defer server.Close()
			if err := cli.TakesIDs(cmd.Context(), server, keyspace, "id", ids...); err != nil {
				return err
			}
			out := deleteOutput{Results: []client.WrittenRow{}}
			for i, id := range ids {
				row, err := server.Delete(cmd.Context(), keyspace, id, client.WriteOptions{Key: keyOf(key, id, len(ids))})
				if errors.Is(err, client.ErrUnknown) {
					return cli.Unknown(fmt.Sprintf("row %s was deleted (%d of %d rows are)", id, i, len(ids)), key, err)
				}
				if err != nil {
					return fmt.Errorf("cannot delete %s (%d of %d rows are deleted): %w", id, i, len(ids), cli.WithKeyRemedy(err))
				}
				out.Results = append(out.Results, row)
			}
			return c.Print(out, func(t *cli.Table) {
				t.Row("DELETED")
				for _, row := range out.Results {
					t.Row(row.ID)
				}
			})
		},
	}
	c.KeyspaceFlag(cmd, &keyspace)
	cli.KeyFlag(cmd, &key)
	return cmd
}
