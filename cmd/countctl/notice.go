package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

func (c *cli) noticeCommand() *cobra.Command {
	return commandGroup("notice", "Notices of channels, which are everybody's",
		c.noticeListCommand(), c.noticePublishCommand(), c.noticeRetractCommand(), c.noticeGetCommand(), c.noticeReadCommand())
}

func (c *cli) noticeListCommand() *cobra.Command {
	return c.unreadRead("list", "Print the channels", cobra.NoArgs,
		func(ctx context.Context, server *client.Client, _ []string, o client.ReadOptions) (any, func(*table), error) {
			list, err := server.Channels(ctx, o)
			out := struct {
				Channels []client.Channel `json:"channels"`
			}{list}
			return out, func(t *table) {
				t.row("CHANNEL", "LATEST", "RETRACTED")
				for _, ch := range list {
					t.row(ch.Name, ch.Latest, ch.Retracted)
				}
			}, err
		})
}

func (c *cli) noticePublishCommand() *cobra.Command {
	return c.unreadWrite("publish CHANNEL", "Publish a notice to everybody and print its number", "a notice was published", exactly(1, "one CHANNEL"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			answer, err := server.Publish(ctx, args[0], o)
			return answer, func(t *table) { t.row("CHANNEL", "NOTICE"); t.row(args[0], answer.Seq) }, err
		})
}

func (c *cli) noticeRetractCommand() *cobra.Command {
	return c.unreadWrite("retract CHANNEL NOTICE", "Withdraw a notice: it no longer counts for anybody", "the notice was retracted", exactly(2, "CHANNEL and NOTICE"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			seq, err := parseNotice(args[1])
			if err != nil {
				return nil, nil, err
			}
			answer, err := server.Retract(ctx, args[0], seq, o)
			return answer, func(t *table) { t.row("CHANNEL", "RETRACTED"); t.row(args[0], answer.Seq) }, err
		})
}

func parseNotice(text string) (int64, error) {
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 0 {
		return 0, usagef("%q is not the number of a notice", text)
	}
	return seq, nil
}

func (t *table) notices(channel string, user client.ID, n client.Notices) {
	read := "never"
	if n.LastRead != nil {
		read = strconv.FormatInt(*n.LastRead, 10)
	}
	t.row("CHANNEL", "USER", "UNREAD", "READ", "LATEST")
	t.row(channel, user, n.Unread, read, n.Latest)
}

func (c *cli) noticeGetCommand() *cobra.Command {
	since := int64(-1)
	cmd := c.unreadRead("get CHANNEL USER", "Print the position of a user in a channel", exactly(2, "CHANNEL and USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			user, err := parseUser(args[1])
			if err != nil {
				return nil, nil, err
			}
			answer, err := server.Notices(ctx, args[0], user, given(since), o)
			return answer, func(t *table) { t.notices(args[0], user, answer) }, err
		})
	cmd.Flags().Int64Var(&since, "since", since, "notice after which a new user starts")
	return cmd
}

func (c *cli) noticeReadCommand() *cobra.Command {
	upTo, since := int64(-1), int64(-1)
	cmd := c.unreadWrite("read CHANNEL USER", "Move a user to the latest notice, or to --up-to", "the user was moved", exactly(2, "CHANNEL and USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			user, err := parseUser(args[1])
			if err != nil {
				return nil, nil, err
			}
			if upTo >= 0 && since >= 0 {
				return nil, nil, usagef("notice read takes --up-to or --since, not both")
			}
			var answer client.NoticesRead
			if since >= 0 {
				answer, err = server.BeginNotices(ctx, args[0], user, since, o)
			} else {
				answer, err = server.ReadNotices(ctx, args[0], user, given(upTo), o)
			}
			return answer, func(t *table) { t.notices(args[0], user, answer.Notices) }, err
		})
	cmd.Flags().Int64Var(&upTo, "up-to", upTo, "the last notice that the user has read (the latest when not given)")
	cmd.Flags().Int64Var(&since, "since", since, "start a new user after this notice, and leave other users unchanged")
	return cmd
}

// given is a flag's number, nil below 0.
func given(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func (c *cli) dotCommand() *cobra.Command {
	return commandGroup("dot", "Red dots, which are everybody's",
		c.dotListCommand(), c.dotFireCommand(), c.dotSetCommand(), c.dotGetCommand(), c.dotClearCommand())
}

func (c *cli) dotListCommand() *cobra.Command {
	return c.unreadRead("list", "Print the dots", cobra.NoArgs,
		func(ctx context.Context, server *client.Client, _ []string, o client.ReadOptions) (any, func(*table), error) {
			list, err := server.Dots(ctx, o)
			out := struct {
				Dots []client.Dot `json:"dots"`
			}{list}
			return out, func(t *table) {
				t.row("DOT", "FIRED", "NEW USERS")
				for _, d := range list {
					t.row(d.Name, d.Fired, shows(d.NewUsers))
				}
			}, err
		})
}

func (c *cli) dotFireCommand() *cobra.Command {
	return c.unreadWrite("fire DOT", "Show a dot to all users", "the dot was fired", exactly(1, "one DOT"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			answer, err := server.Fire(ctx, args[0], o)
			return answer, func(t *table) { t.row("DOT", "FIRED"); t.row(args[0], answer.Fired) }, err
		})
}

func (c *cli) dotSetCommand() *cobra.Command {
	newUsers := true
	cmd := c.unreadWrite("set DOT --new-users=false", "Set whether a dot is shown to new users", "the dot was set", exactly(1, "one DOT"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			answer, err := server.SetDot(ctx, args[0], newUsers, o)
			return answer, func(t *table) { t.row("DOT", "FIRED", "NEW USERS"); t.row(args[0], answer.Fired, shows(newUsers)) }, err
		})
	cmd.Flags().BoolVar(&newUsers, "new-users", newUsers, "whether users never seen are shown it")
	return cmd
}

func (t *table) dot(name string, user client.ID, show bool) {
	t.row("DOT", "USER", "SHOWS")
	t.row(name, user, shows(show))
}

func (c *cli) dotGetCommand() *cobra.Command {
	return c.unreadRead("get DOT USER", "Print whether a user sees a dot", exactly(2, "DOT and USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			user, err := parseUser(args[1])
			if err != nil {
				return nil, nil, err
			}
			show, err := server.ShowsDot(ctx, args[0], user, o)
			return map[string]bool{"show": show}, func(t *table) { t.dot(args[0], user, show) }, err
		})
}

func (c *cli) dotClearCommand() *cobra.Command {
	return c.unreadWrite("clear DOT USER", "Hide a dot from a user until it is fired again", "the dot was cleared", exactly(2, "DOT and USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			user, err := parseUser(args[1])
			if err != nil {
				return nil, nil, err
			}
			answer, err := server.ClearDot(ctx, args[0], user, o)
			return answer, func(t *table) { t.dot(args[0], user, answer.Show) }, err
		})
}
