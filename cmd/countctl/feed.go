package main

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
)

func (c *cli) feedCommand() *cobra.Command {
	return commandGroup("feed", "New posts of a user's followees", c.feedGetCommand(), c.feedFolloweesCommand(), c.feedGroupsCommand(), c.feedResetCommand(),
		c.feedChangeCommand("follow", "Add followees, whose earlier posts count as seen", "the user follows them", (*client.Client).Follow),
		c.feedChangeCommand("unfollow", "Remove followees and their unread posts", "the user does not follow them any more", (*client.Client).Unfollow),
		c.feedChangeCommand("read", "Have a user seen all posts of some followees", "the user has seen them", (*client.Client).ReadFeed))
}

func (c *cli) feedGetCommand() *cobra.Command {
	var detail bool
	cmd := c.unreadRead("get USER", "Print the number of posts that a user has not seen", exactly(1, "one USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			user, err := parseUser(args[0])
			if err != nil {
				return nil, nil, err
			}
			feed, err := server.Feed(ctx, user, detail, o)
			return feed, func(t *table) {
				t.feed(user, feed.Unread)
				if detail {
					t.gap()
					t.row("FOLLOWEE", "UNREAD")
				}
				for _, id := range slices.Sorted(maps.Keys(feed.Followees)) {
					t.row(id, feed.Followees[id])
				}
			}, err
		})
	cmd.Flags().BoolVar(&detail, "detail", false, "of each followee too")
	return cmd
}

// followeesOutput is the JSON output of feed followees.
type followeesOutput struct {
	User      client.ID   `json:"user"`
	Followees []client.ID `json:"followees"`
}

func (c *cli) feedFolloweesCommand() *cobra.Command {
	return c.unreadRead("followees USER", "List the followees of a user", exactly(1, "one USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			user, err := parseUser(args[0])
			if err != nil {
				return nil, nil, err
			}
			out := followeesOutput{user, []client.ID{}}
			for cursor := ""; ; {
				page, next, err := server.Followees(ctx, user, cursor, 0, o)
				if err != nil {
					return nil, nil, err
				}
				out.Followees = append(out.Followees, page...)
				if cursor = next; cursor == "" {
					break
				}
			}
			return out, func(t *table) {
				t.row("FOLLOWEE")
				for _, id := range out.Followees {
					t.row(id)
				}
			}, nil
		})
}

func (t *table) feed(user client.ID, unread int64) {
	t.row("USER", "UNREAD")
	t.row(user, unread)
}

func (c *cli) feedResetCommand() *cobra.Command {
	var nobody bool
	cmd := c.unreadWrite("reset USER [FOLLOWEE…]", "Mark all posts of these followees, or of all that the user has, as seen", "the feed was reset", atLeast(1, "USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			users, err := parseUsers(args)
			if err != nil {
				return nil, nil, err
			}
			if nobody && len(users) > 1 {
				return nil, nil, usagef("feed reset takes followees or --nobody, not both")
			}
			followees := []client.ID(nil)
			if nobody || len(users) > 1 {
				followees = append([]client.ID{}, users[1:]...)
			}
			answer, err := server.ResetFeed(ctx, users[0], followees, o)
			return answer, func(t *table) { t.feed(users[0], answer.Unread) }, err
		})
	cmd.Flags().BoolVar(&nobody, "nobody", false, "remove all followees")
	return cmd
}

func (c *cli) feedChangeCommand(verb, short, what string,
	change func(*client.Client, context.Context, client.ID, []client.ID, client.WriteOptions) (client.FeedResult, error)) *cobra.Command {
	return c.unreadWrite(verb+" USER FOLLOWEE…", short, what, atLeast(2, "USER and one FOLLOWEE or more"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			users, err := parseUsers(args)
			if err != nil {
				return nil, nil, err
			}
			answer, err := change(server, ctx, users[0], users[1:], o)
			return answer, func(t *table) { t.feed(users[0], answer.Unread) }, err
		})
}
