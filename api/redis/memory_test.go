package redis

import (
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"weak"
)

// Beyond the memory that connections may use together, the server refuses a large command and
// serves small ones.
func TestLargeCommandsShareTheirMemory(t *testing.T) {
	s := serve(t, newFakeNode(), func(c *Config) { c.LargeBytesMax = 60 << 10 })
	a, b := dial(t, s), dial(t, s)
	half := "*2\r\n$4\r\nECHO\r\n$60000\r\n"
	if _, err := io.WriteString(a.conn, half+strings.Repeat("a", 30_000)); err != nil {
		t.Fatal(err)
	}
	until(t, "the first takes memory", func() bool { return s.large.used.Load() > 0 })
	go func() { _, _ = io.WriteString(b.conn, half+strings.Repeat("a", 60_000)) }() // fails when it is refused
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
	for range smallReadsMax + 1 { // so many small commands release the large buffer
		a.do("PING")
	}
	until(t, "the first gives its memory back", func() bool { return s.large.used.Load() == 0 })
}

// A connection that no longer needs its large buffer releases it.
func TestIdleConnectionsHoldNoMemory(t *testing.T) {
	s := serve(t, newFakeNode(), nil)
	c := dial(t, s)
	text := strings.Repeat("a", 60_000)
	for range 2 {
		c.want("ECHO "+text, `"`+text+`"`)
		if s.large.used.Load() == 0 {
			t.Error("a large command was read into nothing")
		}
		until(t, "its memory is given back", func() bool { return s.large.used.Load() == 0 })
	}
	c.want("PING", "+PONG")
	if n := counted(s.metrics.timeouts); n != 0 {
		t.Errorf("%v timeouts are counted", n)
	}
}

// Transactions use the same memory until they end, in whatever way.
func TestTransactionsShareTheMemory(t *testing.T) {
	s := serve(t, newFakeNode(), func(c *Config) { c.LargeBytesMax = 33 << 10 })
	echo := "ECHO " + strings.Repeat("a", 10_000)
	a, b, third := dial(t, s), dial(t, s), dial(t, s)
	a.want("MULTI", "+OK", echo, "+QUEUED", echo, "+QUEUED", echo, "+QUEUED")
	b.want("MULTI", "+OK", echo, "+QUEUED", echo, "-OVERLOADED the connections take all the memory that they may", "PING", "+QUEUED",
		"EXEC", "-EXECABORT Transaction discarded because of previous errors.", "PING", "+PONG", "MULTI", "+OK", echo, "+QUEUED")
	third.want("MULTI", "+OK", echo, "-OVERLOADED the connections take all the memory that they may", "DISCARD", "+OK")
	third.want("MULTI", "+OK", "INCR posts:1:like", "+QUEUED", "EXEC", "[1]") // a small one is always kept
	a.want("DISCARD", "+OK")
	third.want("MULTI", "+OK", echo, "+QUEUED")
	b.conn.Close()
	third.conn.Close()
	until(t, "all is given back", func() bool { return s.large.used.Load() == 0 })
}

// A client that writes a long pipeline before it reads gets all replies, though
// no socket holds them; one that never reads is closed at the bound.
func TestClientsThatDoNotRead(t *testing.T) {
	const replies = 4000
	text := strings.Repeat("x", 10_000)
	s := serve(t, newFakeNode(), func(c *Config) { c.OutputBytesMax = 50_000_000 })
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
	for { // until the server has had enough
		if _, err := io.WriteString(c.conn, line); err != nil {
			break
		}
	}
	until(t, "it is counted", func() bool { return counted(s.metrics.outputFull) == 1 })
	until(t, "it has left", func() bool { return s.listener.Open() == 0 })
}

// Short commands with long replies use no more memory than others, even behind one that is
// planned.
func TestShortCommandsWithLongReplies(t *testing.T) {
	s := serve(t, newFakeNode(), nil)
	for _, first := range []string{"", "GET posts:1:like\n"} {
		c := newConn(s, nullConn{})
		c.begin()
		c.in = []byte(first + strings.Repeat("a\n", 100_000))
		c.to = len(c.in)
		c.execute()
		if out, text := cap(c.out.buf), cap(c.batch.text); max(out, text) > 4*sendBytes {
			t.Errorf("behind %q the replies took %d bytes, and %d while they were planned", first, out, text)
		}
		c.release()
	}
}

// A refused command reserves nothing.
func TestBudget(t *testing.T) {
	b := budget{max: 10}
	var done atomic.Bool
	var all sync.WaitGroup
	all.Go(func() { // ends with the other
		for !done.Load() {
			if b.acquire(11) {
				t.Error("more is taken than there is")
			}
		}
	})
	for range 100_000 {
		if !b.acquire(10) || !b.acquire(0) {
			t.Error("what there is is refused")
			break
		}
		b.release(10)
	}
	done.Store(true)
	all.Wait()
}

// A connection without a command keeps no memory of a large command.
func TestLargeCommandsAreForgotten(t *testing.T) {
	c := newConn(serve(t, newFakeNode(), nil), nullConn{})
	defer c.release()
	execute := func(bytes string) {
		c.in = append(make([]byte, 0, 1<<20), bytes...)
		c.from, c.to = 0, len(c.in)
		c.begin()
		c.execute()
		c.end()
	}
	execute("*20001\r\n" + strings.Repeat("$1\r\na\r\n", 20_001))
	execute("*2\r\n$4\r\nECHO\r\n$1\r\na\r\n")
	large := weak.Make(&c.in[0])
	c.giveUp()
	if runtime.GC(); large.Value() != nil {
		t.Error("the large buffer is still referred to")
	}
}
