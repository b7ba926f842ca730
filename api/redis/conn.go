package redis

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

const (
	// readBytesFirst is what a connection begins to read into. A pipeline that
	// fills the buffer makes it four times as large, up to a command's bound, so
	// that the next one is read at once.
	readBytesFirst = 4 << 10
	// readBytesFree is what a connection may read into whatever the others hold.
	readBytesFree = 16 << 10
	// smallReadsMax is after how many reads that would fit readBytesFree a large
	// buffer is given up.
	smallReadsMax = 64
	// largeIdleMax is for how long a large buffer is kept while nothing comes: pools
	// have more connections than are busy, and what they hold others cannot have.
	largeIdleMax = time.Second
	// deadlineSlack is the part of a timeout by which a deadline may come early:
	// moving it with every read would cost as much as looking a key up.
	deadlineSlack = 8
)

// conn is one connection. Its fields are its goroutine's own, but those that say
// otherwise.
type conn struct {
	server  *Server
	net     net.Conn // Close and wake from any goroutine
	id      uint64
	name    string
	resp3   bool
	stale   bool // READONLY
	closing bool // after what is to be sent

	in       []byte // in[from:to] was read and not yet executed
	from, to int
	held     int // of the server's large budget
	small    int // reads in a row that needed no large buffer
	parser   parser
	until    time.Time // the read deadline that is set
	partial  bool      // it is that of the command's arrival that in[from:to] begins with

	lookedAt time.Time // when names were looked for last

	out   output
	batch *batch // while commands that have arrived are executed
	multi transaction
	once  session

	last     *command // that was found last, and as its client writes it
	lastName []byte

	closed atomic.Bool
}

func newConn(s *Server, raw net.Conn) *conn {
	c := &conn{server: s, net: raw, id: s.nextID.Add(1), in: make([]byte, readBytesFirst)}
	c.parser = parser{argsMax: s.cfg.ArgsMax, bulkBytesMax: s.cfg.BulkBytesMax}
	c.out = output{conn: raw, server: s}
	return c
}

// serve reads and executes until the client leaves, breaks the protocol or is
// told to go.
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

// begin takes memory to plan and answer commands in. A connection that waits for its
// client has none.
func (c *conn) begin() {
	b := c.server.batches.Get().(*batch)
	c.batch, b.conn, c.out.buf = b, c, b.out
	b.looked, b.lookErr = false, nil
	b.refresh()
}

// end gives it back, when all is answered and handed on. After a panic it must not be.
func (c *conn) end() {
	b := c.batch
	b.out, c.out.buf = c.out.buf, nil
	c.batch, b.conn = nil, nil
	c.parser.shrink()
	c.server.batches.Put(b)
}

// execute executes the commands that have arrived whole, up to one behind which the
// connection is closed.
func (c *conn) execute() {
	for !c.closing && !c.closed.Load() {
		args, n, err := c.parser.next(c.in[c.from:c.to])
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
		c.from, c.partial = c.from+n, false // what is behind it has its own time to arrive
		c.relieve()
	}
	c.batch.flush()
}

// relieve hands on what is answered already, once it is large: a command of a few
// bytes may be answered by many, and others may follow.
func (c *conn) relieve() {
	if len(c.batch.text) >= sendBytes {
		c.batch.flush()
	}
	if len(c.out.buf) >= sendBytes && c.out.send() != nil {
		c.closing = true
	}
}

// read waits for bytes and reads what has arrived, as far as it fits. It returns
// false when there will be no more.
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
	if !errors.Is(err, os.ErrDeadlineExceeded) || c.server.stopping() {
		return false
	}
	if c.held > 0 && c.from == c.to {
		c.giveUp()
		return c.read()
	}
	c.server.metrics.timeouts.Inc()
	return false
}

// tooLarge says why there is no more room to read into.
func (c *conn) tooLarge() string {
	if len(c.in) >= c.server.cfg.CommandBytesMax {
		return protocolError("a command is larger than " + sizeText(c.server.cfg.CommandBytesMax)).Error()
	}
	return errLargeFull
}

// makeRoom has the buffer take at least one byte more, or returns false. One that
// was filled to its end is made larger: there is more to come.
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
	size := min(4*len(c.in), c.server.cfg.CommandBytesMax)
	grown := max(size-readBytesFree, 0) - c.held
	if size == len(c.in) || !c.server.large.take(grown) {
		return c.to < len(c.in)
	}
	c.held += grown
	in := make([]byte, size)
	copy(in, c.in[:c.to])
	c.in = in
	return true
}

// shrink gives a large buffer up when the client has not needed it for a while.
func (c *conn) shrink() {
	if c.to > readBytesFree {
		c.small = 0
		return
	}
	if c.small++; c.small < smallReadsMax || c.held == 0 {
		return
	}
	c.giveUp()
}

// giveUp has a small buffer take the place of a large one that holds nothing.
func (c *conn) giveUp() {
	c.server.large.give(c.held)
	c.held, c.small = 0, 0
	c.in, c.from, c.to = make([]byte, readBytesFree), 0, 0
	c.parser.args = nil // they are parts of the large one
}

// setDeadline says until when the next bytes must come. It returns false when
// the client has had its time.
func (c *conn) setDeadline() bool {
	now, partial := time.Now(), c.to > c.from
	timeout := c.server.cfg.IdleTimeout
	switch {
	case partial:
		timeout = c.server.cfg.ArriveTimeout
	case c.held > 0:
		timeout = min(timeout, largeIdleMax)
	}
	left := c.until.Sub(now)
	switch {
	case partial && c.partial: // it runs since the command's first byte
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
	// Shutdown may have woken it just before.
	if c.server.stopping() {
		return false
	}
	return true
}

// wake ends a wait for bytes. Any goroutine may call it.
func (c *conn) wake() { _ = c.net.SetReadDeadline(time.Unix(1, 0)) }

// refuse answers an error at once; nothing may be pending.
func (c *conn) refuse(text string) {
	c.server.metrics.failed(text)
	c.out.buf = appendError(c.out.buf, text)
}

// lingerTime is how long a client that broke a bound is read from before its
// connection is closed. Closing with bytes unread resets it, and a client that is
// still sending would lose the reply that says why.
const lingerTime = time.Second

// dismiss has the client take its last reply.
func (c *conn) dismiss() {
	err := c.out.send()
	c.out.drain()
	half, ok := c.net.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil || c.net.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	for err == nil {
		_, err = c.net.Read(c.in)
	}
}

// close ends the connection. Any goroutine may call it.
func (c *conn) close() {
	if c.closed.CompareAndSwap(false, true) {
		_ = c.net.Close()
	}
}

// release gives back what the connection holds, when its goroutine ends.
func (c *conn) release() {
	c.server.large.give(c.held)
	c.held = 0
	c.closeMulti()
	c.out.release()
}
