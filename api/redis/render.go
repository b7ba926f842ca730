package redis

import (
	"context"
	"errors"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

// replyKind is the form of a reply.
type replyKind uint8

const (
	replyKnown   replyKind = iota // text of the batch
	replyCount                    // the only count, as a number
	replyOK                       // OK
	replyString                   // the only count as a string, null for 0
	replyArray                    // a string or null for each cell
	replyCounts                   // a number or an error for each cell
	replyThere                    // number of keys that exist
	replyAbsent                   // number of keys that do not exist
	replyFields                   // number of columns of the row that are not 0
	replyHash                     // the columns of the row that are not 0
	replyType                     // type of the key
	replyTTL                      // -1 if the key exists: it never expires
	replyScan                     // the row, as HSCAN replies
	replyRow                      // the whole row, including zeros
	replyMembers                  // number of ops that changed a set
	replyReset                    // a user's reset: the remaining and the cleared counts
	replyRead                     // the result of a call that reads
	replyWrite                    // the result of a call that writes
	replyPoll                     // one user's poll
	replyPolls                    // several users' polls
)

func appendCell(dst []byte, c *cell, resp3 bool) []byte {
	if n, _ := c.value(); n != 0 {
		return resp.AppendBulkInt(dst, n)
	}
	return resp.AppendNull(dst, resp3)
}

// there returns how many of the cells' keys exist.
func there(cells []cell) (n int) {
	for i := range cells {
		if exists, _ := cells[i].exists(); exists {
			n++
		}
	}
	return n
}

// changes returns how many of the cells' ops changed a set of members.
func changes(cells []cell) (n int) {
	for i := range cells {
		if c := &cells[i]; c.table.joined != nil && c.table.joined[c.row] {
			n++
		}
	}
	return n
}

// appendAbout appends the type or the TTL of a key.
func appendAbout(dst []byte, kind replyKind, c *cell) []byte {
	exists, _ := c.exists()
	switch {
	case kind == replyTTL && exists:
		return resp.AppendInt(dst, -1)
	case kind == replyTTL:
		return resp.AppendInt(dst, -2)
	case !exists:
		return resp.AppendWord(dst, "none")
	case c.column == wholeRow:
		return resp.AppendWord(dst, "hash")
	case c.set:
		return resp.AppendWord(dst, "set")
	}
	return resp.AppendWord(dst, "string")
}

// appendRow appends the columns of a row that are not 0.
func appendRow(dst []byte, kind replyKind, c *cell, resp3 bool) []byte {
	row, _ := c.rowOf()
	fields := 0
	for _, count := range row {
		if count != 0 {
			fields++
		}
	}
	switch kind {
	case replyFields:
		return resp.AppendInt(dst, int64(fields))
	case replyScan: // the only page, so the next cursor is 0
		dst = resp.AppendArray(resp.AppendBulk(resp.AppendArray(dst, 2), "0"), 2*fields)
	default:
		dst = resp.AppendMap(dst, fields, resp3)
	}
	for column, count := range row {
		if count != 0 {
			dst = resp.AppendBulk(dst, c.table.ks.Columns[column])
			dst = resp.AppendBulkInt(dst, count)
		}
	}
	return dst
}

// appendWholeRow appends all columns of a row.
func appendWholeRow(dst []byte, c *cell, resp3 bool) []byte {
	row, _ := c.rowOf()
	dst = resp.AppendMap(dst, len(row)-len(c.table.ks.Dropped), resp3)
	for column, count := range row {
		if name := c.table.ks.Columns[column]; name != "" {
			dst = resp.AppendInt(resp.AppendBulk(dst, name), count)
		}
	}
	return dst
}

// appendReset appends the remaining and the cleared counts of a reset, of its columns only.
func appendReset(dst []byte, took, left *cell, resp3 bool) []byte {
	dst = resp.AppendBulk(resp.AppendMap(dst, 2, resp3), "counts")
	dst = resp.AppendBulk(appendWholeRow(dst, left, resp3), "cleared")
	row, _ := took.rowOf()
	op := &took.table.ops[took.row]
	dst = resp.AppendMap(dst, len(op.Cells), resp3)
	for _, cell := range op.Cells {
		dst = resp.AppendInt(resp.AppendBulk(dst, took.table.ks.Columns[cell.Column]), row[cell.Column])
	}
	return dst
}

// appendCounts appends counts, each of which may have failed. If all have failed, the command has
// failed.
func (b *batch) appendCounts(dst []byte, cells []cell) []byte {
	if err := failureOf(cells, false); err != nil && failures(cells) == len(cells) {
		return b.appendFailure(dst, err)
	}
	dst = resp.AppendArray(dst, len(cells))
	for i := range cells {
		if n, err := cells[i].value(); err != nil {
			dst = b.appendFailure(dst, err)
		} else {
			dst = resp.AppendInt(dst, n)
		}
	}
	return dst
}

// failureOf returns why a command failed, or nil. If only a part of a write failed, its outcome
// counts as unknown.
func failureOf(cells []cell, writes bool) error {
	var failed error
	for i := range cells {
		if _, err := cells[i].rowOf(); err != nil && (failed == nil || errors.Is(err, shard.ErrOutcomeUnknown)) {
			failed = err
		}
	}
	if writes && failed != nil && failures(cells) < len(cells) && !errors.Is(failed, shard.ErrOutcomeUnknown) {
		return &partly{failed}
	}
	return failed
}

// failures returns how many cells have failed.
func failures(cells []cell) (n int) {
	for i := range cells {
		if _, err := cells[i].rowOf(); err != nil {
			n++
		}
	}
	return n
}

// partly is the error of a command that wrote some of its keys.
type partly struct{ err error }

func (e *partly) Error() string { return e.err.Error() }
func (e *partly) Unwrap() error { return e.err }

func (b *batch) appendFailure(dst []byte, err error) []byte {
	text, foreseen := errorText(err)
	if !foreseen {
		b.conn.server.limited.Error("a Redis command failed", "err", err)
	}
	b.conn.server.metrics.failed(text)
	return resp.AppendError(dst, text)
}

// backendErrors maps the Backend's errors to the texts of replies. The first word is the code,
// which is part of the public contract.
var backendErrors = []struct {
	err  error
	text string
}{
	{errOverflow, "ERR increment or decrement would overflow"},
	{errForgotten, "UNKNOWN "},
	{shard.ErrOutcomeUnknown, "UNKNOWN "},
	{shard.ErrConflict, "CONFLICT "},
	{shard.ErrKeyAhead, "EXPIRED "},
	{shard.ErrExpired, "EXPIRED "},
	{shard.ErrMemoryFull, "OOM command not allowed: a new row needs memory, and "},
	{shard.ErrDiskFull, "DISKFULL "},
	{shard.ErrDraining, "DRAINING "},
	{shard.ErrTooLate, "OVERLOADED "},
	{shard.ErrOverloaded, "OVERLOADED "},
	{shard.ErrNoLeader, "LEADERLESS "},
	{shard.ErrNoQuorum, "LEADERLESS "},
	{context.DeadlineExceeded, "LEADERLESS "}, // for a read that no node answered in time
	{unread.ErrNoNotice, "ERR "},
	{timeline.ErrNoGroup, "ERR "},
	{timeline.ErrOverflow, "ERR "},
	{shard.ErrUnknownKeyspace, "ERR "},
	{shard.ErrBadToken, "LEADERLESS "}, // for a scan after the cluster was restored to a state before this node's writes
}

// errorText returns the error as the client sees it. It returns false for an unexpected
// error, whose text is not for the client.
func errorText(err error) (text string, foreseen bool) {
	if some, ok := errors.AsType[*partly](err); ok {
		text, foreseen = errorText(some.err)
		return "UNKNOWN some of the keys were written, others were not: " + text, foreseen
	}
	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.Error(), true
	}
	if argument, ok := errors.AsType[*shard.ArgumentError](err); ok {
		return fieldError(argument.Field, argument.Problem).Error(), true
	}
	for _, b := range backendErrors {
		if !errors.Is(err, b.err) {
			continue
		}
		if b.text[len(b.text)-1] != ' ' {
			return b.text, true
		}
		return b.text + b.err.Error(), true
	}
	return "ERR the server failed; its log says why", false
}
