package client

import (
	"context"
	"encoding/json"
	"fmt"
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
	Duplicate bool   `json:"duplicate"` // it had been applied before; the other fields are current
	Token     string `json:"token"`     // a read that brings it sees the write
}

// UserCounts are the counters of a user. A user that was never written has zeros.
type UserCounts struct {
	User   ID     `json:"user"`
	Counts Counts `json:"counts"`
}

// UserResult is the result of one op on a user: the counts right after it, or why it alone
// was refused.
type UserResult struct {
	UserCounts
	Added Counts   `json:"added,omitempty"` // as in OpResult
	Error *OpError `json:"error,omitempty"`
}

// UnreadResult is the answer of IncrUnread, as WriteResult.
type UnreadResult struct {
	Results []UserResult `json:"results,omitempty"`
	Applied int          `json:"applied,omitempty"`
	Failed  int          `json:"failed,omitempty"`
	Refused []UserResult `json:"errors,omitempty"`
	Written
}

// ResetResult holds the counts after a reset, and what the reset cleared. For a repeated
// request Cleared is zero, because only the first answer reports it.
type ResetResult struct {
	UserCounts
	Cleared Counts `json:"cleared"`
	Written
}

// Unread reads the one-to-one numbers of a user.
func (c *Client) Unread(ctx context.Context, user ID, o ReadOptions) (UserCounts, error) {
	var answer UserCounts
	err := c.readUnread(ctx, "/v1/unread/"+user.String(), nil, o, &answer)
	return answer, err
}

// IncrUnread adds to one-to-one numbers of users, which the ops' IDs are, as
// IncrMany does to rows.
func (c *Client) IncrUnread(ctx context.Context, ops []Op, o WriteOptions) (UnreadResult, error) {
	type op struct {
		User  ID     `json:"user"`
		Add   Counts `json:"add"`
		Floor *int64 `json:"floor,omitempty"`
	}
	body := struct {
		Ops  []op   `json:"ops"`
		Want string `json:"want,omitempty"`
	}{Ops: make([]op, len(ops))}
	for i := range ops {
		body.Ops[i] = op{ops[i].ID, ops[i].Cells, ops[i].Floor}
	}
	if o.Quiet {
		body.Want = "none"
	}
	var answer UnreadResult
	err := c.writeUnread(ctx, http.MethodPost, "/v1/unread/incr", body, o, &answer)
	return answer, err
}

// ResetUnread clears columns of a user, whatever is in them.
func (c *Client) ResetUnread(ctx context.Context, user ID, columns []string, o WriteOptions) (ResetResult, error) {
	return c.resetUnread(ctx, user, map[string][]string{"columns": columns}, o)
}

// ResetSeen subtracts the counts that a user was shown, and keeps later ones. No count
// becomes negative.
func (c *Client) ResetSeen(ctx context.Context, user ID, seen Counts, o WriteOptions) (ResetResult, error) {
	return c.resetUnread(ctx, user, map[string]Counts{"seen": seen}, o)
}

func (c *Client) resetUnread(ctx context.Context, user ID, body any, o WriteOptions) (ResetResult, error) {
	var answer ResetResult
	err := c.writeUnread(ctx, http.MethodPost, "/v1/unread/"+user.String()+"/reset", body, o, &answer)
	return answer, err
}

// Poll is all that one user polls for.
type Poll struct {
	User    ID               `json:"user"`
	Unread  Counts           `json:"unread"`
	Notices map[string]int64 `json:"notices"` // unread ones, by channel
	Dots    map[string]bool  `json:"dots"`    // whether each is shown
	Feed    int64            `json:"feed"`    // unread posts
}

// Poll reads all that a user polls for, of these channels and dots.
func (c *Client) Poll(ctx context.Context, user ID, channels, dots []string, o ReadOptions) (Poll, error) {
	query := url.Values{}
	if len(channels) > 0 {
		query.Set("channels", strings.Join(channels, ","))
	}
	if len(dots) > 0 {
		query.Set("dots", strings.Join(dots, ","))
	}
	answer := Poll{User: user}
	err := c.readUnread(ctx, "/v1/poll/"+user.String(), query, o, &answer)
	return answer, err
}

// PollMany is Poll for up to PollUsersMax users, in the order asked, doubles kept.
func (c *Client) PollMany(ctx context.Context, users []ID, channels, dots []string, o ReadOptions) ([]Poll, error) {
	body, err := json.Marshal(struct {
		Users    []ID     `json:"users"`
		Channels []string `json:"channels,omitempty"`
		Dots     []string `json:"dots,omitempty"`
	}{users, channels, dots})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Results []Poll `json:"results"`
	}
	err = c.do(ctx, call{method: http.MethodPost, path: "/v1/poll" + o.query(), token: o.Token, body: body}, &answer)
	return answer.Results, err
}

// readUnread reads a path of unread numbers with a query of its own.
func (c *Client) readUnread(ctx context.Context, path string, query url.Values, o ReadOptions, answer any) error {
	suffix := o.query()
	if len(query) > 0 {
		suffix = strings.Replace(suffix, "?", "&", 1)
		suffix = "?" + query.Encode() + suffix
	}
	return c.do(ctx, call{method: http.MethodGet, path: path + suffix, token: o.Token}, answer)
}

// writeUnread sends a write to a path of unread numbers. A nil body sends none.
func (c *Client) writeUnread(ctx context.Context, method, path string, body any, o WriteOptions, answer any) error {
	header, err := o.header()
	if err != nil {
		return err
	}
	req := call{method: method, path: path, write: true, once: o.Unkeyed || o.Once, header: header}
	if body != nil {
		if req.body, err = json.Marshal(body); err != nil {
			return fmt.Errorf("cannot encode the request: %w", err)
		}
	}
	return c.do(ctx, req, answer)
}

func namePath(kind, name string) string { return "/v1/" + kind + "/" + url.PathEscape(name) }

func userPath(kind, name string, user ID) string {
	return namePath(kind, name) + "/users/" + user.String()
}

// numberQuery returns a number as a query, or nil for no number.
func numberQuery(name string, n *int64) url.Values {
	if n == nil {
		return nil
	}
	return url.Values{name: {strconv.FormatInt(*n, 10)}}
}
