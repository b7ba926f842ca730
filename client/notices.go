package client

import (
	"context"
	"net/http"
	"strconv"
)

// Channel is a numbered list of notices for all users.
type Channel struct {
	Name      string `json:"name"`
	Latest    int64  `json:"latest"`
	Retracted int64  `json:"retracted"`
}

// Published is a notice's number.
type Published struct {
	Seq int64 `json:"seq"`
	Written
}

// Notices is a user's position in a channel.
type Notices struct {
	Unread   int64  `json:"unread"`
	LastRead *int64 `json:"last_read"` // nil for a user that the channel does not know
	Latest   int64  `json:"latest"`
}

// NoticesRead is a user's position after a write.
type NoticesRead struct {
	Notices
	Written
}

// Channels has the calls for channels and their notices.
type Channels struct{ c *Client }

// Channels returns the calls for channels.
func (c *Client) Channels() Channels { return Channels{c} }

// List lists the channels by name.
func (n Channels) List(ctx context.Context, o ReadOptions) ([]Channel, error) {
	return AskMember[[]Channel](ctx, n.c, o.get("/v1/notices", nil), "channels")
}

// Publish adds a notice to a channel, for all users. The first notice creates the channel.
func (n Channels) Publish(ctx context.Context, channel string, o WriteOptions) (Published, error) {
	return writeAt[Published](ctx, n.c, http.MethodPost, namePath("notices", channel), nil, o)
}

// Retract withdraws a notice.
func (n Channels) Retract(ctx context.Context, channel string, seq int64, o WriteOptions) (Published, error) {
	return writeAt[Published](ctx, n.c, http.MethodDelete, namePath("notices", channel)+"/"+strconv.FormatInt(seq, 10), nil, o)
}

// Notices reads a user's position in a channel. If since is not nil, a user that the channel
// does not know starts after the notice with that number.
func (n Channels) Notices(ctx context.Context, channel string, user ID, since *int64, o ReadOptions) (Notices, error) {
	return readAt[Notices](ctx, n.c, userPath("notices", channel, user), numberQuery("since", since), o)
}

// Read moves a user's position forward to a notice, or to the latest if upTo is nil. It never moves
// the position back.
func (n Channels) Read(ctx context.Context, channel string, user ID, upTo *int64, o WriteOptions) (NoticesRead, error) {
	return n.move(ctx, channel, user, "up_to", upTo, o)
}

// Begin sets the start position of a user that the channel does not know yet.
func (n Channels) Begin(ctx context.Context, channel string, user ID, since int64, o WriteOptions) (NoticesRead, error) {
	return n.move(ctx, channel, user, "since", &since, o)
}

func (n Channels) move(ctx context.Context, channel string, user ID, how string, seq *int64, o WriteOptions) (NoticesRead, error) {
	var body any
	if seq != nil {
		body = map[string]int64{how: *seq}
	}
	return writeAt[NoticesRead](ctx, n.c, http.MethodPost, userPath("notices", channel, user)+"/read", body, o)
}

// Dot is a red dot for all users.
type Dot struct {
	Name     string `json:"name"`
	Fired    int64  `json:"fired"`
	NewUsers bool   `json:"new_users"` // whether users for whom the dot has no record see it
}

// Fired is how often a dot was fired.
type Fired struct {
	Fired int64 `json:"fired"`
	Written
}

// Dots has the calls for dots.
type Dots struct{ c *Client }

// Dots returns the calls for dots.
func (c *Client) Dots() Dots { return Dots{c} }

// List lists the dots by name.
func (d Dots) List(ctx context.Context, o ReadOptions) ([]Dot, error) {
	return AskMember[[]Dot](ctx, d.c, o.get("/v1/dots", nil), "dots")
}

// Fire shows a dot to all users. The first call creates the dot.
func (d Dots) Fire(ctx context.Context, dot string, o WriteOptions) (Fired, error) {
	return writeAt[Fired](ctx, d.c, http.MethodPost, namePath("dots", dot)+"/fire", nil, o)
}

// Set sets whether users for whom a dot has no record see it. If necessary, Set creates the dot.
func (d Dots) Set(ctx context.Context, dot string, newUsers bool, o WriteOptions) (Fired, error) {
	return writeAt[Fired](ctx, d.c, http.MethodPut, namePath("dots", dot), map[string]bool{"new_users": newUsers}, o)
}

// Shows reports whether a user sees a dot.
func (d Dots) Shows(ctx context.Context, dot string, user ID, o ReadOptions) (bool, error) {
	return AskMember[bool](ctx, d.c, o.get(userPath("dots", dot, user), nil), "show")
}

// Shown reports whether a user sees a dot after a write.
type Shown struct {
	Show bool `json:"show"`
	Written
}

// Clear hides a dot from a user until it is fired again.
func (d Dots) Clear(ctx context.Context, dot string, user ID, o WriteOptions) (Shown, error) {
	return writeAt[Shown](ctx, d.c, http.MethodPost, userPath("dots", dot, user)+"/clear", nil, o)
}
