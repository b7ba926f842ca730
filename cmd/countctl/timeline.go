package main

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
)

func (c *cli) timelineCommand() *cobra.Command {
	var q client.PostQuery
	cmd := c.unreadRead("timeline USER", "Print a page of posts of a user's followees, newest first", exactly(1, "one USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			user, err := parseUser(args[0])
			if err != nil {
				return nil, nil, err
			}
			page, err := server.Timeline(ctx, user, q, o)
			return page, func(t *table) { t.timeline(page) }, err
		})
	pageFlags(cmd.Flags(), &q)
	cmd.Flags().StringVar(&q.Group, "group", "", "only followees of this group")
	cmd.Flags().StringVar(&q.Counts, "counts", "", "keyspace of counts of the posts")
	cmd.Flags().StringSliceVar(&q.Member, "member", nil, "columns in whose sets of members the user may be")
	return cmd
}

func pageFlags(flags *pflag.FlagSet, q *client.PostQuery) {
	flags.IntVar(&q.Limit, "limit", 0, "posts of the page, 1 to 1000 (default 20)")
	flags.StringVar(&q.Cursor, "cursor", "", "cursor of the previous page")
}

func (t *table) timeline(page client.PostPage) {
	var columns []string
	var sets []string
	for _, p := range page.Posts {
		columns, sets = slices.Sorted(maps.Keys(p.Counts)), slices.Sorted(maps.Keys(p.Member))
	}
	head := []any{"POST", "AUTHOR"}
	for _, name := range columns {
		head = append(head, name)
	}
	for _, name := range sets {
		head = append(head, "in "+name)
	}
	t.row(head...)
	for _, p := range page.Posts {
		row := []any{p.ID, p.Author}
		for _, name := range columns {
			row = append(row, p.Counts[name])
		}
		for _, name := range sets {
			row = append(row, p.Member[name])
		}
		t.row(row...)
	}
	t.page(page)
}

// page prints what follows the posts of a page.
func (t *table) page(page client.PostPage) {
	if page.Cursor != "" {
		t.gap()
		t.row("next page: --cursor " + page.Cursor)
	}
	if len(page.UnreadableShards) > 0 {
		t.gap()
		t.row("shards of users that cannot be read:", page.UnreadableShards)
	}
}

func (c *cli) outboxCommand() *cobra.Command {
	return commandGroup("outbox", "Posts of authors", c.outboxListCommand(),
		c.outboxChangeCommand("add", "Publish a post and count it", "the post was published", (*client.Client).AddPost),
		c.outboxChangeCommand("remove", "Remove a post and take it from the count", "the post was removed", (*client.Client).RemovePost))
}

func (c *cli) outboxListCommand() *cobra.Command {
	var q client.PostQuery
	cmd := c.unreadRead("list AUTHOR", "Print a page of an author's posts, newest first", exactly(1, "one AUTHOR"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			author, err := parseUser(args[0])
			if err != nil {
				return nil, nil, err
			}
			page, err := server.Outbox(ctx, author, q, o)
			return page, func(t *table) {
				t.row("POST")
				for _, p := range page.Posts {
					t.row(p.ID)
				}
				t.page(page)
			}, err
		})
	pageFlags(cmd.Flags(), &q)
	return cmd
}

func (c *cli) outboxChangeCommand(verb, short, what string,
	change func(*client.Client, context.Context, client.ID, client.ID, client.WriteOptions) (client.PostResult, error)) *cobra.Command {
	return c.unreadWrite(verb+" AUTHOR POST", short, what, exactly(2, "AUTHOR and POST"),
		func(ctx context.Context, server *client.Client, args []string, o client.WriteOptions) (any, func(*table), error) {
			ids, err := parseUsers(args)
			if err != nil {
				return nil, nil, err
			}
			answer, err := change(server, ctx, ids[0], ids[1], o)
			return answer, func(t *table) {
				t.row("AUTHOR", "CHANGED", "POSTS")
				t.row(ids[0], answer.Changed, answer.Posts)
			}, err
		})
}

// followeeGroupsOutput is the JSON output of feed groups.
type followeeGroupsOutput struct {
	Groups []client.FolloweeGroup `json:"groups"`
}

func (c *cli) feedGroupsCommand() *cobra.Command {
	return c.unreadRead("groups USER", "List the groups of a user's followees", exactly(1, "one USER"),
		func(ctx context.Context, server *client.Client, args []string, o client.ReadOptions) (any, func(*table), error) {
			user, err := parseUser(args[0])
			if err != nil {
				return nil, nil, err
			}
			groups, err := server.FolloweeGroups(ctx, user, o)
			return followeeGroupsOutput{groups}, func(t *table) {
				t.row("GROUP", "FOLLOWEES")
				for _, g := range groups {
					t.row(g.Name, g.Followees)
				}
			}, err
		})
}
