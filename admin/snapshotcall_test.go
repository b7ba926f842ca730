package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard"
)

// A snapshot that is fetched by a stream call is the one that the group's leader opens itself, with the same
// facts. It has several pieces.
func TestSnapshotCall(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 1)
	var ids []uint64
	for i := range uint64(40_000) {
		ids = append(ids, i*i*0x9e3779b97f4a7c15>>8)
	}
	for part := range slices.Chunk(ids, 10_000) {
		write(t, n, part...)
	}
	group := n.Keyspace("posts").FirstGroup
	read := func(s *clientadmin.Snapshot, err error) ([]byte, snapshotFacts) {
		t.Helper()
		must.Do(t, err)
		stream, err := io.ReadAll(s)
		must.Do(t, errors.Join(err, s.Close()))
		if int64(len(stream)) != s.Bytes {
			t.Errorf("%d bytes, want %d", len(stream), s.Bytes)
		}
		return stream, snapshotFacts{s.Bytes, s.Index, s.Rows, s.Digest, s.Modulus}
	}
	here, facts := read(a.snapshot(t.Context(), group))
	fetched, told := read(fetchSnapshot(t.Context(), n, "n1.a", group, snapshotWaitsDefault))
	if told != facts || !bytes.Equal(here, fetched) || len(fetched) <= snapshotPieceBytes {
		t.Errorf("fetched %d bytes and %+v; here are %d, and %+v", len(fetched), told, len(here), facts)
	}
	status := n.Status().Groups
	for _, g := range status {
		if g.ID == group && (g.Rows != facts.Rows || g.Digest != facts.Digest || facts.Modulus != 1) {
			t.Errorf("facts %+v of a shard with %+v", facts, g)
		}
	}
}

// The leader's errors, and a leader that hangs or sends too little, end the reader with an error after which
// another try may succeed. The end of the reader's context is no such error.
func TestSnapshotCallFails(t *testing.T) {
	t.Parallel()
	facts, err := json.Marshal(snapshotFacts{Bytes: 9})
	must.Do(t, err)
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	type answers = func(ctx context.Context, send func([]byte) error) error
	var answer atomic.Pointer[answers] // a handler may run on when its test has ended
	_, n := openAnswering(t, func(ctx context.Context, _ []byte, send func([]byte) error) error { return (*answer.Load())(ctx, send) })
	for name, test := range map[string]struct {
		answer answers
		want   string // a part of the error
	}{
		"an error":       {func(context.Context, func([]byte) error) error { return errors.New("broken") }, "broken"},
		"no facts":       {func(_ context.Context, send func([]byte) error) error { return send([]byte("x")) }, "invalid character"},
		"a silent start": {func(ctx context.Context, _ func([]byte) error) error { return hang(ctx) }, "canceled"},
		"an early end": {func(_ context.Context, send func([]byte) error) error {
			return errors.Join(send(facts), send([]byte("12345678")))
		}, "ends 1 bytes early"},
		"an error later": {func(_ context.Context, send func([]byte) error) error {
			return errors.Join(send(facts), send([]byte("12345678")), errors.New("broken"))
		}, "broken"},
		"silence later": {func(ctx context.Context, send func([]byte) error) error {
			return errors.Join(send(facts), send([]byte("12345678")), hang(ctx))
		}, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			answer.Store(&test.answer)
			s, err := fetchSnapshot(t.Context(), n, "n1.a", 1, snapshotWaits{first: time.Second, later: time.Second})
			if err == nil {
				_, err = io.ReadAll(s)
				must.Do(t, s.Close())
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !client.Retryable(err) {
				t.Errorf("%v, retryable %v; want %q", err, client.Retryable(err), test.want)
			}
		})
	}
	last := func(ctx context.Context, send func([]byte) error) error { return errors.Join(send(facts), hang(ctx)) }
	answer.Store(&last)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := fetchSnapshot(ctx, n, "n1.a", 1, snapshotWaitsDefault)
	must.Do(t, err)
	cancel()
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) || client.Retryable(err) {
		t.Errorf("after the end of its context, the reader returns %v", err)
	}
	must.Do(t, s.Close())
}

// Once the caller is gone, the leader sends no more and closes the snapshot.
func TestSnapshotCallEnds(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 1)
	write(t, n, 1)
	request, err := json.Marshal(snapshotRequest{n.Keyspace("posts").FirstGroup})
	must.Do(t, err)
	gone := errors.New("gone")
	sent := 0
	if err := a.SendSnapshot(t.Context(), request, func([]byte) error { sent++; return gone }); !errors.Is(err, gone) || sent != 1 {
		t.Errorf("%d pieces, %v", sent, err)
	}
	for _, bad := range []string{"", "{", `{"group":0}`, `{"group":4294967295}`} {
		if err := a.SendSnapshot(t.Context(), []byte(bad), func([]byte) error { return nil }); err == nil {
			t.Errorf("a snapshot was sent for the request %q", bad)
		}
	}
	if _, err := a.snapshot(t.Context(), 4294967295); !errors.Is(err, shard.ErrNotBackedUp) || client.Retryable(err) {
		t.Errorf("a group that is not there: %v", err)
	}
}
