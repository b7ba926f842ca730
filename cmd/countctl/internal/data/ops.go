package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// opsBytesMax bounds the bytes of the input. 10,000 ops on a few columns each need about 2 MB.
const opsBytesMax = 64 << 20

func opsCommand(c *cli.CLI) *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use:   "ops",
		Short: "Apply ops from standard input to rows of any keyspaces",
		Long: `Write to rows of any keyspaces. Standard input has up to 10,000 JSON objects one after the
other, each an op such as {"keyspace":"posts","id":"1","add":{"like":1}} or
{"user":"9","add":{"like":1}}; an op with a member is
{"keyspace":"posts","column":"like","id":"1","member":"7","set":true}.` + cli.OnceText,
		Example: `  echo '{"keyspace":"posts","id":"1","add":{"like":1}} {"user":"9","add":{"like":1}}' | countctl ops`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ops, err := readOps(c.In)
			if err != nil {
				return err
			}
			key, err := cli.WriteKey(cmd, key, client.KeyBytesMax)
			if err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				answer, err := server.Ops(cmd.Context(), ops, client.WriteOptions{Key: key})
				if errors.Is(err, client.ErrUnknown) {
					return cli.Unknown("the ops were applied", key, err)
				}
				if err != nil {
					return fmt.Errorf("the ops were not applied: %w", cli.WithKeyRemedy(err))
				}
				err = c.Print(answer, func(t *cli.Table) {
					t.Row("ID", "COUNTS")
					for _, one := range answer.Results {
						if one.Error != nil {
							t.Row(one.ID, one.Error.Message)
							continue
						}
						if m := one.MemberOutcome; m != nil {
							t.Row(one.ID, fmt.Sprintf("member %s, count %d", m.Member, m.Count))
							continue
						}
						text, _ := one.Counts.MarshalJSON() // ignore the error: MarshalJSON of Counts never fails
						t.Row(one.ID, string(text))
					}
				})
				if err == nil && answer.Failed > 0 {
					err = fmt.Errorf("%d of %d ops were refused", answer.Failed, len(ops))
				}
				return err
			})
		},
	}
	cli.KeyFlag(cmd, &key)
	return cmd
}

// readOp is an op as the input has it. Set is an object of counts or, if the op has a member, true
// or false.
type readOp struct {
	client.KeyspaceOp
	User     *client.ID      `json:"user"`
	Set      json.RawMessage `json:"set"`
	Column   *string         `json:"column"`
	MemberID *client.ID      `json:"member"`
}

// finish decodes Set.
func (op *readOp) finish() error {
	if op.Column == nil && op.MemberID == nil {
		if op.Set == nil {
			return nil
		}
		return json.Unmarshal(op.Set, &op.KeyspaceOp.Set)
	}
	set := string(op.Set)
	if op.Column == nil || op.MemberID == nil || op.User != nil || op.Add != nil || op.Floor != nil || set != "true" && set != "false" {
		return errors.New("an op with a member has keyspace, column, id, member and set, which is true or false")
	}
	op.Member = &client.KeyspaceMember{Column: *op.Column, Member: *op.MemberID, Leave: set == "false"}
	return nil
}

// readOps reads a sequence of ops, each a JSON object. An op with a user is for the keyspace
// unread. Any other op must have a keyspace.
func readOps(in io.Reader) ([]client.KeyspaceOp, error) {
	d := json.NewDecoder(io.LimitReader(in, opsBytesMax))
	d.DisallowUnknownFields()
	var ops []client.KeyspaceOp
	for {
		var op readOp
		if err := d.Decode(&op); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, cli.Usagef("op %d: %v", len(ops)+1, err)
		}
		if op.User != nil {
			if op.Keyspace != "" && op.Keyspace != "unread" || op.ID != (client.ID{}) {
				return nil, cli.Usagef("op %d has a user and is of keyspace %q, or has an id too", len(ops)+1, op.Keyspace)
			}
			op.Keyspace, op.ID = "unread", *op.User
		} else if op.Keyspace == "" {
			return nil, cli.Usagef("op %d has neither a keyspace nor a user", len(ops)+1)
		}
		if err := op.finish(); err != nil {
			return nil, cli.Usagef("op %d: %v", len(ops)+1, err)
		}
		ops = append(ops, op.KeyspaceOp)
	}
	if len(ops) == 0 || len(ops) > client.WriteOpsMax {
		return nil, cli.Usagef("%d ops are not 1 to %d", len(ops), client.WriteOpsMax)
	}
	return ops, nil
}
