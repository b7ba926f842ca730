package client

import (
	"context"
	"net/url"
	"time"
)

// Bounds of the API. Callers split larger requests.
const (
	GetIDsMax   = 1000   // ids of one GetMany
	WriteOpsMax = 10_000 // ops of one Incr or Set
	ScanRowsMax = 10_000 // rows of one Scan
)

// Row is one row and its counts. A row that was never written has zeros.
type Row struct {
	ID     ID     `json:"id"`
	Counts Counts `json:"counts"`
	// Member reports, by column, whether the member of GetManyOf is in the set.
	Member map[string]bool `json:"member,omitempty"`
}

// ReadOptions set how fresh a read must be. The zero value is the server's default.
type ReadOptions struct {
	Consistency  string        // stale, bounded or linearizable; "" for the server's default
	MaxStaleness time.Duration // bound for bounded reads; 0 for the server's default
	Token        string        // token of a write that the read must see; "" for none
	// SkipUnreadable makes a stale Scan omit shards without a living replica instead of failing
	// with no_quorum. Page.Unreadable names the omitted shards.
	SkipUnreadable bool
}

// query returns Consistency and MaxStaleness as a URL query that begins with ?, or "" if neither is
// set.
func (o ReadOptions) query() string {
	values := url.Values{}
	if o.Consistency != "" {
		values.Set("consistency", o.Consistency)
	}
	if o.MaxStaleness != 0 {
		values.Set("max_staleness", o.MaxStaleness.String())
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

// Get reads one row.
func (c *Client) Get(ctx context.Context, keyspace string, id ID, o ReadOptions) (Row, error) {
	return readAt[Row](ctx, c, rowPath(keyspace, id), nil, o)
}

// GetMany reads up to GetIDsMax rows, in the order of ids, duplicates included. columns
// selects the columns; none means all.
func (c *Client) GetMany(ctx context.Context, keyspace string, ids []ID, columns []string, o ReadOptions) ([]Row, error) {
	return c.getMany(ctx, keyspace, nil, ids, columns, o)
}

func (c *Client) getMany(ctx context.Context, keyspace string, member *ID, ids []ID, columns []string, o ReadOptions) ([]Row, error) {
	request := struct {
		IDs     []ID     `json:"ids"`
		Columns []string `json:"columns,omitempty"`
		Member  *ID      `json:"member,omitempty"`
	}{ids, columns, member}
	return AskMember[[]Row](ctx, c, o.post(keyspacePath(keyspace)+"/get", request), "results")
}

// Page is one page of a scan.
type Page struct {
	Rows []Row `json:"results"`
	// Cursor is for the next page; "" on the last page.
	Cursor string `json:"cursor"`
	// Unreadable lists the shards whose rows are missing in the page; see
	// ReadOptions.SkipUnreadable.
	Unreadable []int `json:"unreadable_shards"`
}

// Scan reads up to limit rows that have a count: in ascending order of id or, if ids are texts, of their first writes.
// cursor is that of the previous page, or "" for the first page. columns selects the columns; none means all.
func (c *Client) Scan(ctx context.Context, keyspace, cursor string, limit int, columns []string, o ReadOptions) (Page, error) {
	request := struct {
		Cursor  string   `json:"cursor,omitempty"`
		Limit   int      `json:"limit"`
		Columns []string `json:"columns,omitempty"`
		Skip    bool     `json:"skip_unreadable,omitempty"`
	}{Cursor: cursor, Limit: limit, Columns: columns, Skip: o.SkipUnreadable}
	return Ask[Page](ctx, c, o.post(keyspacePath(keyspace)+"/scan", request))
}

func keyspacePath(keyspace string) string { return namePath("counters", keyspace) }

func rowPath(keyspace string, id ID) string { return keyspacePath(keyspace) + "/" + id.path() }
