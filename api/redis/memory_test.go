package redis

import (
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/countd/countd/api/redis/resp"
)

// When the shared memory of connections is used up, the server refuses a large command but serves
// small ones.
func TestLargeCommandsShareTheirMemory(t *testing.T) {
	s := serve(t, newFakeNode(), func(c *Config) { c.LargeBytesMax = 60 << 10 })
	a, b := dial(t, s), dial(t, s)
	half := "*2\r\n$4\r\nECHO\r\n$60000\r\n"
	if _, err := io.WriteString(a.conn, half+strings.Repeat("a", 30_000)); err != nil {
		t.Fatal(err)
	}
	until(t, "the first takes memory", func() bool { return s.shared.Memory.Used() > 0 })
	go func() { _, _ = io.WriteString(b.conn, half+strings.Repeat("a", 60_000)) }() // the write fails when the server refuses the command
	if got := b.reply(); got != "-OVERLOADED the connections take all the memory that they may" {
		t.Errorf("refused with %.100s", got)
	}
	dial(t, s).want("PING", "+PONG")
	if _, err := io.WriteString(a.conn, strings.Repeat("a", 30_000)+"\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := a.reply(); len(got) != 60_002 {
		t.Errorf("the first is answered %d bytes", len(got))
	}
	until(t, "small commands make the first give its memory back", func() bool {
		a.do("PING")
		return s.shared.Memory.Used() == 0
	})
}

// A connection that no longer needs its large buffer releases it.
func TestIdleConnectionsHoldNoMemory(t *testing.T) {
	s := serve(t, newFakeNode(), nil)
	c := dial(t, s)
	text := strings.Repeat("a", 60_000)
	for range 2 {
		c.want("ECHO "+text, `"`+text+`"`)
		if s.shared.Memory.Used() == 0 {
			t.Error("a large command was read into nothing")
		}
		until(t, "its memory is given back", func() bool { return s.shared.Memory.Used() == 0 })
	}
	c.want("PING", "+PONG")
	if n := counted(s.metrics.Timeouts); n != 0 {
		t.Errorf("%v timeouts are counted", n)
	}
}

// Transactions use the shared memory until they end, by EXEC, DISCARD or the end of the connection.
func TestTransactionsShareTheMemory(t *testing.T) {
	s := serve(t, newFakeNode(), func(c *Config) { c.LargeBytesMax = 33 << 10 })
	echo := "ECHO " + strings.Repeat("a", 10_000)
	a, b, third := dial(t, s), dial(t, s), dial(t, s)
	a.want("MULTI", "+OK", echo, "+QUEUED", echo, "+QUEUED", echo, "+QUEUED")
	b.want("MULTI", "+OK", echo, "+QUEUED", echo, "-OVERLOADED the connections take all the memory that they may", "PING", "+QUEUED",
		"EXEC", "-EXECABORT Transaction discarded because of previous errors.", "PING", "+PONG", "MULTI", "+OK", echo, "+QUEUED")
	third.want("MULTI", "+OK", echo, "-OVERLOADED the connections take all the memory that they may", "DISCARD", "+OK")
	third.want("MULTI", "+OK", "INCR posts:1:like", "+QUEUED", "EXEC", "[1]") // a small transaction needs no shared memory
	a.want("DISCARD", "+OK")
	third.want("MULTI", "+OK", echo, "+QUEUED")
	b.conn.Close()
	third.conn.Close()
	until(t, "all is given back", func() bool { return s.shared.Memory.Used() == 0 })
}

// A client that writes a long pipeline before it reads gets all replies, although they exceed the
// socket buffers. If a client never reads, the server closes its connection at the bound.
func TestClientsThatDoNotRead(t *testing.T) {
	const replies = 4000
	text := strings.Repeat("x", 10_000)
	s := serve(t, newFakeNode(), func(c *Config) { c.OutputBytesMax, c.WriteTimeout = 50_000_000, time.Minute })
	c := dial(t, s)
	for range replies {
		c.send("ECHO " + text)
	}
	for range replies {
		if got := c.reply(); len(got) != len(text)+2 {
			t.Fatalf("a reply of %d bytes", len(got))
		}
	}
	c.want("PING", "+PONG")

	s = serve(t, newFakeNode(), func(c *Config) { c.OutputBytesMax = 1 << 20 })
	c = dial(t, s)
	line := wire("ECHO " + text)
	for { // until the server closes the connection
		if _, err := io.WriteString(c.conn, line); err != nil {
			break
		}
	}
	until(t, "it is counted", func() bool { return counted(s.metrics.OutputFull) == 1 })
	until(t, "it has left", func() bool { return s.listener.Open() == 0 })
}

// Short commands with long replies use no more memory than other commands, even after a planned
// command.
func TestShortCommandsWithLongReplies(t *testing.T) {
	s := serve(t, newFakeNode(), nil)
	for _, first := range []string{"", "GET posts:1:like\n"} {
		long := first + strings.Repeat("a\n", 100_000)
		from := &textConn{}
		c := newConn(s, from)
		c.begin()
		for range 2 { // the second time, the buffer is large enough for one read
			from.left = []byte(long)
			for len(from.left) > 0 && c.read() {
				c.execute()
			}
		}
		if out, text := cap(c.out.Buf), cap(c.batch.text); max(out, text) > 4*resp.SendBytes {
			t.Errorf("behind %q the replies took %d bytes, and %d while they were planned", first, out, text)
		}
		c.release()
	}
}

// A connection without a command keeps no memory of a large command.
func TestLargeCommandsAreForgotten(t *testing.T) {
	from := &textConn{}
	c := newConn(serve(t, newFakeNode(), nil), from)
	defer c.release()
	execute := func(bytes string) {
		from.left = []byte(bytes)
		for len(from.left) > 0 && c.read() {
			c.begin()
			c.execute()
			c.end()
		}
	}
	long := "*20001\r\n" + strings.Repeat("$1\r\na\r\n", 20_001)
	execute(long)
	execute(long) // this time, the buffer is large enough for one read
	execute("*2\r\n$4\r\nECHO\r\n$1\r\na\r\n")
	large := weak.Make(&from.read[0])
	if cap(from.read) < len(long)/2 {
		t.Fatalf("the last read had a buffer of %d bytes", cap(from.read))
	}
	from.read, from.err = nil, os.ErrDeadlineExceeded
	c.read() // releases the buffer, and then waits
	if runtime.GC(); large.Value() != nil {
		t.Error("the large buffer is still referred to")
	}
}
