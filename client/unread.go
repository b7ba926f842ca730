package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Bounds of the API of unread numbers.
const (
	FolloweesMax = 5000 // followees of one user
	PollUsersMax = 100  // users of one PollMany
)

// Written holds what the answer to every write contains.
type Written struct {
	Duplicate bool   `json:"duplicate"` // an earlier try applied the write; the other fields are as of now
	Token     string `json:"token"`     // a read that sends this token sees the write
}

// UserCounts are the counters of a user. A user that was never written has zeros.
type UserCounts struct {
	User   ID     `json:"user"`
	Counts Counts `json:"counts"`
}

// ResetResult holds the counts after a reset, and the counts that the reset cleared. For a repeated
// request Cleared is zero, because only the first answer reports it.
type ResetResult struct {
	UserCounts
	Cleared Counts `json:"cleared"`
	Written
}

// Unread reads a user's own unread numbers, without notices, dots and the feed.
func (c *Client) Unread(ctx context.Context, user ID, o ReadOptions) (UserCounts, error) {
	return readAt[UserCounts](ctx, c, "/v1/unread/"+user.path(), nil, o)
}

// IncrUnread is like IncrMany, but for users' own unread numbers. The ID of each op and result is
// the id of a user.
func (c *Client) IncrUnread(ctx context.Context, ops []Op, o WriteOptions) (WriteResult, error) {
	return c.write(ctx, c.retry, "/v1/unread/incr", appendOps(nil, "user", "add", ops, !o.Quiet), o)
}

// ResetUnread sets columns of a user to zero, whatever their counts are.
func (c *Client) ResetUnread(ctx context.Context, user ID, columns []string, o WriteOptions) (ResetResult, error) {
	return c.resetUnread(ctx, user, map[string][]string{"columns": columns}, o)
}

// ResetSeen subtracts the counts that a user has seen, and keeps later increments. No count becomes
// negative.
func (c *Client) ResetSeen(ctx context.Context, user ID, seen Counts, o WriteOptions) (ResetResult, error) {
	return c.resetUnread(ctx, user, map[string]Counts{"seen": seen}, o)
}

func (c *Client) resetUnread(ctx context.Context, user ID, body any, o WriteOptions) (ResetResult, error) {
	return writeAt[ResetResult](ctx, c, http.MethodPost, "/v1/unread/"+user.path()+"/reset", body, o)
}

// Poll is everything that one user polls for.
type Poll struct {
	User    ID               `json:"user"`
	Unread  Counts           `json:"unread"`
	Notices map[string]int64 `json:"notices"` // number of unread notices, by channel
	Dots    map[string]bool  `json:"dots"`    // whether the user sees each dot
	Feed    int64            `json:"feed"`    // number of unread posts
}

// Poll reads a user's unread numbers, feed, and the given channels and dots.
func (c *Client) Poll(ctx context.Context, user ID, channels, dots []string, o ReadOptions) (Poll, error) {
	query := url.Values{}
	if len(channels) > 0 {
		query.Set("channels", strings.Join(channels, ","))
	}
	if len(dots) > 0 {
		query.Set("dots", strings.Join(dots, ","))
	}
	answer, err := readAt[Poll](ctx, c, "/v1/poll/"+user.path(), query, o)
	answer.User = user
	return answer, err
}

// PollMany is like Poll, but for up to PollUsersMax users, in their order, duplicates included.
func (c *Client) PollMany(ctx context.Context, users []ID, channels, dots []string, o ReadOptions) ([]Poll, error) {
	request := struct {
		Users    []ID     `json:"users"`
		Channels []string `json:"channels,omitempty"`
		Dots     []string `json:"dots,omitempty"`
	}{users, channels, dots}
	return AskMember[[]Poll](ctx, c, o.post("/v1/poll", request), "results")
}

func namePath(kind, name string) string { return "/v1/" + kind + "/" + url.PathEscape(name) }

func userPath(kind, name string, user ID) string {
	return namePath(kind, name) + "/users/" + user.path()
}

// numberQuery returns a query with the number n, or nil if n is nil.
func numberQuery(name string, n *int64) url.Values {
	if n == nil {
		return nil
	}
	return url.Values{name: {strconv.FormatInt(*n, 10)}}
}
