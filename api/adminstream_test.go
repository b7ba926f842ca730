package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/replica"
)

// withSnapshots is a fakeNode whose snapshots the test chooses.
type withSnapshots struct {
	*fakeNode
	open    func() (*replica.Snapshot, error)
	restore func(io.Reader) (raftfsm.SnapshotFacts, error)
}

func (w *withSnapshots) OpenSnapshot(context.Context, uint32) (*replica.Snapshot, error) {
	return w.open()
}

func (w *withSnapshots) RestoreShard(_ context.Context, _ uint32, stream io.Reader, _ admin.RestoreOptions) (raftfsm.SnapshotFacts, error) {
	return w.restore(stream)
}

func (w *withSnapshots) config(c *Config) { c.Admin = w }

func TestSnapshotIsStreamed(t *testing.T) {
	l := startFakeServer(t, nil)
	got := l.do("GET", "/v1/admin/groups/1/snapshot", "")
	if got.status != 200 || got.body != fakeSnapshot || got.header.Get("Countd-Index") != "40" ||
		got.header.Get("Countd-Rows") != "3" || got.header.Get("Countd-Digest") != "00c0ffee00c0ffee" {
		t.Errorf("answered %d %q %v", got.status, got.body, got.header)
	}
	got = l.do("GET", "/v1/admin/groups/2/snapshot", "")
	if got.status != http.StatusTemporaryRedirect || got.header.Get("Location") != "http://127.0.0.1:7410/v1/admin/groups/2/snapshot" {
		t.Errorf("of another node's group: %d %v", got.status, got.header)
	}
	l.wantGood()
}

// closing is a reader. Close closes its channel.
type closing struct {
	io.Reader
	closed chan struct{}
}

func (c *closing) Close() error { close(c.closed); return nil }

// endless is a reader without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// The server closes a snapshot when the client has received all of it. It also does so when the
// client sends HEAD, or closes the connection. If a snapshot fails midway, the server cuts the
// connection, so that no client mistakes a part for the whole.
func TestSnapshotIsClosed(t *testing.T) {
	whole := func() io.Reader { return strings.NewReader(strings.Repeat("s", 3<<20)) }
	for name, test := range map[string]struct {
		method string
		body   io.Reader
		bytes  int64
		read   int64 // bytes that the client reads; below 0 for all
		broken bool
	}{
		"read whole":           {"GET", whole(), 3 << 20, -1, false},
		"the head alone":       {"HEAD", whole(), 3 << 20, -1, false},
		"the client goes":      {"GET", endless{}, 1 << 40, 1 << 20, false},
		"it ends early":        {"GET", whole(), 4 << 20, -1, true},
		"it cannot be read on": {"GET", io.MultiReader(whole(), &failing{}), 4 << 20, -1, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &closing{test.body, make(chan struct{})}
			n := &withSnapshots{open: func() (*replica.Snapshot, error) { return &replica.Snapshot{ReadCloser: c, Bytes: test.bytes}, nil }}
			l := startFakeServer(t, n.config)
			request, err := http.NewRequest(test.method, "http://"+l.server.Addr().String()+"/v1/admin/groups/1/snapshot", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			in := io.Reader(response.Body)
			if test.read >= 0 {
				in = io.LimitReader(in, test.read)
			}
			if _, err := io.Copy(io.Discard, in); (err != nil) != test.broken {
				t.Errorf("reading it: %v", err)
			}
			response.Body.Close()
			select {
			case <-c.closed:
			case <-time.After(must.BecomeMax):
				t.Error("it stays open")
			}
			l.wantGood()
		})
	}
}

type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, errors.New("the disk is on fire") }

// As long as bytes arrive, a restore accepts a body that is larger than BodyBytesMax and takes
// longer than ReadTimeout. On a busy machine a piece may arrive too late for a short timeout, so
// the test tries longer timeouts.
func TestRestoreTakesLongStreams(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{400 * time.Millisecond, 2 * time.Second, 10 * time.Second} {
		got, err := restoreSlowly(t, timeout)
		if err == nil && got.status == 200 && strings.Contains(got.body, `"rows":5242880`) {
			return
		}
		t.Logf("within %v: answered %d %s, %v", timeout, got.status, got.body, err)
	}
	t.Error("no stream was taken")
}

// restoreSlowly restores from a body of known length, and then from a slow body in chunks. The slow
// body takes longer than ReadTimeout, but each of its pieces takes less.
func restoreSlowly(t *testing.T, timeout time.Duration) (reply, error) {
	t.Helper()
	n := &withSnapshots{restore: func(in io.Reader) (raftfsm.SnapshotFacts, error) {
		read, err := io.Copy(io.Discard, in)
		return raftfsm.SnapshotFacts{Rows: uint64(read)}, err
	}}
	l := startFakeServer(t, func(c *Config) {
		n.config(c)
		c.BodyBytesMax, c.ReadTimeout = 1<<20, timeout
	})
	got, err := l.try("POST", "/v1/admin/groups/1/restore", bytes.NewReader(make([]byte, 5<<20)), "Content-Type", contentTypeStream)
	if err != nil || got.status != 200 || !strings.Contains(got.body, `"rows":5242880`) {
		return got, err
	}
	in, out := io.Pipe()
	go func() {
		piece := bytes.Repeat([]byte("s"), 1<<20)
		for range 5 {
			_, _ = out.Write(piece)
			time.Sleep(timeout / 4) // each pause is well within the timeout, but the whole stream takes longer
		}
		out.Close()
	}()
	return l.try("POST", "/v1/admin/groups/1/restore", in, "Content-Type", contentTypeStream)
}

// The server aborts a stream without progress. It does not parse the unread bytes of a refused
// stream as the next request.
func TestRestoreOfBrokenStreams(t *testing.T) {
	failed := make(chan error, 1)
	n := &withSnapshots{restore: func(in io.Reader) (raftfsm.SnapshotFacts, error) {
		_, err := io.Copy(io.Discard, in)
		failed <- err
		return raftfsm.SnapshotFacts{}, errors.Join(admin.ErrBadSnapshot, err)
	}}
	l := startFakeServer(t, func(c *Config) { n.config(c); c.ReadTimeout = 500 * time.Millisecond })
	c, err := net.Dial("tcp", l.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "POST /v1/admin/groups/1/restore HTTP/1.1\r\nHost: a\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat("s", 500_000))
	if got := readReply(t, c); got.status != 400 {
		t.Errorf("answered %d %v", got.status, got.header)
	}
	_ = c.SetReadDeadline(time.Now().Add(must.BecomeMax))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("half a stream was taken for a whole one")
	}
	n.restore = func(io.Reader) (raftfsm.SnapshotFacts, error) { return raftfsm.SnapshotFacts{}, admin.ErrShardNotEmpty }
	got, err := l.try("POST", "/v1/admin/groups/1/restore", strings.NewReader(strings.Repeat("GET / HTTP/1.1\r\n\r\n", 100)), "Content-Type", contentTypeStream)
	if err != nil || got.status != 409 {
		t.Errorf("answered %d %s, %v", got.status, got.body, err)
	}
}
