package redis

import (
	"context"
	"errors"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

// replyKind is the form of a reply, made of the command's cells.
type replyKind uint8

const (
	replyKnown  replyKind = iota // text of the batch
	replyCount                   // the one count, as a number
	replyOK                      // a word
	replyString                  // the one count as a string, null for 0
	replyArray                   // a string or null for each cell
	replyCounts                  // a number or an error for each cell
	replyThere                   // how many of the cells' keys are there
	replyAbsent                  // how many are not
	replyFields                  // how many columns of the row are
	replyHash                    // the columns of the row that are there
	replyType                    // what kind of key it is
	replyTTL                     // that it never expires
	replyScan                    // as HSCAN answers a row
	replyRow                     // the whole row, with what is 0
	replyReset                   // of a user's reset: what is left, and what it took
	replyRead                    // of a call that reads
	replyWrite                   // of a call that writes
	replyPoll                    // of a user who polls
	replyPolls                   // of users who poll
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

// there returns how many of the cells' keys are there.
func there(cells []cell) (n int) {
	for i := range cells {
		if exists, _ := cells[i].exists(); exists {
			n++
		}
	}
	return n
}

// appendAbout appends what a key is.
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
	}
	return appendWord(dst, "string")
}

// appendRow appends what is there of a row.
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
	case replyScan: // all at once, so the next cursor is 0
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

// appendReset appends what a reset left and what it took, of the columns that it was
// about.
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

// appendCounts appends counts of which each has its own fate. If all have failed,
// so has the command.
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

// failureOf returns why a command failed, or nil. A write that was done in part is
// like one of which it is not known.
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

// failures returns how many cells are not known.
func failures(cells []cell) (n int) {
	for i := range cells {
		if _, err := cells[i].rowOf(); err != nil {
			n++
		}
	}
	return n
}

// partly is the error of a command of which some keys were written.
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

// backendErrors are the errors of the Backend as a client sees them. The first
// word is the code; it is part of the public contract.
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
	{context.DeadlineExceeded, "LEADERLESS "}, // of a read: nobody could answer it in time
	{unread.ErrNoNotice, "ERR "},
	{shard.ErrUnknownKeyspace, "ERR "},
	{shard.ErrBadToken, "LEADERLESS "}, // of a scan: the cluster was set back to before this node's writes
}

// errorText returns the error as the client sees it. It returns false for an
// error that says nothing to the client.
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
