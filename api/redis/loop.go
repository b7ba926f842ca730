package redis

import (
	"errors"
	"os"
	"time"

	"github.com/countd/countd/api/listen"
	"github.com/countd/countd/api/redis/resp"
)

// serve reads and executes commands until the client leaves, breaks the protocol, or the
// server stops.
func (c *conn) serve() {
	for !c.closing && !c.server.stopping() {
		if !c.read() {
			return
		}
		c.begin()
		c.execute()
		err := c.out.send()
		c.end()
		if err != nil {
			return
		}
	}
	c.out.drain()
}

// begin acquires the memory to plan and answer commands. A connection that waits for its client has
// no such memory.
func (c *conn) begin() {
	b := c.server.batches.Get().(*batch)
	c.batch, b.conn, c.out.buf = b, c, b.out
	b.looked, b.lookErr = false, nil
	b.refresh()
	c.renewLogin(time.Now())
	c.out.unknown = c.unknown()
}

// end returns that memory once all replies are sent or queued. It must not run after a panic.
func (c *conn) end() {
	b := c.batch
	b.out, c.out.buf = c.out.buf, nil
	c.batch, b.conn = nil, nil
	c.parser.Shrink()
	c.server.batches.Put(b)
}

// execute executes the commands that have arrived completely, until one closes the
// connection.
func (c *conn) execute() {
	for !c.closing && !c.server.cut.Load() {
		args, n, err := c.parser.Next(c.in[c.from:c.to])
		if err != nil {
			c.batch.flush()
			c.refuse(err.Error())
			c.dismiss()
			c.closing = true
			return
		}
		if n == 0 {
			break
		}
		if len(args) > 0 {
			c.command(args)
		}
		c.from, c.partial = c.from+n, false // the next command gets its own time to arrive
		c.relieve()
	}
	c.batch.flush()
}

// relieve sends finished replies once they are large: a short command may have a long
// reply, and more commands may follow.
func (c *conn) relieve() {
	if len(c.batch.text) >= sendBytes {
		c.batch.flush()
	}
	if len(c.out.buf) >= sendBytes && c.out.send() != nil {
		c.closing = true
	}
}

// read waits for bytes and reads as many as fit. It returns false if no more will come.
func (c *conn) read() bool {
	if !c.makeRoom() {
		c.refuse(c.tooLarge())
		c.dismiss()
		return false
	}
	if !c.setDeadline() {
		return false
	}
	n, err := c.net.Read(c.in[c.to:])
	c.to += n
	c.server.metrics.received.Add(float64(n))
	if n > 0 {
		return true
	}
	if errors.Is(err, listen.ErrTLS) {
		c.refuse(resp.ProtocolError(err.Error()).Error())
		c.dismiss()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || c.server.stopping() {
		return false
	}
	if c.reserved > 0 && c.from == c.to {
		c.giveUp()
		return c.read()
	}
	c.server.metrics.timeouts.Inc()
	return false
}

// tooLarge returns the error for a read buffer that must not grow.
func (c *conn) tooLarge() string {
	most := c.commandBytesMax()
	switch {
	case len(c.in) < most:
		return errLargeFull
	case most < c.server.cfg.CommandBytesMax:
		return resp.ProtocolError("a command of a client that has not authenticated is larger than " + sizeText(most)).Error()
	}
	return resp.ProtocolError("a command is larger than " + sizeText(most)).Error()
}

// makeRoom makes the buffer fit at least one more byte, or returns false. It grows a buffer that
// the last read filled, because more bytes are likely to come.
func (c *conn) makeRoom() bool {
	full := c.to == len(c.in)
	if c.from == c.to {
		c.shrink()
	}
	if c.from > 0 {
		c.from, c.to = 0, copy(c.in, c.in[c.from:c.to])
	}
	if !full {
		return true
	}
	size := max(min(4*len(c.in), c.commandBytesMax()), len(c.in))
	grown := max(size-readBytesFree, 0) - c.reserved
	if size == len(c.in) || !c.server.large.acquire(grown) {
		return c.to < len(c.in)
	}
	c.reserved += grown
	in := make([]byte, size)
	copy(in, c.in[:c.to])
	c.in = in
	return true
}

// shrink replaces a large buffer that the client has not needed for a while by a small one.
func (c *conn) shrink() {
	if c.to > readBytesFree {
		c.small = 0
		return
	}
	if c.small++; c.small < smallReadsMax || c.reserved == 0 {
		return
	}
	c.giveUp()
}

// giveUp replaces a large buffer, which must be empty, by a small one.
func (c *conn) giveUp() {
	c.server.large.release(c.reserved)
	c.reserved, c.small = 0, 0
	c.in, c.from, c.to = make([]byte, readBytesFree), 0, 0
	c.parser.Forget()
}

// setDeadline sets the deadline for the next bytes. It returns false if the client's time
// is over.
func (c *conn) setDeadline() bool {
	now, partial := time.Now(), c.to > c.from
	timeout := c.server.cfg.IdleTimeout
	switch {
	case partial:
		timeout = c.server.cfg.ArriveTimeout
	case c.unknown(): // a client without authentication must not hold a connection for long
		timeout = min(timeout, c.server.cfg.ArriveTimeout)
	case c.reserved > 0:
		timeout = min(timeout, largeIdleMax)
	}
	left := c.until.Sub(now)
	switch {
	case partial && c.partial: // the present deadline runs from the command's first byte
		if left <= 0 {
			c.server.metrics.timeouts.Inc()
		}
		return left > 0
	case partial == c.partial && left <= timeout && left > timeout-timeout/deadlineSlack:
		return true
	}
	c.until, c.partial = now.Add(timeout), partial
	if c.net.SetReadDeadline(c.until) != nil {
		return false
	}
	// Shutdown may have woken the connection before.
	if c.server.stopping() {
		return false
	}
	return true
}

// dismiss sends the last reply to a client that exceeded a bound and may still be sending. Closing
// with unread bytes would reset the connection, and the client would lose the reply.
func (c *conn) dismiss() {
	_ = c.out.send()
	c.out.drain()
	if of, ok := c.net.(*listen.Conn); ok {
		of.Lingers = true
	}
}

// release returns what the connection has reserved, when its goroutine ends.
func (c *conn) release() {
	c.server.large.release(c.reserved)
	c.reserved = 0
	c.closeMulti()
	c.out.release()
}
