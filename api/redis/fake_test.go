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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// fakeNode is a Backend of tables without a log.
type fakeNode struct {
	keyspaces []*shard.Keyspace
	tables    map[string]*engine.Table
	tokens    map[string]uint64 // of the last write to each keyspace

	elsewhere []*shard.Keyspace // that another node made, known here after CatchUp

	gets, writes, polls, catchUps, gaveUp atomic.Int64 // calls
	mu                                    struct {
		sync.Mutex
		writeErr func(w *shard.Write) error // before anything is applied
		readErr  func(ids []uint64) error
		written  []shard.RequestID
		opt      shard.ReadOptions // of the last Get
		catchErr error
		known    []*shard.Keyspace // by CatchUp
	}
	hold chan struct{} // when not nil, a Write waits for it
	mute bool          // CatchUp finds no leader
}

func newFakeNode() *fakeNode {
	n := &fakeNode{tables: map[string]*engine.Table{}, tokens: map[string]uint64{}}
	for _, ks := range []shard.Keyspace{
		{Name: "board", Kind: shard.KindBoard, Shards: 1},
		{Name: "feed", Kind: shard.KindFeed, Shards: 4},
		{Name: "posts", Kind: shard.KindCounters, Columns: []string{"repost", "comment", "like", "view"}, Shards: 4},
		{Name: "unread", Kind: shard.KindUnread, Columns: []string{"at", "comment"}, Shards: 4},
		{Name: "users", Kind: shard.KindCounters, Columns: []string{"posts", "followers", "following"}, Shards: 2},
	} {
		n.keyspaces = append(n.keyspaces, &ks)
		n.tables[ks.Name] = engine.New()
	}
	return n
}

func (n *fakeNode) Keyspaces() []*shard.Keyspace { return n.keyspaces }

func (n *fakeNode) Keyspace(name string) *shard.Keyspace {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, list := range [2][]*shard.Keyspace{n.mu.known, n.keyspaces} {
		for _, ks := range list {
			if ks.Name == name {
				return ks
			}
		}
	}
	return nil
}

func (n *fakeNode) CatchUp(ctx context.Context) error {
	n.catchUps.Add(1)
	if n.mute {
		<-ctx.Done()
		n.gaveUp.Add(1)
		return shard.ErrNoLeader
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.catchErr == nil {
		n.mu.known = n.elsewhere
		for _, ks := range n.elsewhere {
			if n.tables[ks.Name] == nil {
				n.tables[ks.Name] = engine.New()
			}
		}
	}
	return n.mu.catchErr
}

// Cursors of users are all absent, and nobody follows anybody; there is one channel
// and one dot.
func (n *fakeNode) Cursors(_ *shard.Keyspace, users []uint64, _ int, _ *shard.ReadOptions, rows []int64) error {
	clear(rows)
	return n.trouble(users)
}

func (n *fakeNode) Feeds(_ *shard.Keyspace, users []uint64, _ *shard.ReadOptions, into *shard.Feeds) error {
	n.polls.Add(1)
	into.Followees, into.Ends = into.Followees[:0], append(into.Ends[:0], make([]int, len(users))...)
	return n.trouble(users)
}

func (n *fakeNode) Board(_ *shard.Keyspace, opt *shard.ReadOptions) (*raftfsm.BoardView, error) {
	n.mu.Lock()
	n.mu.opt = *opt
	n.mu.Unlock()
	return &raftfsm.BoardView{
		Channels: map[string]raftfsm.Channel{"news": {Number: 1, Latest: 9}},
		Dots:     map[string]raftfsm.Dot{"shop": {Number: 2, Fired: 1, NewUsers: true}},
	}, n.trouble(nil)
}

func (n *fakeNode) trouble(ids []uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.readErr != nil {
		return n.mu.readErr(ids)
	}
	return nil
}

func (n *fakeNode) Get(ks *shard.Keyspace, ids []uint64, width int, opt *shard.ReadOptions, rows []int64) error {
	n.gets.Add(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.opt = *opt
	n.tables[ks.Name].GetMany(ids, width, rows)
	if n.mu.readErr != nil {
		return n.mu.readErr(ids)
	}
	return nil
}

func (n *fakeNode) Write(ks *shard.Keyspace, w *shard.Write) error {
	n.writes.Add(1)
	if n.hold != nil {
		<-n.hold
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.writeErr != nil {
		if err := n.mu.writeErr(w); err != nil {
			return err
		}
	}
	if w.ID.Exists() {
		n.mu.written = append(n.mu.written, w.ID)
	}
	switch {
	case w.Table == raftfsm.TableCursors:
		for i := range w.Rows {
			w.Rows[i] = 1 << 20 // past all that there is
		}
	case ks.Kind != shard.KindCounters && ks.Kind != shard.KindUnread:
		for i := range w.Rows {
			w.Rows[i] = n.writes.Load()
		}
	default:
		w.Overflows = n.tables[ks.Name].Apply(w.Ops, w.Width, w.Rows, w.Overflows[:0])
	}
	n.tokens[ks.Name] = uint64(n.writes.Load())
	w.Token = shard.Token{Cluster: 7, At: []shard.GroupIndex{{Group: 3, Index: n.tokens[ks.Name]}}}
	return nil
}

// failWrites makes writes fail from now on; nil ends that.
func (n *fakeNode) failWrites(with func(w *shard.Write) error) {
	n.mu.Lock()
	n.mu.writeErr = with
	n.mu.Unlock()
}

func (n *fakeNode) Scan(ks *shard.Keyspace, after uint64, hasAfter bool, limit, width int, _ *shard.ReadOptions) (*shard.ScanResult, error) {
	from := uint64(0)
	if hasAfter {
		from = after + 1
	}
	r := &shard.ScanResult{}
	n.tables[ks.Name].Scan(from, width, func(p *engine.Page) bool {
		take := min(len(p.IDs), limit-len(r.IDs))
		r.More = r.More || take < len(p.IDs)
		r.IDs = append(r.IDs, p.IDs[:take]...)
		r.Rows = append(r.Rows, p.Counts[:take*width]...)
		return !r.More
	})
	return r, nil
}

func (n *fakeNode) Status() shard.Status {
	s := shard.Status{Nodes: make([]shard.NodeStatus, 3)}
	for name, t := range n.tables {
		s.Groups = append(s.Groups, shard.GroupStatus{Keyspace: name, Rows: t.Stats().Rows})
	}
	return s
}

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
	go func() { served <- s.Serve() }() // ended by the cleanup
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(s.Shutdown(ctx), <-served); err != nil {
			t.Error(err)
		}
		if used := s.large.used.Load(); used != 0 {
			t.Errorf("%d bytes of the connections' budget were never given back", used)
		}
	})
	return s
}

// client is a connection that shows replies as they came.
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
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return &client{t, conn, bufio.NewReader(conn)}
}

// command is a command as clients send it.
func wire(line string) string {
	words, err := splitLine(nil, []byte(line))
	if err != nil {
		panic(line)
	}
	out := appendArray(nil, len(words))
	for _, word := range words {
		out = appendBulk(out, word)
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

// want sends each line alone and compares its reply: lines and replies take
// turns.
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

// readReply reads a reply as text: ints as 1, strings in quotes, words and errors
// with their sign, arrays in [], maps in {}.
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
