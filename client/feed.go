package client

import (
	"context"
	"net/http"
	"net/url"
)

// Feed is the number of posts that a user has not seen.
type Feed struct {
	Unread    int64        `json:"unread"`
	Followees map[ID]int64 `json:"followees,omitempty"` // unread posts by followee, for every followee, if requested
}

// FeedResult holds the number of posts that a user has not seen after a write.
type FeedResult struct {
	Unread int64 `json:"unread"`
	Written
}

// Feed reads the number of posts that a user has not seen; with detail, also by followee.
func (c *Client) Feed(ctx context.Context, user ID, detail bool, o ReadOptions) (Feed, error) {
	query := url.Values{}
	if detail {
		query.Set("detail", "true")
	}
	return readAt[Feed](ctx, c, feedPath(user, "unread"), query, o)
}

// Followees returns up to limit of the followees of a user, ascending; with limit 0 the server
// chooses. cursor is "" for the first page, and the previous page's next cursor for later pages.
// The last page returns "".
func (c *Client) Followees(ctx context.Context, user ID, cursor string, limit int, o ReadOptions) (followees []ID, next string, err error) {
	answer, err := readAt[struct {
		Followees []ID   `json:"followees"`
		Cursor    string `json:"cursor"`
	}](ctx, c, feedPath(user, "followees"), pageQuery(cursor, limit), o)
	return answer.Followees, answer.Cursor, err
}

// ResetFeed marks all posts of these followees, up to FolloweesMax, as seen and makes them the
// user's only followees. nil keeps the current followees.
func (c *Client) ResetFeed(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	if followees == nil {
		return c.changeFeed(ctx, user, "reset", nil, o)
	}
	return c.changeFeed(ctx, user, "reset", followeesOf(followees), o)
}

// ResetFeedUpTo marks the posts of the current followees as seen, up to and including the id
// upTo. Posts with higher ids stay unread, so a caller that showed a page passes the highest id
// of the page.
func (c *Client) ResetFeedUpTo(ctx context.Context, user, upTo ID, o WriteOptions) (FeedResult, error) {
	return c.changeFeed(ctx, user, "reset", map[string]ID{"up_to": upTo}, o)
}

// Follow adds followees. Their earlier posts count as seen.
func (c *Client) Follow(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return c.changeFeed(ctx, user, "follow", followeesOf(followees), o)
}

// Unfollow removes followees and their unread posts.
func (c *Client) Unfollow(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return c.changeFeed(ctx, user, "unfollow", followeesOf(followees), o)
}

// ReadFeed marks all posts of some followees as seen.
func (c *Client) ReadFeed(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return c.changeFeed(ctx, user, "read", followeesOf(followees), o)
}

func (c *Client) changeFeed(ctx context.Context, user ID, verb string, body any, o WriteOptions) (FeedResult, error) {
	return writeAt[FeedResult](ctx, c, http.MethodPost, feedPath(user, verb), body, o)
}

func followeesOf(ids []ID) map[string][]ID {
	if ids == nil {
		ids = []ID{}
	}
	return map[string][]ID{"followees": ids}
}

func feedPath(user ID, verb string) string { return "/v1/feed/" + user.String() + "/" + verb }
