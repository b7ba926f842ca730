package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/google/uuid"
)

// Op is one change of one row: the deltas of an Incr, or the values of a Set.
type Op struct {
	ID    ID
	Cells Counts
	// If Floor is not nil, IncrMany lowers no count below the floor. A column that is already below
	// the floor keeps its count.
	Floor *int64
}

// Floor returns a floor for Op.Floor.
func Floor(n int64) *int64 { return &n }

// Delta returns the delta of a column for Incr.
func Delta(column string, n int64) Count { return Count{Column: column, Value: n} }

// OpResult is the result of one op: the row right after the op, or the reason for which only
// this op was refused.
type OpResult struct {
	ID     ID     `json:"id"`
	Counts Counts `json:"counts,omitempty"`
	// Added holds the applied deltas of the columns whose floor made the delta smaller than
	// requested. The answer to a repeat has none.
	Added          Counts   `json:"added,omitempty"`
	Error          *OpError `json:"error,omitempty"`
	*MemberOutcome          // nil unless the op has a member; the result then has no Counts
}

// OpError is the reason why one op of a request was refused.
type OpError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"` // path in the request, such as ops[3].add.like
}

// WriteResult is the answer of a write.
type WriteResult struct {
	Results []OpResult `json:"results,omitempty"` // in the order of the ops; empty if not requested
	Applied int        `json:"applied,omitempty"` // number of ops certainly applied, if results were not requested
	Failed  int        `json:"failed,omitempty"`  // number of refused ops
	Refused []OpResult `json:"errors,omitempty"`  // the refused ops, if results were not requested
	// Unknown holds, for a repeat, the ids of ops that the first try either applied or refused; the
	// server no longer knows which. They belong to a shard that refused some ops. Another repeat
	// does not resolve their outcome.
	Unknown []ID `json:"unknown,omitempty"`
	Written
}

// WriteOptions set how a write is sent. With the zero value, the write carries a new key, so that
// it counts once although the client retries it.
type WriteOptions struct {
	Quiet bool // the answer contains only the numbers of ops
	// Key is the Idempotency-Key, 1–128 bytes; "" for a new one. Set it if the caller itself may
	// repeat the same write, for example after a crash. The same key with other ops is refused.
	// After the server's --key-horizon, 10 minutes by default, the server refuses a key of NewKey
	// and treats any other key as new.
	Key string
	// Producer and Seq, instead of a key, number the writes of a stream: see Countd-Producer in the
	// API. Several numbers may be in flight, in any order, if none is 64 or more below the highest.
	Producer string // 1–64 bytes; "" for none
	Seq      uint64 // from 1; 0 with a Producer is refused before anything is sent
	// Once sends the write once. The caller may repeat it, with the same Key, or Producer
	// and Seq.
	Once bool
	// Unkeyed sends the write once and without a key. It is for absolute values that nobody
	// else changes, which the caller may repeat.
	Unkeyed bool
}

// KeyBytesMax bounds a key.
const KeyBytesMax = 128

// keyHeader is Idempotency-Key in lower case. If a request has the header under its canonical name,
// net/http repeats the request by itself when a connection breaks. The client might then report a
// write as not sent although the server received it.
const keyHeader = "idempotency-key"

// errBadOnce is returned for invalid WriteOptions, before anything is sent.
var errBadOnce = errors.New("a write takes one of Key, Producer with Seq from 1, and Unkeyed")

// header returns the headers by which a server recognises a repeat, or nil if o is Unkeyed.
func (o WriteOptions) header() (http.Header, error) {
	keyed, produced := o.Key != "", o.Producer != "" || o.Seq != 0
	switch {
	case keyed && produced, o.Unkeyed && (keyed || produced), produced && (o.Producer == "" || o.Seq == 0):
		return nil, errBadOnce
	case o.Unkeyed:
		return nil, nil
	case produced:
		return http.Header{"Countd-Producer": {o.Producer}, "Countd-Seq": {strconv.FormatUint(o.Seq, 10)}}, nil
	case keyed:
		return http.Header{keyHeader: {o.Key}}, nil
	}
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	return http.Header{keyHeader: {key}}, nil
}

// NewKey returns an Idempotency-Key that no other write has: a UUIDv7. The key contains the time at
// which it was made. So a server can refuse a write whose key is too old to be remembered, instead
// of counting the write twice.
func NewKey() (string, error) {
	key, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("cannot make a key: %w", err)
	}
	return key.String(), nil
}

// Incr adds to columns of one row, exactly once, and returns the row right after it:
//
//	row, err := c.Incr(ctx, "posts", id, client.Delta("like", 1))
func (c *Client) Incr(ctx context.Context, keyspace string, id ID, deltas ...Count) (WrittenRow, error) {
	result, err := c.IncrMany(ctx, keyspace, []Op{{ID: id, Cells: deltas}}, WriteOptions{})
	if err != nil {
		return WrittenRow{}, err
	}
	if len(result.Results) != 1 {
		return WrittenRow{}, fmt.Errorf("the server answered with %d results for one op", len(result.Results))
	}
	one := result.Results[0]
	return WrittenRow{Row{ID: one.ID, Counts: one.Counts}, result.Written}, nil
}

