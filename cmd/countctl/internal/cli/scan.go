package cli

import (
	"context"
	"fmt"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
)

// Scan calls visit with each page of a keyspace, in the order of client.Scan. The pages do not include
// rows without counts. A row that changes meanwhile appears as it was when its page was read.
func Scan(ctx context.Context, server *client.Client, keyspace string, columns []string, o client.ReadOptions, visit func(client.Page) error) error {
	cursor := ""
	for {
		page, err := server.Scan(ctx, keyspace, cursor, client.ScanRowsMax, columns, o)
		if err != nil {
			return fmt.Errorf("cannot scan %s: %w", keyspace, err)
		}
		if err := visit(page); err != nil {
			return err
		}
		if page.Cursor == "" {
			return nil
		}
		if page.Cursor == cursor {
			return fmt.Errorf("cannot scan %s: the server answered the cursor %s again", keyspace, cursor)
		}
		cursor = page.Cursor
	}
}

// RowsOf returns the approximate number of rows of a keyspace, as counted by the leaders of its
// shards. It fails if the leader of any shard does not answer.
func RowsOf(ctx context.Context, server *client.Client, keyspace string) (int64, error) {
	groups, err := admin.New(server).ClusterGroups(ctx)
	if err != nil {
		return 0, fmt.Errorf("cannot count the rows of %s: %w", keyspace, err)
	}
	rows, shards := uint64(0), 0
	for _, g := range groups {
		if g.Keyspace != keyspace {
			continue
		}
		if g.Leader == "" {
			return 0, fmt.Errorf("cannot count the rows of %s: no leader of %s answers", keyspace, GroupName(g))
		}
		rows += g.Rows
		shards++
	}
	if shards == 0 {
		return 0, fmt.Errorf("cannot count the rows of %s: the cluster has no shards for it", keyspace)
	}
	return int64(rows), nil
}

// ProgressTotal returns the result of RowsOf as the total of a progress display. If RowsOf fails,
// ProgressTotal prints the reason and returns 0.
func (c *CLI) ProgressTotal(ctx context.Context, server *client.Client, keyspace string) int64 {
	rows, err := RowsOf(ctx, server, keyspace)
	if err != nil {
		fmt.Fprintf(c.Err, "progress is without a total: %v\n", err)
	}
	return rows
}
