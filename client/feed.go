package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// Feed is how many posts a user has not seen.
type Feed struct {
	Unread    int64        `json:"unread"`
	Followees map[ID]int64 `json:"followees,omitempty"` // of every followee, if asked for
}

// FeedResult is what is unread behind a write.
type FeedResult struct {
	Unread int64 `json:"unread"`
	Written
}

// Feed reads how many posts a user has not seen, of each followee too with detail.
func (c *Client) Feed(ctx context.Context, user ID, detail bool, o ReadOptions) (Feed, error) {
	query := url.Values{}
	if detail {
		query.Set("detail", "true")
	}
	var answer Feed
	err := c.readUnread(ctx, feedPath(user, "unread"), query, o, &answer)
	return answer, err
}

// Followees lists up to limit of those that a user follows, ascending; 0 leaves the limit
// to the server. cursor is "" for the first page, and what the page before returned for
// others; the last returns "".
func (c *Client) Followees(ctx context.Context, user ID, cursor string, limit int, o ReadOptions) (followees []ID, next string, err error) {
	query := url.Values{}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var answer struct {
		Followees []ID   `json:"followees"`
		Cursor    string `json:"cursor"`
	}
	err = c.readUnread(ctx, feedPath(user, "followees"), query, o, &answer)
	return answer.Followees, answer.Cursor, err
}

// ResetFeed has a user have seen all posts of these followees, up to FolloweesMax,
// and follow no others. nil stands for those that the user follows.
func (c *Client) ResetFeed(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	if followees == nil {
		return c.changeFeed(ctx, user, "reset", nil, o)
	}
	return c.changeFeed(ctx, user, "reset", followeesOf(followees), o)
}

// Follow adds followees, of whom nothing is unread.
func (c *Client) Follow(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return c.changeFeed(ctx, user, "follow", followeesOf(followees), o)
}

// Unfollow takes followees away with what is unread of them.
func (c *Client) Unfollow(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return c.changeFeed(ctx, user, "unfollow", followeesOf(followees), o)
}

// ReadFeed has a user have seen all posts of some followees.
func (c *Client) ReadFeed(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return c.changeFeed(ctx, user, "read", followeesOf(followees), o)
}

func (c *Client) changeFeed(ctx context.Context, user ID, verb string, body any, o WriteOptions) (FeedResult, error) {
	var answer FeedResult
	err := c.writeUnread(ctx, http.MethodPost, feedPath(user, verb), body, o, &answer)
	return answer, err
}

func followeesOf(ids []ID) map[string][]ID {
	if ids == nil {
		ids = []ID{}
	}
	return map[string][]ID{"followees": ids}
}

func feedPath(user ID, verb string) string { return "/v1/feed/" + user.String() + "/" + verb }
