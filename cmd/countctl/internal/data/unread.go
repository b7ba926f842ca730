package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// userCommand returns a command that calls act and prints the result. It passes the arguments to
// act, and the ids that idsOf parsed from the arguments.
func userCommand(c *cli.CLI, use, short string,
	act func(cmd *cobra.Command, server *client.Client, args []string, ids []client.ID) (any, func(*cli.Table), error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := idsOf(c, use, args)
			if err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				if err := takesIDs(cmd, server, use, ids); err != nil {
					return err
				}
				answer, rows, err := act(cmd, server, args, ids)
				if err != nil {
					return err
				}
				return c.Print(answer, rows)
			})
		},
	}
}

// readCommand is like userCommand, but adds the flags of reads and passes their values to read.
func readCommand(c *cli.CLI, use, short string,
	read func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error)) *cobra.Command {
	var o client.ReadOptions
	cmd := userCommand(c, use, short, func(cmd *cobra.Command, server *client.Client, args []string, ids []client.ID) (any, func(*cli.Table), error) {
		answer, rows, err := read(cmd.Context(), server, args, ids, o)
		return answer, rows, unreadError("cannot read", err)
	})
	cli.ReadFlags(cmd, &o)
	return cmd
}

// writeCommand is like userCommand, but adds --key and passes the key to write. effect is a clause
// that describes the write, such as "the dot was fired".
func writeCommand(c *cli.CLI, use, short, effect string,
	write func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error)) *cobra.Command {
	var key string
	cmd := userCommand(c, use, short, func(cmd *cobra.Command, server *client.Client, args []string, ids []client.ID) (any, func(*cli.Table), error) {
		key, err := cli.WriteKey(cmd, key, client.KeyBytesMax)
		if err != nil {
			return nil, nil, err
		}
		answer, rows, err := write(cmd.Context(), server, args, ids, client.WriteOptions{Key: key})
		if errors.Is(err, client.ErrUnknown) {
			return nil, nil, cli.Unknown(effect, key, err)
		}
		return answer, rows, unreadError("the write failed", cli.WithKeyRemedy(err))
	})
	cmd.Long = short + "." + cli.OnceText
	cli.KeyFlag(cmd, &key)
	return cmd
}

// unreadError adds prefix to an error, unless it is a usage error.
func unreadError(prefix string, err error) error {
	var usage *cli.UsageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	return fmt.Errorf("%s: %w", prefix, err)
}

// idsOf parses the ids among the arguments. The usage line use defines which arguments are ids.
// ids[i] is the id in args[i], or the zero ID if args[i] is not an id. If the usage line has ID or MEMBER,
// all arguments are ids, and - reads ids from standard input.
func idsOf(c *cli.CLI, use string, args []string) ([]client.ID, error) {
	ids, words := make([]client.ID, len(args)), strings.Fields(use)[1:]
	for i, arg := range args {
		var err error
		switch word := strings.Trim(words[min(i, len(words)-1)], "[]…"); word {
		case "ID", "MEMBER":
			return c.IDs(args)
		case "USER", "AUTHOR", "POST":
			ids[i], err = parseID(strings.ToLower(word), arg)
		case "FOLLOWEE":
			ids[i], err = parseID("user", arg)
		}
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// takesIDs returns a usage error for an id that its keyspace cannot have. use is as in idsOf.
func takesIDs(cmd *cobra.Command, server *client.Client, use string, ids []client.ID) error {
	words := strings.Fields(use)[1:]
	for i, id := range ids {
		keyspace, what := "users", strings.ToLower(strings.Trim(words[min(i, len(words)-1)], "[]…"))
		switch what {
		case "id":
			keyspace = cmd.Flag("keyspace").Value.String()
		case "post":
			keyspace = "posts"
		case "followee":
			what = "user"
		}
		if err := cli.TakesIDs(cmd.Context(), server, keyspace, what, id); err != nil {
			return err
		}
	}
	return nil
}

// parseID parses an id. Its error contains kind.
func parseID(kind, text string) (client.ID, error) {
	id, err := client.ParseID(text)
	if err != nil {
		return id, cli.Usagef("the %s %v", kind, err)
	}
	return id, nil
}

func userRow(t *cli.Table, u client.UserCounts) {
	t.Counts("USER", client.Row{ID: u.User, Counts: u.Counts})
}

func unreadCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("unread", "Print, add to and reset the unread numbers of users",
		readCommand(c, "get USER", "Print a user's numbers; an unknown user has zeros",
			func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
				row, err := server.Unread(ctx, ids[0], o)
				return row, func(t *cli.Table) { userRow(t, row) }, err
			}),
		unreadIncrCommand(c), unreadResetCommand(c))
}

