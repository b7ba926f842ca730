package client

import (
	"context"
	"net/http"
	"net/url"
)

// Feed is the number of posts that a user has not seen.
type Feed struct {
	Unread    int64        `json:"unread"`
	Followees map[ID]int64 `json:"followees,omitempty"` // number of unread posts of each followee; nil unless requested
}

// FeedResult is the result of a write to a feed. It holds the user's number of unread posts after
// the write.
type FeedResult struct {
	Unread int64 `json:"unread"`
	Written
}

// FolloweeGroup is a named list of followees.
type FolloweeGroup struct {
	Name      string `json:"name"`
	Followees int    `json:"followees"` // how many
}

// GroupResult is a group after a write.
type GroupResult struct {
	Followees int `json:"followees"`
	Written
}

// Feeds has the calls for followees, their groups and unread posts. The first argument of each call
// is the user.
type Feeds struct{ c *Client }

// Feeds returns the calls for feeds.
func (c *Client) Feeds() Feeds { return Feeds{c} }

// Unread reads the number of posts that a user has not seen. If detail is set, it also reads the
// number for each followee.
func (f Feeds) Unread(ctx context.Context, user ID, detail bool, o ReadOptions) (Feed, error) {
	query := url.Values{}
	if detail {
		query.Set("detail", "true")
	}
	return readAt[Feed](ctx, f.c, feedPath(user, "unread"), query, o)
}

// Followees returns up to limit of the followees of a user, ascending; with limit 0 the server
// chooses. cursor is "" for the first page, and the previous page's next cursor for later pages.
// The last page returns "".
func (f Feeds) Followees(ctx context.Context, user ID, cursor string, limit int, o ReadOptions) (followees []ID, next string, err error) {
	answer, err := readAt[struct {
		Followees []ID   `json:"followees"`
		Cursor    string `json:"cursor"`
	}](ctx, f.c, feedPath(user, "followees"), pageQuery(cursor, limit), o)
	return answer.Followees, answer.Cursor, err
}

// Reset makes these followees, at most FolloweesMax, the user's only followees and marks all their
// posts as seen. If followees is nil, Reset keeps the current followees.
func (f Feeds) Reset(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	if followees == nil {
		return f.change(ctx, user, "reset", nil, o)
	}
	return f.change(ctx, user, "reset", followeesOf(followees), o)
}

// ResetUpTo marks the posts of the current followees as seen, up to and including the id
// upTo. Posts with higher ids stay unread, so a caller that showed a page passes the highest id
// of the page.
func (f Feeds) ResetUpTo(ctx context.Context, user, upTo ID, o WriteOptions) (FeedResult, error) {
	return f.change(ctx, user, "reset", map[string]ID{"up_to": upTo}, o)
}

// Follow adds followees. Their earlier posts count as seen.
func (f Feeds) Follow(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return f.change(ctx, user, "follow", followeesOf(followees), o)
}

// Unfollow removes followees and their unread posts.
func (f Feeds) Unfollow(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return f.change(ctx, user, "unfollow", followeesOf(followees), o)
}

// Read marks all posts of some followees as seen.
func (f Feeds) Read(ctx context.Context, user ID, followees []ID, o WriteOptions) (FeedResult, error) {
	return f.change(ctx, user, "read", followeesOf(followees), o)
}

func (f Feeds) change(ctx context.Context, user ID, verb string, body any, o WriteOptions) (FeedResult, error) {
	return writeAt[FeedResult](ctx, f.c, http.MethodPost, feedPath(user, verb), body, o)
}

// Groups lists the groups of a user by name.
func (f Feeds) Groups(ctx context.Context, user ID, o ReadOptions) ([]FolloweeGroup, error) {
	return AskMember[[]FolloweeGroup](ctx, f.c, o.get(feedPath(user, "groups"), nil), "groups")
}

// Group returns the followees of a group, ascending.
func (f Feeds) Group(ctx context.Context, user ID, name string, o ReadOptions) ([]ID, error) {
	return AskMember[[]ID](ctx, f.c, o.get(followeeGroupPath(user, name), nil), "followees")
}

// PutGroup makes a group of some of a user's followees, or replaces the group of that name.
func (f Feeds) PutGroup(ctx context.Context, user ID, name string, followees []ID, o WriteOptions) (GroupResult, error) {
	return writeAt[GroupResult](ctx, f.c, http.MethodPut, followeeGroupPath(user, name), followeesOf(followees), o)
}

// DropGroup removes a group. The followees stay followees.
func (f Feeds) DropGroup(ctx context.Context, user ID, name string, o WriteOptions) (GroupResult, error) {
	return writeAt[GroupResult](ctx, f.c, http.MethodDelete, followeeGroupPath(user, name), nil, o)
}

func followeeGroupPath(user ID, name string) string {
	return feedPath(user, "groups") + "/" + url.PathEscape(name)
}

func followeesOf(ids []ID) map[string][]ID {
	if ids == nil {
		ids = []ID{}
	}
	return map[string][]ID{"followees": ids}
}

func feedPath(user ID, verb string) string { return "/v1/feed/" + user.path() + "/" + verb }
