package data

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func noticeCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("notice", "Publish notices to all users of a channel, and mark them as read",
		readCommand(c, "list", "Print the channels",
			func(ctx context.Context, server *client.Client, _ []string, _ []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
				list, err := server.Channels().List(ctx, o)
				return map[string]any{"channels": list}, func(t *cli.Table) {
					t.Row("CHANNEL", "LATEST", "RETRACTED")
					for _, ch := range list {
						t.Row(ch.Name, ch.Latest, ch.Retracted)
					}
				}, err
			}),
		writeCommand(c, "publish CHANNEL", "Publish a notice to everybody and print its number", "a notice was published",
			func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
				answer, err := server.Channels().Publish(ctx, args[0], o)
				return answer, func(t *cli.Table) { t.Row("CHANNEL", "NOTICE"); t.Row(args[0], answer.Seq) }, err
			}),
		writeCommand(c, "retract CHANNEL NOTICE", "Withdraw a notice: it no longer counts for anybody", "the notice was retracted",
			func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
				seq, err := parseNotice(args[1])
				if err != nil {
					return nil, nil, err
				}
				answer, err := server.Channels().Retract(ctx, args[0], seq, o)
				return answer, func(t *cli.Table) { t.Row("CHANNEL", "RETRACTED"); t.Row(args[0], answer.Seq) }, err
			}), noticeGetCommand(c), noticeReadCommand(c))
}

func parseNotice(text string) (int64, error) {
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 0 {
		return 0, cli.Usagef("%q is not the number of a notice", text)
	}
	return seq, nil
}

func noticeRows(t *cli.Table, channel string, user client.ID, n client.Notices) {
	read := "never"
	if n.LastRead != nil {
		read = strconv.FormatInt(*n.LastRead, 10)
	}
	t.Row("CHANNEL", "USER", "UNREAD", "READ", "LATEST")
	t.Row(channel, user, n.Unread, read, n.Latest)
}

func noticeGetCommand(c *cli.CLI) *cobra.Command {
	since := int64(-1)
	cmd := readCommand(c, "get CHANNEL USER", "Print the position of a user in a channel",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			answer, err := server.Channels().Notices(ctx, args[0], ids[1], given(since), o)
			return answer, func(t *cli.Table) { noticeRows(t, args[0], ids[1], answer) }, err
		})
	cmd.Flags().Int64Var(&since, "since", since, "notice after which a new user starts")
	return cmd
}

func noticeReadCommand(c *cli.CLI) *cobra.Command {
	upTo, since := int64(-1), int64(-1)
	cmd := writeCommand(c, "read CHANNEL USER", "Move a user to the latest notice, or to --up-to", "the user was moved",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
			if upTo >= 0 && since >= 0 {
				return nil, nil, cli.Usagef("notice read takes --up-to or --since, not both")
			}
			var answer client.NoticesRead
			var err error
			if since >= 0 {
				answer, err = server.Channels().Begin(ctx, args[0], ids[1], since, o)
			} else {
				answer, err = server.Channels().Read(ctx, args[0], ids[1], given(upTo), o)
			}
			return answer, func(t *cli.Table) { noticeRows(t, args[0], ids[1], answer.Notices) }, err
		})
	cmd.Flags().Int64Var(&upTo, "up-to", upTo, "the last notice that the user has read (default: the latest)")
	cmd.Flags().Int64Var(&since, "since", since, "start a new user after this notice, and leave other users unchanged")
	return cmd
}

// given returns the value of a flag. If n is below 0, the flag is absent, and given returns nil.
func given(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func dotCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("dot", "Fire red dots for all users, and clear one for a user",
		readCommand(c, "list", "Print the dots",
			func(ctx context.Context, server *client.Client, _ []string, _ []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
				list, err := server.Dots().List(ctx, o)
				return map[string]any{"dots": list}, func(t *cli.Table) {
					t.Row("DOT", "FIRED", "NEW USERS")
					for _, d := range list {
						t.Row(d.Name, d.Fired, shows(d.NewUsers))
					}
				}, err
			}),
		writeCommand(c, "fire DOT", "Show a dot to all users", "the dot was fired",
			func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
				answer, err := server.Dots().Fire(ctx, args[0], o)
				return answer, func(t *cli.Table) { t.Row("DOT", "FIRED"); t.Row(args[0], answer.Fired) }, err
			}), dotSetCommand(c),
		readCommand(c, "get DOT USER", "Print whether a user sees a dot",
			func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
				show, err := server.Dots().Shows(ctx, args[0], ids[1], o)
				return map[string]bool{"show": show}, func(t *cli.Table) { dotRows(t, args[0], ids[1], show) }, err
			}),
		writeCommand(c, "clear DOT USER", "Hide a dot from a user until it is fired again", "the dot was cleared",
			func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
				answer, err := server.Dots().Clear(ctx, args[0], ids[1], o)
				return answer, func(t *cli.Table) { dotRows(t, args[0], ids[1], answer.Show) }, err
			}))
}

func dotSetCommand(c *cli.CLI) *cobra.Command {
	newUsers := true
	cmd := writeCommand(c, "set DOT --new-users=false", "Set whether a dot is shown to new users", "the dot was set",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
			answer, err := server.Dots().Set(ctx, args[0], newUsers, o)
			return answer, func(t *cli.Table) { t.Row("DOT", "FIRED", "NEW USERS"); t.Row(args[0], answer.Fired, shows(newUsers)) }, err
		})
	cmd.Flags().BoolVar(&newUsers, "new-users", newUsers, "show the dot to users that the server has not seen before")
	return cmd
}

func dotRows(t *cli.Table, name string, user client.ID, show bool) {
	t.Row("DOT", "USER", "SHOWS")
	t.Row(name, user, shows(show))
}
