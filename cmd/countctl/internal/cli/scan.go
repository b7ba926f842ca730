package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
)

// Scan calls visit with each page of a keyspace, in ascending order of id. The pages do not include
// rows without counts. A row that changes meanwhile appears as it was when its page was read.
func Scan(ctx context.Context, server *client.Client, keyspace string, columns []string, o client.ReadOptions, visit func(client.Page) error) error {
	var after *client.ID
	for {
		page, err := server.Scan(ctx, keyspace, after, client.ScanRowsMax, columns, o)
		if err != nil {
			return fmt.Errorf("cannot scan %s: %w", keyspace, err)
		}
		if err := checkOrder(after, page); err != nil {
			return err
		}
		if err := visit(page); err != nil {
			return err
		}
		if page.Next == nil {
			return nil
		}
		after = page.Next
	}
}

// checkOrder returns an error for a page that is out of order. Such a page could repeat rows, or
// make Scan loop forever.
func checkOrder(after *client.ID, page client.Page) error {
	ordered := slices.IsSortedFunc(page.Rows, func(a, b client.Row) int {
		if a.ID < b.ID {
			return -1
		}
		return 1 // equal ids are out of order too
	})
	if n := len(page.Rows); n > 0 {
		ordered = ordered && (after == nil || page.Rows[0].ID > *after) &&
			(page.Next == nil || *page.Next >= page.Rows[n-1].ID)
	} else if page.Next != nil {
		ordered = ordered && (after == nil || *page.Next > *after)
	}
	if !ordered {
		return fmt.Errorf("the server's page after id %v is out of order", after)
	}
	return nil
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