// IncrMany adds to columns, with up to WriteOpsMax ops, exactly once unless o sets Once or Unkeyed.
// If the sum of an op does not fit int64, the server refuses only this op, and the result names it.
// See WriteResult.Unknown for the case that an earlier try had no answer.
func (c *Client) IncrMany(ctx context.Context, keyspace string, ops []Op, o WriteOptions) (WriteResult, error) {
	return c.write(ctx, c.retry, keyspacePath(keyspace)+"/incr", AppendOps(nil, "add", ops, !o.Quiet), o)
}

// KeyspaceOp is one op of Ops.
type KeyspaceOp struct {
	Keyspace string `json:"keyspace"` // "unread" for unread numbers, where ID is the id of a user
	ID       ID     `json:"id"`
	Add      Counts `json:"add,omitempty"` // either Add or Set is present
	Set      Counts `json:"set,omitempty"` // for counters only
	Floor    *int64 `json:"floor,omitempty"`
	// If Member is not nil, the op makes a member join or leave the set of a column. Add and Set
	// are then unused.
	Member *KeyspaceMember `json:"-"`
}

// KeyspaceMember is the member of a KeyspaceOp.
type KeyspaceMember struct {
	Column string
	Member ID
	Leave  bool
}

// MarshalJSON writes the id of a user in the field user, and a member in the form of the API.
func (o KeyspaceOp) MarshalJSON() ([]byte, error) {
	type plain KeyspaceOp
	if o.Member != nil {
		return json.Marshal(struct {
			Keyspace string `json:"keyspace"`
			Column   string `json:"column"`
			ID       ID     `json:"id"`
			Member   ID     `json:"member"`
			Set      bool   `json:"set"`
		}{Keyspace: o.Keyspace, Column: o.Member.Column, ID: o.ID, Member: o.Member.Member, Set: !o.Member.Leave})
	}
	if o.Keyspace != unreadKeyspace {
		return json.Marshal(plain(o))
	}
	return json.Marshal(struct {
		User  ID     `json:"user"`
		Add   Counts `json:"add,omitempty"`
		Set   Counts `json:"set,omitempty"`
		Floor *int64 `json:"floor,omitempty"`
	}{User: o.ID, Add: o.Add, Set: o.Set, Floor: o.Floor})
}

const unreadKeyspace = "unread"

// UnmarshalJSON reads the result of a row or of a user. For a user, ID is the id of the user.
func (r *OpResult) UnmarshalJSON(text []byte) error {
	type plain OpResult
	var read struct {
		plain
		User *ID `json:"user"`
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	if *r = OpResult(read.plain); read.User != nil {
		r.ID = *read.User
	}
	return nil
}

// Ops writes to rows of any keyspaces, with up to WriteOpsMax ops under one key, exactly once
// unless o sets Once or Unkeyed. Results are in the order of the ops. The ops of one shard are
// applied together. AppliedOps and UnknownOps of an Error name ops by number.
func (c *Client) Ops(ctx context.Context, ops []KeyspaceOp, o WriteOptions) (WriteResult, error) {
	body, err := json.Marshal(struct {
		Ops  []KeyspaceOp `json:"ops"`
		Want string       `json:"want,omitempty"`
	}{ops, map[bool]string{true: "none"}[o.Quiet]})
	if err != nil {
		return WriteResult{}, err
	}
	return c.write(ctx, c.retry, "/v1/ops", body, o)
}

// Set sets columns to values, with up to WriteOpsMax ops. Other columns keep their values.
func (c *Client) Set(ctx context.Context, keyspace string, ops []Op, o WriteOptions) (WriteResult, error) {
	return c.write(ctx, c.retry, keyspacePath(keyspace)+"/set", AppendOps(nil, "set", ops, !o.Quiet), o)
}

func (c *Client) write(ctx context.Context, retry Retry, path string, body []byte, o WriteOptions) (WriteResult, error) {
	var result WriteResult
	err := c.do(ctx, retry, Call{Method: http.MethodPost, Path: path, Body: body, Options: &o}, &result)
	return result, err
}

// WrittenRow is the answer of a write of one row.
type WrittenRow struct {
	Row
	Written
}

// Delete sets every column of a row to zero.
func (c *Client) Delete(ctx context.Context, keyspace string, id ID, o WriteOptions) (WrittenRow, error) {
	return writeAt[WrittenRow](ctx, c, http.MethodDelete, rowPath(keyspace, id), nil, o)
}

// AppendOps appends the JSON body of a write to dst. verb is the field for the cells of each op:
// "add" or "set". Without results, the answer contains only the numbers of ops.
func AppendOps(dst []byte, verb string, ops []Op, results bool) []byte {
	return appendOps(dst, "id", verb, ops, results)
}

// appendOps is like AppendOps, but with idField as the name of the field for the id.
func appendOps(dst []byte, idField, verb string, ops []Op, results bool) []byte {
	dst = append(dst, '{')
	if !results {
		dst = append(dst, `"want":"none",`...)
	}
	dst = append(dst, `"ops":[`...)
	for i, op := range ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = op.ID.appendJSON(append(append(append(dst, `{"`...), idField...), `":`...))
		dst = op.Cells.appendJSON(append(append(append(dst, `,"`...), verb...), `":`...))
		if op.Floor != nil && verb == "add" {
			dst = strconv.AppendInt(append(dst, `,"floor":`...), *op.Floor, 10)
		}
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}
