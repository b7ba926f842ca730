package redis

import (
	"time"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/redis/resp"
)

// serve reads and executes commands until the client leaves, breaks the protocol, or the
// server stops.
func (c *conn) serve() {
	for !c.closing && !c.server.shared.Stopping() {
		if !c.read() {
			return
		}
		c.begin()
		c.execute()
		err := c.out.Send()
		c.end()
		if err != nil {
			return
		}
	}
	c.out.Drain()
}

// begin acquires the memory to plan and answer commands. A connection has this memory only while it
// executes commands.
func (c *conn) begin() {
	b := c.server.batches.Get().(*batch)
	c.batch, b.conn, c.out.Buf = b, c, b.out
	b.looked, b.lookErr = false, nil
	b.refresh()
	c.renewLogin(time.Now())
	c.out.Unknown = c.unknown()
}

// end releases the memory that begin has acquired. All replies must be sent or queued. It must not
// run after a panic.
func (c *conn) end() {
	b := c.batch
	b.out, c.out.Buf = c.out.Buf, nil
	c.batch, b.conn, b.parsed = nil, nil, arguments{}
	c.in.Shrink()
	c.server.batches.Put(b)
}

// execute executes the commands that have arrived completely. It stops if a command closes the
// connection.
func (c *conn) execute() {
	for !c.closing && !c.server.cut.Load() {
		args, n, err := c.in.Next()
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
		c.in.Done(n)
		c.relieve()
	}
	c.batch.flush()
}

// relieve sends finished replies once they are large. A short command may have a long reply, and
// more commands may follow.
func (c *conn) relieve() {
	if len(c.batch.text) >= resp.SendBytes {
		c.batch.flush()
	}
	if len(c.out.Buf) >= resp.SendBytes && c.out.Send() != nil {
		c.closing = true
	}
}

// read waits for bytes. It returns false if no more will come.
func (c *conn) read() bool {
	more, fault := c.in.Read(c.unknown())
	if fault != "" {
		c.refuse(fault)
		c.dismiss()
	}
	return more
}

// dismiss sends the last reply to a client that exceeded a bound and may still be sending. Closing
// with unread bytes would reset the connection, and the client would lose the reply.
func (c *conn) dismiss() {
	_ = c.out.Send()
	c.out.Drain()
	if conn, ok := c.net.(*gate.Conn); ok {
		conn.Lingers = true
	}
}

// release frees the reservations of the connection when its goroutine ends.
func (c *conn) release() {
	c.in.Release()
	c.closeMulti()
	c.out.Release()
}
