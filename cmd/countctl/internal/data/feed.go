package data

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func feedCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("feed", "Change whom a user follows, and count the new posts of followees", feedGetCommand(c),
		readCommand(c, "followees USER", "List the followees of a user",
			func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
				out := followeesOutput{ids[0], []client.ID{}}
				for cursor := ""; ; {
					page, next, err := server.Feeds().Followees(ctx, ids[0], cursor, 0, o)
					if err != nil {
						return nil, nil, err
					}
					out.Followees = append(out.Followees, page...)
					if cursor = next; cursor == "" {
						break
					}
				}
				return out, func(t *cli.Table) {
					t.Row("FOLLOWEE")
					for _, id := range out.Followees {
						t.Row(id)
					}
				}, nil
			}),
		readCommand(c, "groups USER", "List the groups of a user's followees",
			func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
				groups, err := server.Feeds().Groups(ctx, ids[0], o)
				return map[string]any{"groups": groups}, func(t *cli.Table) {
					t.Row("GROUP", "FOLLOWEES")
					for _, g := range groups {
						t.Row(g.Name, g.Followees)
					}
				}, err
			}), feedResetCommand(c),
		feedChangeCommand(c, "follow", "Add followees, whose earlier posts count as seen", "the user follows them", client.Feeds.Follow),
		feedChangeCommand(c, "unfollow", "Remove followees and their unread posts", "the user does not follow them any more", client.Feeds.Unfollow),
		feedChangeCommand(c, "read", "Mark all posts of some followees as seen", "the user has seen them", client.Feeds.Read))
}

func feedGetCommand(c *cli.CLI) *cobra.Command {
	var detail bool
	cmd := readCommand(c, "get USER", "Print the number of posts that a user has not seen",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			feed, err := server.Feeds().Unread(ctx, ids[0], detail, o)
			return feed, func(t *cli.Table) {
				feedRows(t, ids[0], feed.Unread)
				if detail {
					t.Gap()
					t.Row("FOLLOWEE", "UNREAD")
				}
				for _, id := range slices.SortedFunc(maps.Keys(feed.Followees), client.ID.Compare) {
					t.Row(id, feed.Followees[id])
				}
			}, err
		})
	cmd.Flags().BoolVar(&detail, "detail", false, "print the number of each followee too")
	return cmd
}

// followeesOutput is the JSON output of "feed followees".
type followeesOutput struct {
	User      client.ID   `json:"user"`
	Followees []client.ID `json:"followees"`
}

func feedRows(t *cli.Table, user client.ID, unread int64) {
	t.Row("USER", "UNREAD")
	t.Row(user, unread)
}

func feedResetCommand(c *cli.CLI) *cobra.Command {
	var nobody bool
	var upTo string
	cmd := writeCommand(c, "reset USER [FOLLOWEE…]", "Mark all posts of these followees, or of all that the user has, as seen", "the feed was reset",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
			if nobody && len(ids) > 1 {
				return nil, nil, cli.Usagef("feed reset takes followees or --nobody, not both")
			}
			if upTo != "" {
				seen, err := parseID("post", upTo)
				if err == nil {
					err = cli.TakesIDs(ctx, server, "posts", "post", seen)
				}
				if err != nil || nobody || len(ids) > 1 {
					return nil, nil, cmp.Or(err, cli.Usagef("feed reset takes followees, --nobody or --up-to"))
				}
				answer, err := server.Feeds().ResetUpTo(ctx, ids[0], seen, o)
				return answer, func(t *cli.Table) { feedRows(t, ids[0], answer.Unread) }, err
			}
			followees := []client.ID(nil)
			if nobody || len(ids) > 1 {
				followees = append([]client.ID{}, ids[1:]...)
			}
			answer, err := server.Feeds().Reset(ctx, ids[0], followees, o)
			return answer, func(t *cli.Table) { feedRows(t, ids[0], answer.Unread) }, err
		})
	cmd.Flags().BoolVar(&nobody, "nobody", false, "remove all followees")
	cmd.Flags().StringVar(&upTo, "up-to", "", "id of the newest post that the user has seen: newer ones stay unread")
	return cmd
}

func feedChangeCommand(c *cli.CLI, verb, short, what string,
	change func(client.Feeds, context.Context, client.ID, []client.ID, client.WriteOptions) (client.FeedResult, error)) *cobra.Command {
	return writeCommand(c, verb+" USER FOLLOWEE…", short, what,
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
			answer, err := change(server.Feeds(), ctx, ids[0], ids[1:], o)
			return answer, func(t *cli.Table) { feedRows(t, ids[0], answer.Unread) }, err
		})
}
