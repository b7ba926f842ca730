package data

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
)

func timelineCommand(c *cli.CLI) *cobra.Command {
	var q client.PostQuery
	cmd := readCommand(c, "timeline USER", "Print a page of posts of a user's followees, newest first",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			page, err := server.Timeline(ctx, ids[0], q, o)
			return page, func(t *cli.Table) { timelineRows(t, page) }, err
		})
	pageFlags(cmd.Flags(), &q)
	cmd.Flags().StringVar(&q.Group, "group", "", "only followees of this group")
	cmd.Flags().StringVar(&q.Counts, "counts", "", "keyspace of counts of the posts")
	cmd.Flags().StringSliceVar(&q.Member, "member", nil, "columns for which to print whether the user is a member")
	return cmd
}

func pageFlags(flags *pflag.FlagSet, q *client.PostQuery) {
	cli.LimitFlag(flags, &q.Limit, "posts of the page, `N` from 1 to 1000 (default 20)")
	flags.StringVar(&q.Cursor, "cursor", "", "cursor of the previous page")
}

func timelineRows(t *cli.Table, page client.PostPage) {
	var columns client.Counts
	var sets []string
	for _, p := range page.Posts {
		columns, sets = p.Counts, slices.Sorted(maps.Keys(p.Member))
	}
	head := []any{"POST", "AUTHOR"}
	for _, column := range columns {
		head = append(head, column.Column)
	}
	for _, name := range sets {
		head = append(head, "in "+name)
	}
	t.Row(head...)
	for _, p := range page.Posts {
		row := []any{p.ID, p.Author}
		for _, column := range columns {
			value, _ := p.Counts.Get(column.Column)
			row = append(row, value)
		}
		for _, name := range sets {
			row = append(row, p.Member[name])
		}
		t.Row(row...)
	}
	pageRows(t, page)
}

// pageRows adds the lines after the posts of a page: the next cursor, and the shards that cannot be
// read.
func pageRows(t *cli.Table, page client.PostPage) {
	moreRows(t, page.Cursor)
	if len(page.UnreadableShards) > 0 {
		t.Gap()
		t.Row("shards of users that cannot be read:", page.UnreadableShards)
	}
}

func outboxCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("outbox", "Publish, list and remove the posts of authors", outboxListCommand(c),
		outboxChangeCommand(c, "add", "Publish a post and count it", "the post was published", (*client.Client).AddPost),
		outboxChangeCommand(c, "remove", "Remove a post and take it from the count", "the post was removed", (*client.Client).RemovePost))
}

func outboxListCommand(c *cli.CLI) *cobra.Command {
	var q client.PostQuery
	cmd := readCommand(c, "list AUTHOR", "Print a page of an author's posts, newest first",
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.ReadOptions) (any, func(*cli.Table), error) {
			page, err := server.Outbox(ctx, ids[0], q, o)
			return page, func(t *cli.Table) {
				t.Row("POST")
				for _, p := range page.Posts {
					t.Row(p.ID)
				}
				pageRows(t, page)
			}, err
		})
	pageFlags(cmd.Flags(), &q)
	return cmd
}

func outboxChangeCommand(c *cli.CLI, verb, short, what string,
	change func(*client.Client, context.Context, client.ID, client.ID, client.WriteOptions) (client.PostResult, error)) *cobra.Command {
	return writeCommand(c, verb+" AUTHOR POST", short, what,
		func(ctx context.Context, server *client.Client, args []string, ids []client.ID, o client.WriteOptions) (any, func(*cli.Table), error) {
			answer, err := change(server, ctx, ids[0], ids[1], o)
			return answer, func(t *cli.Table) {
				t.Row("AUTHOR", "CHANGED", "POSTS")
				t.Row(ids[0], answer.Changed, answer.Posts)
			}, err
		})
}
