package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

// unreadRead returns a command that reads unread numbers: read receives its arguments and
// prints the answer.
func (c *cli) unreadRead(use, short string, args cobra.PositionalArgs,
	read func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error)) *cobra.Command {
	var o client.ReadOptions
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkReadOptions(cmd, o); err != nil {
				return err
			}
			return c.withServer(func(server *client.Client) error {
				answer, rows, err := read(cmd.Context(), server, args, o)
				if err != nil {
					return unreadError("cannot read", err)
				}
				return c.print(answer, rows)
			})
		},
	}
	readFlags(cmd, &o)
	return cmd
}

// unreadWrite is unreadRead for a command that writes. what describes the write.
func (c *cli) unreadWrite(use, short, what string, args cobra.PositionalArgs,
	write func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error)) *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use: use, Short: short, Long: short + "." + onceText, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := writeKey(cmd, key, client.KeyBytesMax)
			if err != nil {
				return err
			}
			return c.withServer(func(server *client.Client) error {
				answer, rows, err := write(cmd.Context(), server, args, client.WriteOptions{Key: key})
				if errors.Is(err, client.ErrUnknown) {
					return &unknownError{what, key, err}
				}
				if err != nil {
					return unreadError("it was not done that "+what, withKeyRemedy(err))
				}
				return c.print(answer, rows)
			})
		},
	}
	keyFlag(cmd, &key)
	return cmd
}

// unreadError adds to an error what failed, unless it is an error of usage.
func unreadError(what string, err error) error {
	var usage *usageError
	if errors.As(err, &usage) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

func parseUser(text string) (client.ID, error) {
	user, err := client.ParseID(text)
	if err != nil {
		return 0, usagef("the user %v", err)
	}
	return user, nil
}

func parseUsers(args []string) ([]client.ID, error) {
	users := make([]client.ID, len(args))
	for i, arg := range args {
		var err error
		if users[i], err = parseUser(arg); err != nil {
			return nil, err
		}
	}
	return users, nil
}

// users adds the counts of users under a header of their columns.
func (t *table) users(list ...client.UserCounts) {
	for i, u := range list {
		if i == 0 {
			header := []any{"USER"}
			for _, count := range u.Counts {
				header = append(header, strings.ToUpper(count.Column))
			}
			t.row(header...)
		}
		cells := []any{u.User}
		for _, count := range u.Counts {
			cells = append(cells, count.Value)
		}
		t.row(cells...)
	}
}

func (c *cli) unreadCommand() *cobra.Command {
	return commandGroup("unread", "One-to-one unread numbers of users", c.unreadGetCommand(), c.unreadIncrCommand(), c.unreadResetCommand())
}

func (c *cli) unreadGetCommand() *cobra.Command {
	return c.unreadRead("get USER", "Print a user's numbers; one never seen has zeros", exactly(1, "one USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			user, err := parseUser(args[0])
			if err != nil {
				return nil, nil, err
			}
			row, err := server.Unread(ctx, user, o)
			return row, func(t *table) { t.users(row) }, err
		})
}

func (c *cli) unreadIncrCommand() *cobra.Command {
	var floor floorFlag
	cmd := c.unreadWrite("incr USER COLUMN=+N…", "Add to a user's numbers and print them", "the user's numbers were incremented",
		atLeast(2, "USER and one COLUMN=N or more"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			op, err := parseOp(args)
			if err != nil {
				return nil, nil, err
			}
			op.Floor = floor.value
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
			return out, func(t *table) { t.users(out.UserCounts) }, nil
		})
	floor.add(cmd)
	return cmd
}

func (c *cli) unreadResetCommand() *cobra.Command {
	var columns []string
	cmd := c.unreadWrite("reset USER [COLUMN=SEEN…]", "Subtract the counts that a user has seen, or clear --columns, and print the rest", "the user's numbers were reset",
		atLeast(1, "USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			if (len(args) > 1) == (len(columns) > 0) {
				return nil, nil, usagef("unread reset takes COLUMN=SEEN for the counts seen, or --columns")
			}
			seen, err := client.Op{}, error(nil)
			if len(args) > 1 {
				seen, err = parseOp(args)
			} else {
				seen.ID, err = parseUser(args[0])
			}
			if err != nil {
				return nil, nil, err
			}
			var answer client.ResetResult
			if len(columns) > 0 {
				answer, err = server.ResetUnread(ctx, seen.ID, columns, o)
			} else {
				answer, err = server.ResetSeen(ctx, seen.ID, seen.Cells, o)
			}
			return answer, func(t *table) {
				t.users(answer.UserCounts)
				t.gap()
				t.row("CLEARED", "NUMBER")
				for _, count := range answer.Cleared {
					t.row(count.Column, count.Value)
				}
			}, err
		})
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns to clear, whatever is in them")
	return cmd
}

func (c *cli) pollCommand() *cobra.Command {
	var channels, dots []string
	cmd := c.unreadRead("poll USER…", "Print all that clients of users poll for", atLeast(1, "one USER or more"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			users, err := parseUsers(args)
			if err != nil {
				return nil, nil, err
			}
			var polls []client.Poll
			for some := range slices.Chunk(users, client.PollUsersMax) {
				page, err := server.PollMany(ctx, some, channels, dots, o)
				if err != nil {
					return nil, nil, err
				}
				polls = append(polls, page...)
			}
			out := struct {
				Results []client.Poll `json:"results"`
			}{polls}
			return out, func(t *table) { t.polls(polls, channels, dots) }, nil
		})
	cmd.Flags().StringSliceVar(&channels, "channels", nil, "channels to count notices of")
	cmd.Flags().StringSliceVar(&dots, "dots", nil, "dots to look at")
	return cmd
}

func (t *table) polls(polls []client.Poll, channels, dots []string) {
	for i, p := range polls {
		if i == 0 {
			header := []any{"USER"}
			for _, count := range p.Unread {
				header = append(header, strings.ToUpper(count.Column))
			}
			for _, name := range slices.Concat(channels, dots) {
				header = append(header, name)
			}
			t.row(append(header, "FEED")...)
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
		t.row(append(cells, p.Feed)...)
	}
}

// shows returns a dot's state for a table.
func shows(show bool) string {
	if show {
		return "shows"
	}
	return "-"
}
