package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/internal/must"
)

// serve runs a server over a backend until the test ends.
func serve(t testing.TB, b Backend, change func(*Config)) *Server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Backend: b, Listener: ln, Version: "1.2.3", Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }() // the cleanup ends it
	t.Cleanup(func() {
		if err := errors.Join(s.Shutdown(must.Context(t)), <-served); err != nil {
			t.Error(err)
		}
		if used, helpers := s.shared.Memory.Used(), s.helpers.Used(); used+helpers != 0 {
			t.Errorf("%d bytes of the connections' budget and %d helpers were never given back", used, helpers)
		}
	})
	return s
}

// client is a connection that returns replies as text.
type client struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

func dial(t testing.TB, s *Server) *client {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(must.BecomeMax))
	return &client{t, conn, bufio.NewReader(conn)}
}

// wire returns a command in the form that clients send.
func wire(line string) string {
	words, err := resp.SplitLine(nil, []byte(line))
	if err != nil {
		panic(line)
	}
	out := resp.AppendArray(nil, len(words))
	for _, word := range words {
		out = resp.AppendBulk(out, word)
	}
	return string(out)
}

func (c *client) send(lines ...string) {
	c.t.Helper()
	var all strings.Builder
	for _, line := range lines {
		all.WriteString(wire(line))
	}
	if _, err := io.WriteString(c.conn, all.String()); err != nil {
		c.t.Fatal(err)
	}
}

// do sends one pipeline and returns its replies.
func (c *client) do(lines ...string) []string {
	c.t.Helper()
	c.send(lines...)
	var replies []string
	for range lines {
		replies = append(replies, c.reply())
	}
	return replies
}

// want sends each line alone and compares its reply. pairs are a line, its reply, the next line,
// and so on.
func (c *client) want(pairs ...string) {
	c.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := c.do(pairs[i])[0]; got != pairs[i+1] {
			c.t.Errorf("%s: %s, want %s", pairs[i], got, pairs[i+1])
		}
	}
}

func (c *client) reply() string {
	c.t.Helper()
	reply, err := readReply(c.in)
	if err != nil {
		c.t.Fatalf("cannot read a reply: %v", err)
	}
	return reply
}

// ended waits for the server to close the connection.
func (c *client) ended() {
	c.t.Helper()
	if rest, err := io.ReadAll(c.in); errors.Is(err, context.DeadlineExceeded) || len(rest) > 0 {
		c.t.Errorf("the connection stays, or says %q", rest)
	}
}

// readReply reads a reply as text: ints as 1, strings in quotes, words and errors with their sign,
// arrays in [], sets in (), maps in {}.
func readReply(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	if !strings.HasSuffix(line, "\r\n") || len(line) < 3 {
		return "", fmt.Errorf("bad line %q", line)
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '+', '-':
		return line[:len(line)-2], nil
	case ':':
		_, err := strconv.ParseInt(rest, 10, 64)
		return rest, err
	case '_':
		return "null", nil
	case '$', '=':
		return readString(in, rest)
	case '*', '%', '~':
		return readAggregate(in, kind, rest)
	}
	return "", fmt.Errorf("bad line %q", line)
}

func readString(in *bufio.Reader, length string) (string, error) {
	if length == "-1" {
		return "null", nil
	}
	n, err := strconv.Atoi(length)
	if err != nil {
		return "", err
	}
	text := make([]byte, n+2)
	if _, err := io.ReadFull(in, text); err != nil {
		return "", err
	}
	return strconv.Quote(string(text[:n])), nil
}

func readAggregate(in *bufio.Reader, kind byte, length string) (string, error) {
	if length == "-1" {
		return "null", nil
	}
	n, err := strconv.Atoi(length)
	if err != nil {
		return "", err
	}
	if kind == '%' {
		n *= 2
	}
	parts := []string{}
	for range n {
		part, err := readReply(in)
		if err != nil {
			return "", err
		}
		parts = append(parts, part)
	}
	brackets := map[byte]string{'*': "[]", '~': "()", '%': "{}"}[kind]
	return brackets[:1] + strings.Join(parts, " ") + brackets[1:], nil
}

// equalReplies compares the replies of a pipeline.
func equalReplies(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("replies\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
