package client

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// RankingMax bounds the rows of Hot and Top.
const RankingMax = 1000

// Hot is the list of the rows whose counts of a column gained most in a window, largest gain first.
// Adds, members and messages of sources count as gains; values that were set do not.
type Hot struct {
	Window string    `json:"window"`
	Since  time.Time `json:"since"` // start of the gains: the start of the window, or up to a bucket earlier
	// OthersAtMost bounds the gain of each row that is not in Results.
	OthersAtMost int64    `json:"others_at_most"`
	Results      []HotRow `json:"results"`
}

// HotRow is a row with a gain. The true gain is within Error of Gained.
type HotRow struct {
	ID     ID     `json:"id"`
	Gained int64  `json:"gained"`
	Error  int64  `json:"error"`
	Counts Counts `json:"counts"`
}

// Hot reads which rows gained most in a column. window is 1m, 1h or 24h, or "" for 1h. With limit 0, the server
// uses its default.
func (c *Client) Hot(ctx context.Context, keyspace, column, window string, limit int, o ReadOptions) (Hot, error) {
	query := url.Values{}
	if window != "" {
		query.Set("window", window)
	}
	return readAt[Hot](ctx, c, rankingPath("hot", keyspace, column), limited(query, limit), o)
}

// Top reads the rows with the largest counts of a column. The counts are exact; counts below 1 are
// left out. The first call for a column reads all rows. If that takes too long, Top fails with
// not_ready, and a later call succeeds.
func (c *Client) Top(ctx context.Context, keyspace, column string, limit int, o ReadOptions) ([]Row, error) {
	page, err := readAt[struct {
		Results []Row `json:"results"`
	}](ctx, c, rankingPath("top", keyspace, column), limited(url.Values{}, limit), o)
	return page.Results, err
}

func rankingPath(call, keyspace, column string) string {
	return "/v1/" + call + "/" + url.PathEscape(keyspace) + "/" + url.PathEscape(column)
}

func limited(query url.Values, limit int) url.Values {
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return query
}
