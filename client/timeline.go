package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"
)

// PostResult is the result of a write of one post.
type PostResult struct {
	// Changed is false for a repeat of the request, for an added post that was already there,
	// and for a removed post that was not there.
	Changed bool  `json:"changed"`
	Posts   int64 `json:"posts"` // number of posts of the author after the write
	Written
}

// AddPost adds a post to the outbox of an author and counts it in the author's posts.
func (c *Client) AddPost(ctx context.Context, author, post ID, o WriteOptions) (PostResult, error) {
	return writeAt[PostResult](ctx, c, http.MethodPost, "/v1/outbox/"+author.path(), map[string]ID{"id": post}, o)
}

// RemovePost removes a post from the outbox of an author and from the author's posts.
func (c *Client) RemovePost(ctx context.Context, author, post ID, o WriteOptions) (PostResult, error) {
	return writeAt[PostResult](ctx, c, http.MethodDelete, "/v1/outbox/"+author.path()+"/"+post.path(), nil, o)
}

// Post is a post on a page.
type Post struct {
	ID     ID              `json:"id"`
	Author ID              `json:"author"`
	Counts Counts          `json:"counts,omitempty"` // set if the query names a keyspace
	Member map[string]bool `json:"member,omitempty"` // by column; set if the query names columns
}

// PostPage is a page of posts, newest first.
type PostPage struct {
	Posts  []Post `json:"posts"`
	Cursor string `json:"cursor,omitempty"` // cursor of the next page; "" on the last page
	// UnreadableShards are the shards of authors whose posts are missing.
	UnreadableShards []int `json:"unreadable_shards,omitempty"`
}

// PostQuery selects a page of posts.
type PostQuery struct {
	Limit  int    // 0 lets the server choose
	Cursor string // the previous page's Cursor; "" for the first page
	// Group and Counts are for a timeline. Group limits it to the followees of that group; ""
	// means all. Counts names the keyspace of the posts' counts; "" means no counts.
	Group, Counts string
	// Member names columns. For each, the answer reports whether the user is in the set of
	// members. The columns belong to the keyspace Counts or, if Counts is "", to posts.
	Member []string
}

func (q *PostQuery) values() url.Values {
	values := pageQuery(q.Cursor, q.Limit)
	for name, value := range map[string]string{"group": q.Group, "counts": q.Counts, "member": strings.Join(q.Member, ",")} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values
}

// Outbox reads posts of an author.
func (c *Client) Outbox(ctx context.Context, author ID, q PostQuery, o ReadOptions) (PostPage, error) {
	answer, err := readAt[PostPage](ctx, c, "/v1/outbox/"+author.path(), q.values(), o)
	for i := range answer.Posts {
		answer.Posts[i].Author = author
	}
	return answer, err
}

// Timeline reads posts of a user's followees.
func (c *Client) Timeline(ctx context.Context, user ID, q PostQuery, o ReadOptions) (PostPage, error) {
	return readAt[PostPage](ctx, c, "/v1/timeline/"+user.path(), q.values(), o)
}
