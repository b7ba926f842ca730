package redis

import (
	"context"
	"errors"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

// replyKind is the form of a reply made of the command's cells.
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

// render appends a reply.
func (b *batch) render(dst []byte, r *reply) []byte {
	switch r.kind {
	case replyKnown:
		return append(dst, b.text[r.from:r.to]...)
	case replyRead:
		return b.appendCall(dst, &b.calls.reads[r.from])
	case replyWrite:
		return b.appendCall(dst, &b.calls.writes[r.from])
	case replyPoll, replyPolls:
		return b.appendPolls(dst, r)
	}
	cells := b.cells[r.from:r.to]
	if r.kind == replyCounts {
		return b.appendCounts(dst, cells)
	}
	if err := failureOf(cells, r.writes); err != nil {
		return b.appendFailure(dst, err)
	}
	resp3 := b.conn.resp3
	switch r.kind {
	case replyCount:
		n, _ := cells[0].value()
		return appendInt(dst, n)
	case replyOK:
		return appendOK(dst)
	case replyString:
		return appendCell(dst, &cells[0], resp3)
	case replyArray:
		dst = appendArray(dst, len(cells))
		for i := range cells {
			dst = appendCell(dst, &cells[i], resp3)
		}
		return dst
	case replyThere:
		return appendInt(dst, int64(there(cells)))
	case replyAbsent:
		return appendInt(dst, int64(len(cells)-there(cells)))
	case replyMembers:
		return appendInt(dst, int64(changes(cells)))
	case replyTTL, replyType:
		return appendAbout(dst, r.kind, &cells[0])
	case replyRow:
		return appendWholeRow(dst, &cells[0], resp3)
	case replyReset:
		return appendReset(dst, &cells[0], &cells[1], resp3)
	}
	return appendRow(dst, r.kind, &cells[0], resp3)
}

func appendCell(dst []byte, c *cell, resp3 bool) []byte {
	if n, _ := c.value(); n != 0 {
		return appendBulkInt(dst, n)
	}
	return appendNull(dst, resp3)
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
		return appendInt(dst, -1)
	case kind == replyTTL:
		return appendInt(dst, -2)
	case !exists:
		return appendWord(dst, "none")
	case c.column == wholeRow:
		return appendWord(dst, "hash")
	case c.set:
		return appendWord(dst, "set")
	}
	return appendWord(dst, "string")
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
		return appendInt(dst, int64(fields))
	case replyScan: // a single page, so the next cursor is 0
		dst = appendArray(appendBulk(appendArray(dst, 2), "0"), 2*fields)
	default:
		dst = appendMap(dst, fields, resp3)
	}
	for column, count := range row {
		if count != 0 {
			dst = appendBulk(dst, c.table.ks.Columns[column])
			dst = appendBulkInt(dst, count)
		}
	}
	return dst
}

// appendWholeRow appends all columns of a row.
func appendWholeRow(dst []byte, c *cell, resp3 bool) []byte {
	row, _ := c.rowOf()
	dst = appendMap(dst, len(row)-len(c.table.ks.Dropped), resp3)
	for column, count := range row {
		if name := c.table.ks.Columns[column]; name != "" {
			dst = appendInt(appendBulk(dst, name), count)
		}
	}
	return dst
}

// appendReset appends the remaining and the cleared counts of a reset, of its columns only.
func appendReset(dst []byte, took, left *cell, resp3 bool) []byte {
	dst = appendBulk(appendMap(dst, 2, resp3), "counts")
	dst = appendBulk(appendWholeRow(dst, left, resp3), "cleared")
	row, _ := took.rowOf()
	op := &took.table.ops[took.row]
	dst = appendMap(dst, len(op.Cells), resp3)
	for _, cell := range op.Cells {
		dst = appendInt(appendBulk(dst, took.table.ks.Columns[cell.Column]), row[cell.Column])
	}
	return dst
}

// appendCounts appends counts that may fail one by one. If all have failed, the command has
// failed.
func (b *batch) appendCounts(dst []byte, cells []cell) []byte {
	if err := failureOf(cells, false); err != nil && failures(cells) == len(cells) {
		return b.appendFailure(dst, err)
	}
	dst = appendArray(dst, len(cells))
	for i := range cells {
		if n, err := cells[i].value(); err != nil {
			dst = b.appendFailure(dst, err)
		} else {
			dst = appendInt(dst, n)
		}
	}
	return dst
}

// failureOf returns why a command failed, or nil. A partial write counts as one of
// unknown outcome.
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
	return appendError(dst, text)
}

// backendErrors maps the Backend's errors to what a client sees. The first word is the
// code, which is part of the public contract.
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
	{context.DeadlineExceeded, "LEADERLESS "}, // of a read that no node answered in time
	{unread.ErrNoNotice, "ERR "},
	{timeline.ErrNoGroup, "ERR "},
	{timeline.ErrOverflow, "ERR "},
	{shard.ErrUnknownKeyspace, "ERR "},
	{shard.ErrNoMembers, "ERR "},
	{shard.ErrBadToken, "LEADERLESS "}, // of a scan, after the cluster was restored to a state before this node's writes
}

// errorText returns the error as the client sees it. It returns false for an unexpected
// error, whose text is not for the client.
func errorText(err error) (text string, foreseen bool) {
	if some, ok := errors.AsType[*partly](err); ok {
		text, foreseen = errorText(some.err)
		return "UNKNOWN some of the keys were written, others were not: " + text, foreseen
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
