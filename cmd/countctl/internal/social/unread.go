package social

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

// unreadRead returns a command that reads unread numbers: read receives its arguments, and those
// of them that are ids, and prints the answer.
func unreadRead(c *cli.CLI, use, short string,
	read func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error)) *cobra.Command {
	var o client.ReadOptions
	cmd := &cobra.Command{
		Use: use, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := idsOf(c, use, args)
			if err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				answer, rows, err := read(cmd.Context(), server, args, ids, o)
				if err != nil {
					return unreadError("cannot read", err)
				}
				return c.Print(answer, rows)
			})
		},
	}
	cli.ReadFlags(cmd, &o)
	return cmd
}

// unreadWrite is unreadRead for a command that writes. what describes the write.
func unreadWrite(c *cli.CLI, use, short, what string,
	write func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error)) *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use: use, Short: short, Long: short + "." + cli.OnceText,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := cli.WriteKey(cmd, key, client.KeyBytesMax)
			if err != nil {
				return err
			}
			ids, err := idsOf(c, use, args)
			if err != nil {
				return err
			}
			return c.WithServer(func(server *client.Client) error {
				answer, rows, err := write(cmd.Context(), server, args, ids, client.WriteOptions{Key: key})
				if errors.Is(err, client.ErrUnknown) {
					return cli.Unknown(what, key, err)
				}
				if err != nil {
					return unreadError("the write failed", cli.WithKeyRemedy(err))
				}
				return c.Print(answer, rows)
			})
		},
	}
	cli.KeyFlag(cmd, &key)
	return cmd
}

// unreadError adds to an error what failed, unless it is an error of usage.
func unreadError(what string, err error) error {
	var usage *cli.UsageError
	if errors.As(err, &usage) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// idsOf returns the arguments of a command that its usage says are ids, each at its place. Rows and
// members may come from standard input.
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

// parseID parses the id of a kind of thing, which its error names.
func parseID(kind, text string) (client.ID, error) {
	id, err := client.ParseID(text)
	if err != nil {
		return 0, cli.Usagef("the %s %v", kind, err)
	}
	return id, nil
}

// userRows adds the counts of users under a header of their columns.
func userRows(t *cli.Table, list ...client.UserCounts) {
	for i, u := range list {
		if i == 0 {
			header := []any{"USER"}
			for _, count := range u.Counts {
				header = append(header, strings.ToUpper(count.Column))
			}
			t.Row(header...)
		}
		cells := []any{u.User}
		for _, count := range u.Counts {
			cells = append(cells, count.Value)
		}
		t.Row(cells...)
	}
}

func unreadCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("unread", "Print, add to and reset the unread numbers of users", unreadGetCommand(c), unreadIncrCommand(c), unreadResetCommand(c))
}

func unreadGetCommand(c *cli.CLI) *cobra.Command {
	return unreadRead(c, "get USER", "Print a user's numbers; an unknown user has zeros",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			row, err := server.Unread(ctx, ids[0], o)
			return row, func(t *cli.Table) { userRows(t, row) }, err
		})
}

func unreadIncrCommand(c *cli.CLI) *cobra.Command {
	var floor cli.FloorFlag
	cmd := unreadWrite(c, "incr USER COLUMN=+N…", "Add to a user's numbers and print them", "the user's numbers were incremented",
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
			}{answer.Results[0].UserCounts, answer.Results[0].Added, answer.Written}
			return out, func(t *cli.Table) { userRows(t, out.UserCounts) }, nil
		})
	floor.Add(cmd)
	return cmd
}

func unreadResetCommand(c *cli.CLI) *cobra.Command {
	var columns []string
	cmd := unreadWrite(c, "reset USER [COLUMN=SEEN…]", "Subtract the counts that a user has seen, or clear --columns, and print the rest", "the user's numbers were reset",
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
				userRows(t, answer.UserCounts)
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
	cmd := unreadRead(c, "poll USER…", "Print everything that a user's client polls for",
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
		if i == 0 {
			header := []any{"USER"}
			for _, count := range p.Unread {
				header = append(header, strings.ToUpper(count.Column))
			}
			for _, name := range slices.Concat(channels, dots) {
				header = append(header, name)
			}
			t.Row(append(header, "FEED")...)
		}
		cells := []any{p.User}
		for _, count := range p.Unread {
			cells = append(cells, count.Value)
		}
		for _, name := range channels {
			cells = append(cells, p.Notices[name])
		}
		for _, name := range dots {
			cells = append(cells, shows(p.Dots[name]))
		}
		t.Row(append(cells, p.Feed)...)
	}
}

// shows returns a dot's state for a table.
func shows(show bool) string {
	if show {
		return "shows"
	}
	return "-"
}