func unreadIncrCommand(c *cli.CLI) *cobra.Command {
	var floor cli.FloorFlag
	cmd := writeCommand(c, "incr USER COLUMN=+N…", "Add to a user's numbers and print them", "the user's numbers were incremented",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
			op, err := cli.ParseOp(args)
			if err != nil {
				return nil, nil, err
			}
			op.Floor = floor.Value
			answer, err := server.IncrUnread(ctx, []client.Op{op}, o)
			if err == nil && len(answer.Results) != 1 {
				err = fmt.Errorf("the server answered with %d results for one op", len(answer.Results))
			}
			if err != nil {
				return nil, nil, err
			}
			out := struct {
				client.UserCounts
				Added client.Counts `json:"added,omitempty"`
				client.Written
			}{client.UserCounts{User: answer.Results[0].ID, Counts: answer.Results[0].Counts}, answer.Results[0].Added, answer.Written}
			return out, func(t *cli.Table) { userRow(t, out.UserCounts) }, nil
		})
	floor.Add(cmd)
	return cmd
}

func unreadResetCommand(c *cli.CLI) *cobra.Command {
	var columns []string
	cmd := writeCommand(c, "reset USER [COLUMN=SEEN…]", "Subtract the counts that a user has seen, or clear --columns, and print the rest", "the user's numbers were reset",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
			if (len(args) > 1) == (len(columns) > 0) {
				return nil, nil, cli.Usagef("unread reset takes COLUMN=SEEN for the counts seen, or --columns")
			}
			var answer client.ResetResult
			var err error
			if len(columns) > 0 {
				answer, err = server.ResetUnread(ctx, ids[0], columns, o)
			} else if seen, bad := cli.ParseOp(args); bad != nil {
				err = bad
			} else {
				answer, err = server.ResetSeen(ctx, ids[0], seen.Cells, o)
			}
			return answer, func(t *cli.Table) {
				userRow(t, answer.UserCounts)
				t.Gap()
				t.Row("CLEARED", "NUMBER")
				for _, count := range answer.Cleared {
					t.Row(count.Column, count.Value)
				}
			}, err
		})
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns to set to 0")
	return cmd
}

func pollCommand(c *cli.CLI) *cobra.Command {
	var channels, dots []string
	cmd := readCommand(c, "poll USER…", "Print everything that a user's client polls for",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			var polls []client.Poll
			for some := range slices.Chunk(ids, client.PollUsersMax) {
				page, err := server.PollMany(ctx, some, channels, dots, o)
				if err != nil {
					return nil, nil, err
				}
				polls = append(polls, page...)
			}
			return map[string]any{"results": polls}, func(t *cli.Table) { pollRows(t, polls, channels, dots) }, nil
		})
	cmd.Flags().StringSliceVar(&channels, "channels", nil, "channels whose unread notices are counted")
	cmd.Flags().StringSliceVar(&dots, "dots", nil, "dots to read")
	return cmd
}

func pollRows(t *cli.Table, polls []client.Poll, channels, dots []string) {
	for i, p := range polls {
		header, cells := []any{"USER"}, []any{p.User}
		for _, count := range p.Unread {
			header, cells = append(header, strings.ToUpper(count.Column)), append(cells, count.Value)
		}
		for _, name := range channels {
			header, cells = append(header, name), append(cells, p.Notices[name])
		}
		for _, name := range dots {
			header, cells = append(header, name), append(cells, shows(p.Dots[name]))
		}
		if i == 0 {
			t.Row(append(header, "FEED")...)
		}
		t.Row(append(cells, p.Feed)...)
	}
}

// shows returns the state of a dot, for a table.
func shows(show bool) string {
	if show {
		return "shows"
	}
	return "-"
}
