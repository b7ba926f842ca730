package client

import (
	"context"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"time"
)

// MembersPageMax bounds a page of Members.List and Members.Of.
const MembersPageMax = 1000

// Members are the sets of one column, such as the users who liked each post. A set contains each
// member once. A change of the set also changes the row's count.
type Members struct {
	c    *Client
	path string
}

// Members returns the sets of a column of a keyspace of counters.
func (c *Client) Members(keyspace, column string) Members {
	return Members{c, namePath("members", keyspace) + "/" + url.PathEscape(column)}
}

// MemberOp adds a member to the set of a row, or removes it.
type MemberOp struct {
	ID     ID
	Member ID
	Leave  bool // removes the member
}

// MemberOutcome is the part of an OpResult that only an op with a member has.
type MemberOutcome struct {
	Member  ID    `json:"member"`
	Changed bool  `json:"changed"` // false if the op left the set unchanged; always false for a repeat
	Count   int64 `json:"count"`   // the count right after the op; for a repeat, the current count
}

// MemberWritten is the answer of a write of one member.
type MemberWritten struct {
	ID ID `json:"id"`
	MemberOutcome
	Written
}

// Add adds a member to the set of a row. If the member was not there, it also adds 1 to the count
// of the row:
//
//	liked, err := c.Members("posts", "like").Add(ctx, post, user)
func (m Members) Add(ctx context.Context, id, member ID) (MemberWritten, error) {
	return m.changeOne(ctx, MemberOp{ID: id, Member: member})
}

// Remove removes a member from the set of a row. If the member was there, it also subtracts 1 from
// the count of the row.
func (m Members) Remove(ctx context.Context, id, member ID) (MemberWritten, error) {
	return m.changeOne(ctx, MemberOp{ID: id, Member: member, Leave: true})
}

func (m Members) changeOne(ctx context.Context, op MemberOp) (MemberWritten, error) {
	result, err := m.Change(ctx, []MemberOp{op}, WriteOptions{})
	if err != nil {
		return MemberWritten{}, err
	}
	if len(result.Results) != 1 || result.Results[0].MemberOutcome == nil {
		return MemberWritten{}, fmt.Errorf("the server answered with %d results for one member", len(result.Results))
	}
	one := result.Results[0]
	return MemberWritten{one.ID, *one.MemberOutcome, result.Written}, nil
}

// Change adds and removes up to WriteOpsMax members, in the order of ops, and exactly once unless o
// sets Once or Unkeyed. Each result has a MemberOutcome.
func (m Members) Change(ctx context.Context, ops []MemberOp, o WriteOptions) (WriteResult, error) {
	return m.c.write(ctx, m.c.retry, m.path, appendMemberOps(nil, ops, !o.Quiet, true), o)
}

// Copy is like Change, but leaves the counts unchanged. Use it for members that existing counts
// already include. Copy can only add members.
func (m Members) Copy(ctx context.Context, ops []MemberOp, o WriteOptions) (WriteResult, error) {
	return m.c.write(ctx, m.c.retry, m.path, appendMemberOps(nil, ops, !o.Quiet, false), o)
}

// appendMemberOps appends the JSON body of a Change.
func appendMemberOps(dst []byte, ops []MemberOp, results, counted bool) []byte {
	dst = append(dst, '{')
	if !counted {
		dst = append(dst, `"counted":false,`...)
	}
	if !results {
		dst = append(dst, `"want":"none",`...)
	}
	dst = append(dst, `"ops":[`...)
	for i, op := range ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = op.ID.appendJSON(append(dst, `{"id":`...))
		dst = op.Member.appendJSON(append(dst, `,"member":`...))
		dst = strconv.AppendBool(append(dst, `,"set":`...), !op.Leave)
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}

// Check reports whether a member is in the set of each of up to GetIDsMax rows, in the order
// of ids.
func (m Members) Check(ctx context.Context, member ID, ids []ID, o ReadOptions) ([]bool, error) {
	request := map[string]any{"member": member, "ids": ids}
	return AskMember[[]bool](ctx, m.c, o.post(m.path+"/check", request), "results")
}

// Member is a member of a row's set.
type Member struct {
	Member ID        `json:"member"`
	At     time.Time `json:"at"` // when it joined
}

// MembersPage is a page of the members of a row, newest first.
type MembersPage struct {
	ID      ID       `json:"id"`
	Count   int64    `json:"count"` // includes counts that were added or set without members
	Members []Member `json:"members"`
	Cursor  string   `json:"cursor,omitempty"` // cursor of the next page; "" on the last page
}

// List reads a page of the members of a row. cursor is the Cursor of the previous page, or ""
// for the first page. With limit 0, the server uses its default.
func (m Members) List(ctx context.Context, id ID, cursor string, limit int, o ReadOptions) (MembersPage, error) {
	return readAt[MembersPage](ctx, m.c, m.path+"/"+id.path(), pageQuery(cursor, limit), o)
}

// RowOfMember is one line of a member's list.
type RowOfMember struct {
	ID ID        `json:"id"`
	At time.Time `json:"at"` // when the member joined
}

// RowsOfMember is a page of the rows that a member is in, newest first.
type RowsOfMember struct {
	Member ID            `json:"member"`
	IDs    []RowOfMember `json:"ids"`
	Cursor string        `json:"cursor,omitempty"` // cursor of the next page; "" on the last page
	LagMs  int64         `json:"lag_ms"`           // additional staleness of the page, beyond that of ReadOptions
}

// Of reads a page of the rows that a member is in. cursor and limit are as in List.
func (m Members) Of(ctx context.Context, member ID, cursor string, limit int, o ReadOptions) (RowsOfMember, error) {
	return readAt[RowsOfMember](ctx, m.c, m.path+"/of/"+member.path(), pageQuery(cursor, limit), o)
}

// pageQuery returns a query for a page of a list; zero values are left out.
func pageQuery(cursor string, limit int) url.Values {
	query := url.Values{}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	return limited(query, limit)
}

// All iterates over all members of a row, newest first, and ends with the first error.
func (m Members) All(ctx context.Context, id ID, o ReadOptions) iter.Seq2[Member, error] {
	return pages(func(cursor string) ([]Member, string, error) {
		page, err := m.List(ctx, id, cursor, MembersPageMax, o)
		return page.Members, page.Cursor, err
	})
}

// AllOf iterates over all rows that a member is in, newest first, and ends with the first
// error.
func (m Members) AllOf(ctx context.Context, member ID, o ReadOptions) iter.Seq2[RowOfMember, error] {
	return pages(func(cursor string) ([]RowOfMember, string, error) {
		page, err := m.Of(ctx, member, cursor, MembersPageMax, o)
		return page.IDs, page.Cursor, err
	})
}

// pages iterates over the lines of all pages.
func pages[T any](read func(cursor string) (lines []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for cursor := ""; ; {
			lines, next, err := read(cursor)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, line := range lines {
				if !yield(line, nil) {
					return
				}
			}
			if cursor = next; cursor == "" {
				return
			}
		}
	}
}

// GetManyOf is like GetMany, but each row also has Member, which reports by column whether the
// member is in the set.
func (c *Client) GetManyOf(ctx context.Context, keyspace string, member ID, ids []ID, columns []string, o ReadOptions) ([]Row, error) {
	return c.getMany(ctx, keyspace, &member, ids, columns, o)
}
