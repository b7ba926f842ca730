package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// Bounds of the API that callers split their work by.
const (
	GetIDsMax   = 1000   // ids of one GetMany
	WriteOpsMax = 10_000 // ops of one Incr or Set
	ScanRowsMax = 10_000 // rows of one Scan
)

// Row is one row and its counts. A row that was never written has zeros.
type Row struct {
	ID     ID     `json:"id"`
	Counts Counts `json:"counts"`
}

// ReadOptions say how fresh a read must be. The zero value leaves it to the
// server.
type ReadOptions struct {
	Consistency  string        // stale, bounded or linearizable; "" for the server's default
	MaxStaleness time.Duration // of bounded; 0 for the server's default
	Token        string        // of a write that the read must see; "" for none
}

// query returns the options as a query, with its question mark.
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

// Op is one change of one row: what Incr adds to, or Set puts into, columns.
type Op struct {
	ID    ID
	Cells Counts
}

// OpResult is what one op came to: the row right after it, or why it alone was
// refused.
type OpResult struct {
	ID     ID       `json:"id"`
	Counts Counts   `json:"counts,omitempty"`
	Error  *OpError `json:"error,omitempty"`
}

// OpError says why one op of a request was refused.
type OpError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// WriteResult is the answer of a write.
type WriteResult struct {
	Results   []OpResult `json:"results,omitempty"` // in the order of the ops; none when not asked for
	Applied   int        `json:"applied,omitempty"` // ops applied, when results were not asked for
	Failed    int        `json:"failed,omitempty"`  // ops refused
	Duplicate bool       `json:"duplicate"`
	Token     string     `json:"token"` // a read that brings it sees the write
}

// Get reads one row.
func (c *Client) Get(ctx context.Context, keyspace string, id ID, o ReadOptions) (Row, error) {
	var row Row
	req := call{method: http.MethodGet, path: rowPath(keyspace, id) + o.query(), token: o.Token}
	err := c.do(ctx, req, &row)
	return row, err
}

// GetMany reads up to GetIDsMax rows, in the order asked, doubles kept; only
// the columns named, or all when none is.
func (c *Client) GetMany(ctx context.Context, keyspace string, ids []ID, columns []string, o ReadOptions) ([]Row, error) {
	body, err := json.Marshal(struct {
		IDs     []ID     `json:"ids"`
		Columns []string `json:"columns,omitempty"`
	}{ids, columns})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Results []Row `json:"results"`
	}
	err = c.do(ctx, call{http.MethodPost, keyspacePath(keyspace) + "/get" + o.query(), o.Token, body}, &answer)
	return answer.Results, err
}

// Incr adds to columns. ErrNoAnswer and a status of 504 leave it unknown
// whether it happened.
func (c *Client) Incr(ctx context.Context, keyspace string, ops []Op) (WriteResult, error) {
	return c.write(ctx, keyspacePath(keyspace)+"/incr", AppendOps(nil, "add", ops, true))
}

// Set makes columns equal to values; others stay. It may be repeated.
func (c *Client) Set(ctx context.Context, keyspace string, ops []Op) (WriteResult, error) {
	return c.write(ctx, keyspacePath(keyspace)+"/set", AppendOps(nil, "set", ops, true))
}

// SetQuietly is Set without results.
func (c *Client) SetQuietly(ctx context.Context, keyspace string, ops []Op) (WriteResult, error) {
	return c.write(ctx, keyspacePath(keyspace)+"/set", AppendOps(nil, "set", ops, false))
}

func (c *Client) write(ctx context.Context, path string, body []byte) (WriteResult, error) {
	var result WriteResult
	err := c.do(ctx, call{method: http.MethodPost, path: path, body: body}, &result)
	return result, err
}

// Delete makes every column of a row zero. It may be repeated.
func (c *Client) Delete(ctx context.Context, keyspace string, id ID) (Row, string, error) {
	var answer struct {
		Row
		Token string `json:"token"`
	}
	err := c.do(ctx, call{method: http.MethodDelete, path: rowPath(keyspace, id)}, &answer)
	return answer.Row, answer.Token, err
}

// Page is one page of a scan.
type Page struct {
	Rows []Row `json:"results"`
	Next *ID   `json:"next"` // what to go on after; nil at the end
}

// Scan reads up to limit rows that have a count, in ascending order of id,
// after an id or from the first when after is nil; only the columns named, or
// all when none is.
func (c *Client) Scan(ctx context.Context, keyspace string, after *ID, limit int, columns []string, o ReadOptions) (Page, error) {
	body, err := json.Marshal(struct {
		After   *ID      `json:"after,omitempty"`
		Limit   int      `json:"limit"`
		Columns []string `json:"columns,omitempty"`
	}{after, limit, columns})
	if err != nil {
		return Page{}, err
	}
	var page Page
	err = c.do(ctx, call{http.MethodPost, keyspacePath(keyspace) + "/scan" + o.query(), o.Token, body}, &page)
	return page, err
}

// AppendOps appends the JSON body of a write to dst: each op's cells under
// verb, "add" or "set". Without results the answer only counts the ops.
func AppendOps(dst []byte, verb string, ops []Op, results bool) []byte {
	dst = append(dst, '{')
	if !results {
		dst = append(dst, `"want":"none",`...)
	}
	dst = append(dst, `"ops":[`...)
	for i, op := range ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"id":`...)
		dst = op.ID.appendJSON(dst)
		dst = append(dst, `,"`...)
		dst = append(dst, verb...)
		dst = append(dst, `":`...)
		dst = op.Cells.appendJSON(dst)
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}

func keyspacePath(keyspace string) string { return "/v1/counters/" + url.PathEscape(keyspace) }

func rowPath(keyspace string, id ID) string { return keyspacePath(keyspace) + "/" + id.String() }
