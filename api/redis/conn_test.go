package redis

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/countd/countd/internal/must"
)

// nullConn accepts everything that is written.
type nullConn struct{ net.Conn }

func (nullConn) Write(p []byte) (int, error)      { return len(p), nil }
func (nullConn) SetWriteDeadline(time.Time) error { return nil }
func (nullConn) SetReadDeadline(time.Time) error  { return nil }
func (nullConn) Close() error                     { return nil }

// textConn is a client that has sent some text.
type textConn struct {
	nullConn
	left []byte // text that was not read yet
	err  error  // error that the next read returns instead of text; io.EOF follows
	read []byte // buffer of the last read
}

func (c *textConn) Read(p []byte) (n int, err error) {
	if len(c.left) > 0 {
		n, c.read = copy(p, c.left), p
		c.left = c.left[n:]
		return n, nil
	}
	err, c.err = cmp.Or(c.err, io.EOF), nil
	return 0, err
}

// counted returns a counter's value.
func counted(c prometheus.Counter) float64 {
	var m dto.Metric
	if c.Write(&m) != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

var until = must.Become

// The replies to a pipeline do not depend on how the network splits it.
func TestPipelineInPieces(t *testing.T) {
	c := dial(t, serve(t, newFakeNode(), nil))
	whole := wire("INCR posts:1:like") + "GET posts:1:like\r\n" + wire("ECHO '"+strings.Repeat("a", 5000)+"'") + "PING\r\n"
	for step := 1; step < len(whole); step = step*3 + 1 {
		for piece := range slices.Chunk([]byte(whole), step) {
			if _, err := c.conn.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		n := c.reply()
		for _, want := range []string{`"` + n + `"`, `"` + strings.Repeat("a", 5000) + `"`, "+PONG"} {
			if got := c.reply(); got != want {
				t.Fatalf("in steps of %d: %s, want %s", step, got, want)
			}
		}
	}
}

func TestProtocolErrors(t *testing.T) {
	s := serve(t, newFakeNode(), func(c *Config) { c.CommandBytesMax = 1 << 16; c.BulkBytesMax = 1 << 10; c.ArgsMax = 5000 })
	for _, test := range []struct {
		name, in, want string
	}{
		{"a bad length", "*1\r\n$-7\r\n", "-ERR Protocol error: invalid bulk length: an argument has at most 1024 bytes"},
		{"after a good command", "*1\r\n$4\r\nPING\r\n*x\r\n", "+PONG"},
		{"a long argument", "*1\r\n$1025\r\n", "-ERR Protocol error: invalid bulk length: an argument has at most 1024 bytes"},
		{"many arguments", "*5001\r\n", "-ERR Protocol error: invalid multibulk length: a command has at most 5000 arguments"},
		{"a large command", "*5000\r\n" + strings.Repeat("$100\r\n"+strings.Repeat("a", 100)+"\r\n", 700), "-ERR Protocol error: a command is larger than 64 KiB"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := dial(t, s)
			go func() { _, _ = io.WriteString(c.conn, test.in) }() // fails if the server closes the connection first
			if got := c.reply(); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if test.want == "+PONG" {
				c.reply()
			}
			if _, err := c.in.ReadByte(); err == nil {
				t.Error("the connection says more")
			}
		})
	}
}

// A page of another site may make a browser post commands. The server does not execute them.
func TestHTTPIsNotServed(t *testing.T) {
	n := newFakeNode()
	s := serve(t, n, nil)
	for _, head := range []string{"POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"} {
		c := dial(t, s)
		if _, err := io.WriteString(c.conn, head+"Content-Length: 99\r\n\r\n"+wire("INCR posts:1:like")); err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(c.in) // reads until the server closes or resets the connection
	}
	if n.writes.Load() != 0 {
		t.Error("the command was executed")
	}
}

func TestTooManyConnections(t *testing.T) {
	s := serve(t, newFakeNode(), func(c *Config) { c.ConnsMax = 2 })
	a, b := dial(t, s), dial(t, s)
	a.want("PING", "+PONG")
	b.want("PING", "+PONG")
	if got := dial(t, s).reply(); got != "-ERR max number of clients reached" {
		t.Errorf("the third is told %s", got)
	}
	a.conn.Close()
	until(t, "the first has left", func() bool { return s.listener.Open() == 1 })
	dial(t, s).want("PING", "+PONG")
	if n := counted(s.metrics.ConnsRefused); n != 1 {
		t.Errorf("%v refusals are counted", n)
	}
}

// The server refuses a connection whose file descriptor is reserved for the node.
func TestKeptDescriptors(t *testing.T) {
	s := serve(t, newFakeNode(), func(c *Config) { c.DescriptorsMax = 3 })
	if got := dial(t, s).reply(); got != "-ERR max number of clients reached" {
		t.Errorf("it is told %s", got)
	}
}

func TestTimeouts(t *testing.T) {
	s := serve(t, newFakeNode(), func(c *Config) { c.IdleTimeout = 50 * time.Millisecond; c.ArriveTimeout = 100 * time.Millisecond })
	dial(t, s).ended() // a connection that sends nothing
	slow := dial(t, s)
	go func() { // ends when the server has closed the connection
		for {
			if _, err := io.WriteString(slow.conn, "a"); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	if _, err := slow.in.ReadByte(); err == nil {
		t.Error("a command that never ends is answered")
	}
	if n := counted(s.metrics.Timeouts); n != 2 {
		t.Errorf("%v timeouts are counted", n)
	}
}

// A client may send without a pause, so that the end of each command arrives with the beginning of
// the next one. Each command still has its own time to arrive.
func TestEndlessPipeline(t *testing.T) {
	const arrive = 3 * time.Second
	s := serve(t, newFakeNode(), func(c *Config) { c.ArriveTimeout = arrive })
	c := dial(t, s)
	next := "*1\r\n$4\r\nPI"
	for end := time.Now().Add(3 * arrive / 2); time.Now().Before(end); next = "NG\r\n*1\r\n$4\r\nPI" {
		if _, err := io.WriteString(c.conn, next); err != nil {
			t.Fatal(err)
		}
		if next[0] == 'N' && c.reply() != "+PONG" {
			t.Fatal("a PING is not answered so")
		}
		time.Sleep(arrive / 50)
	}
	if n := counted(s.metrics.Timeouts); n != 0 {
		t.Errorf("%v timeouts are counted", n)
	}
}

// With many connections at once:
//
//  1. each connection sees its own counts in order;
//  2. no increment is lost;
//  3. there is no race.
func TestManyConnections(t *testing.T) {
	n := newFakeNode()
	s := serve(t, n, nil)
	const conns, rounds = 20, 30
	var all sync.WaitGroup
	for i := range conns {
		c := dial(t, s)
		all.Go(func() {
			for round := range rounds {
				got := c.do(fmt.Sprintf("INCR posts:%d:like", i), "INCR users:1:posts", "PING", fmt.Sprintf("GET posts:%d:like", i))
				if want := fmt.Sprint(round + 1); got[0] != want || got[3] != `"`+want+`"` {
					t.Errorf("connection %d, round %d: %q", i, round, got)
				}
			}
		})
	}
	all.Wait()
	dial(t, s).want("GET users:1:posts", fmt.Sprintf("%q", fmt.Sprint(conns*rounds)))
}

// A panic ends only the connection that caused it. The server counts panics.
func TestPanics(t *testing.T) {
	n := newFakeNode()
	s := serve(t, n, nil)
	delete(n.tables, "users")
	c := dial(t, s)
	c.send("GET users:1:posts")
	if _, err := c.in.ReadByte(); err == nil {
		t.Error("it is answered")
	}
	until(t, "it is counted", func() bool { return counted(s.metrics.Panics) == 1 })
	delete(n.tables, "unread")
	c = dial(t, s)
	c.send("COUNTD.POLL 1", "COUNTD.POLL 1 DOTS 1 shop") // polls for different names run concurrently
	if _, err := c.in.ReadByte(); err == nil {
		t.Error("polls are answered")
	}
	until(t, "that is counted", func() bool { return counted(s.metrics.Panics) == 2 })
	dial(t, s).want("GET posts:1:like", "null")
}

func TestBadConfig(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Config)
	}{
		{"no backend", func(c *Config) { c.Backend = nil }},
		{"no listener", func(c *Config) { c.Listener = nil }},
		{"no registry", func(c *Config) { c.Registry = nil }},
		{"no logger", func(c *Config) { c.Logger = nil }},
		{"a negative timeout", func(c *Config) { c.IdleTimeout = -1 }},
		{"a negative bound", func(c *Config) { c.ConnsMax = -1 }},
		{"too small a command", func(c *Config) { c.CommandBytesMax = 100 }},
	} {
		good := serve(t, newFakeNode(), nil).cfg
		good.Registry = prometheus.NewRegistry()
		test.change(&good)
		if _, err := New(good); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
}
