package redis

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/api/redis/resp"
)

const (
	// queuedBytesOf is the memory of a queued argument in addition to its bytes.
	queuedBytesOf = 64
	// queuedBytesFree is the memory that a transaction may use without a reservation: about twenty
	// increments. Small transactions therefore run even if other clients have reserved all memory.
	queuedBytesFree = 4 << 10
)

func multi(c *conn, _ [][]byte) {
	if c.multi.open {
		c.batch.fail("ERR MULTI calls can not be nested")
		return
	}
	caller, _ := c.login.current()
	c.multi = transaction{open: true, caller: caller}
	c.batch.known(resp.AppendOK)
}

func discard(c *conn, _ [][]byte) {
	if !c.multi.open {
		c.batch.fail("ERR DISCARD without MULTI")
		return
	}
	c.closeMulti()
	c.batch.known(resp.AppendOK)
}

// closeMulti discards a transaction and releases its memory.
func (c *conn) closeMulti() {
	c.server.shared.Memory.Release(c.multi.reserved)
	c.multi = transaction{}
}

// queue keeps a command for EXEC.
func (c *conn) queue(cmd *command, args [][]byte) {
	m := &c.multi
	if cmd.traits&(keyed|plain) == 0 {
		m.broken = true
		c.batch.fail("ERR Command not allowed inside a transaction")
		return
	}
	if !m.broken {
		if fault := c.keep(cmd, args); fault != "" {
			m.broken = true
			c.batch.fail(fault)
			return
		}
	}
	c.batch.known(func(dst []byte) []byte { return resp.AppendWord(dst, "QUEUED") })
}

// keep adds a command to the transaction, or returns why it cannot.
func (c *conn) keep(cmd *command, args [][]byte) (fault string) {
	m, size := &c.multi, 0
	for _, arg := range args {
		size += len(arg) + queuedBytesOf
	}
	if most := c.server.cfg.CommandBytesMax; m.bytes+size > most {
		return fmt.Sprintf("ERR a transaction takes at most %s, with %d bytes an argument besides its own", resp.SizeText(most), queuedBytesOf)
	}
	reserved := max(m.bytes+size-queuedBytesFree, 0)
	if !c.server.shared.Memory.Acquire(reserved - m.reserved) {
		return resp.ErrMemory
	}
	m.bytes, m.reserved = m.bytes+size, reserved
	copies := make([][]byte, len(args))
	for i, arg := range args {
		copies[i] = bytes.Clone(arg)
	}
	m.queued = append(m.queued, queuedCommand{cmd, copies})
	return ""
}

// exec plans the queued commands.
func exec(c *conn, _ [][]byte) {
	b, m := c.batch, c.multi
	defer c.closeMulti()
	switch {
	case !m.open:
		b.fail("ERR EXEC without MULTI")
		return
	case m.broken:
		b.fail("EXECABORT Transaction discarded because of previous errors.")
		return
	}
	if fault := c.recheck(&m); fault != "" {
		b.fail(fault)
		return
	}
	if b.pending+m.rows() > rowsMax {
		b.flush()
	}
	before := c.planQueued(&m)
	if b.missed {
		b.rollBack(before)
		b.lookUp()
		before = c.planQueued(&m)
	}
	var waiting []late
	for len(b.late) > before.late && !b.unsure && b.pending-before.pending <= rowsMax { // again if texts left memory meanwhile
		waiting = append(waiting, b.late[before.late:]...)
		b.rollBack(before)
		if err := b.settleQueued(waiting); err != nil {
			b.known(func(dst []byte) []byte { return b.appendFailure(dst, err) })
			return
		}
		b.texts.Final = true
		before = c.planQueued(&m)
		b.texts.Final = false
	}
	for _, q := range m.queued {
		q.command.calls.Inc()
	}
	if b.unsure { // refuse the whole transaction, because a node that knows the name would execute all of it
		b.rollBack(before)
		b.known(func(dst []byte) []byte { return b.appendFailure(dst, b.lookErr) })
	} else if b.pending-before.pending > rowsMax {
		b.rollBack(before)
		b.fail(fmt.Sprintf("ERR a transaction takes at most %d reads and writes of rows", rowsMax))
	} else if !b.onOneShard(before) {
		b.rollBack(before)
		b.fail(errCrossSlot)
	}
}

// planQueued plans the commands of a transaction. It returns the batch's mark from before these
// commands.
func (c *conn) planQueued(m *transaction) mark {
	b := c.batch
	before := b.mark()
	b.atomic, b.unsure = true, false
	b.known(func(dst []byte) []byte { return resp.AppendArray(dst, len(m.queued)) })
	for _, q := range m.queued {
		b.writes = q.command.traits&writes != 0
		q.command.run(c, q.args)
	}
	b.atomic = false
	return before
}

// rows returns an upper bound of the rows of the queued commands.
func (m *transaction) rows() (n int) {
	for _, q := range m.queued {
		n += 2 * len(q.args)
	}
	return n
}

// mark is a state of a batch that rollBack restores.
type mark struct {
	replies, cells, text, pending, late int
	tables                              []tableMark
}

type tableMark struct{ ops, cells, units int }

func (b *batch) mark() mark {
	m := mark{replies: len(b.replies), cells: len(b.cells), text: len(b.text), pending: b.pending, late: len(b.late), tables: nil}
	for _, t := range b.tables {
		m.tables = append(m.tables, tableMark{len(t.ops), len(t.cells), len(t.units)})
	}
	return m
}

// rollBack drops everything planned since a mark.
func (b *batch) rollBack(m mark) {
	b.replies, b.cells, b.text, b.pending = b.replies[:m.replies], b.cells[:m.cells], b.text[:m.text], m.pending
	b.late = b.late[:m.late]
	for i, t := range b.tables {
		at := m.of(i)
		t.ops, t.cells, t.units = t.ops[:at.ops], t.cells[:at.cells], t.units[:at.units]
	}
}

// of returns the part of a mark for a table. It is zero if the table was added after the mark.
func (m *mark) of(table int) tableMark {
	if table < len(m.tables) {
		return m.tables[table]
	}
	return tableMark{}
}

// onOneShard reports whether all ops since a mark are on one shard. If so, it records that they must be
// applied together.
func (b *batch) onOneShard(m mark) bool {
	var owner *table
	shard := 0
	for i, t := range b.tables {
		for _, op := range t.ops[m.of(i).ops:] {
			at := t.ks.ShardOf(op.ID)
			if owner != nil && (owner != t || shard != at) {
				return false
			}
			owner, shard = t, at
		}
	}
	if owner != nil {
		owner.execs = append(owner.execs, [2]int{m.of(slices.Index(b.tables, owner)).ops, len(owner.ops)})
	}
	return true
}

// settleQueued looks up the texts of a transaction, whose commands exec then plans again: the shard of
// a row depends on its number.
func (b *batch) settleQueued(waiting []late) (err error) {
	b.flush()
	b.until = time.Now().Add(b.conn.server.cfg.Timeout)
	b.lookUpTexts(waiting, b.until)
	for _, l := range waiting {
		b.texts.Add(l.text)
		err = cmp.Or(err, l.text.Err)
	}
	return err
}
