package postgres

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
)

// The client tries the addresses of a DSN in turn, so each connection may be to another server. The
// source uses only the server that Identity names.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it restarts a server several times")
	}
	one, two := newDatabase(t), newDatabaseOf(t, nil)
	for _, db := range []*database{one, two} {
		db.exec(t, "CREATE ROLE reader LOGIN REPLICATION")
		if db == one {
			db.exec(t, "ALTER SYSTEM SET max_wal_senders = 1") // a server that accepts only one stream
			db.Restart(t)
		}
		db.queue(t, "pub", "countd", outbox)
	}
	for range 50 { // so that the second server's log is longer
		two.exec(t, "SELECT pg_logical_emit_message(true, 'likes', $1)", brokertest.Like(1, 1000))
	}
	one.exec(t, "SELECT pg_logical_emit_message(true, 'likes', $1)", brokertest.Like(1, 1))
	open := func() *Broker {
		dsn := "postgres://reader@" + one.Addr + "," + two.Addr + "/postgres?sslmode=disable"
		return brokertest.BrokerOf(t, "name: likes\ntype: postgres\ndsn: "+dsn+"\nslot: pub\npublication: countd\n"+outbox, source.Access{}, Open)
	}
	identity := func(b *Broker) string {
		t.Helper()
		of, err := b.Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return of
	}

	// The first server accepts only one connection, so the log is read from the second.
	b := open()
	before := identity(b)
	first, _, err := b.Bounds(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Read(t.Context(), 0, first, source.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	if after := identity(b); after == before || !strings.Contains(after, "whose log is read from") {
		t.Errorf("the identity is %q before and %q after another server is read", before, after)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if after := identity(b); after != before {
		t.Errorf("the identity is %q, and %q after the reader is closed", before, after)
	}

	// The connection for queries breaks, and the client connects to the second server.
	b.mu.Lock()
	_ = b.mu.control.Conn().Close()
	b.mu.Unlock()
	one.exec(t, "ALTER SYSTEM SET max_wal_senders = 0")
	one.Restart(t)
	for end := time.Now().Add(must.BecomeMax); ; {
		var stalled *source.StalledError
		_, _, err := b.Bounds(t.Context(), 0)
		if errors.As(err, &stalled) && strings.Contains(err.Error(), "another one") {
			break
		}
		if err == nil {
			t.Fatal("the bounds are those of another server")
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if after := identity(b); after == before {
		t.Errorf("the identity of another server is %q", after)
	}
	if _, _, err := b.Bounds(t.Context(), 0); err != nil {
		t.Errorf("the bounds of the server that was identified: %v", err)
	}
}

// A server that restarts between the comparison and the stream may have lost the end of its log. So
// the session must repeat the comparison.
func TestRestartAfterComparing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	q := db.queue(t, "pub", "countd", outbox)
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	first, _, err := b.Bounds(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	q.Write(t, brokertest.Like(1, 1))
	_, end, err := b.Bounds(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, restarts := range []bool{false, true} {
		db.awaitFree(t, "pub")
		again, err := b.Again(t.Context(), 0, first, end, func() {})
		if err != nil || len(again.Messages) != 1 {
			t.Fatal(again, err)
		}
		if restarts {
			db.Restart(t)
			if _, _, err := b.Bounds(t.Context(), 0); err == nil {
				t.Fatal("its connection is not noticed to be gone")
			}
			must.Become(t, "it is there again", func() bool { _, _, err := b.Bounds(t.Context(), 0); return err == nil })
		}
		r, err := b.Read(t.Context(), 0, first, source.MarkOf(&again.Messages[0]))
		if (err == nil) == restarts {
			t.Errorf("restarted: %t, %v", restarts, err)
		}
		if err == nil {
			r.Close()
		}
	}
}

// A server that does not answer a request counts as silent until it sends something. A server that
// answers, but has no messages, does not count as silent.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	q := db.queue(t, "silent", "countd", outbox)
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	_, end, err := b.Bounds(t.Context(), 0)
	must.Do(t, err)
	r, err := b.Read(t.Context(), 0, end, source.Mark{})
	must.Do(t, err)
	defer r.Close()
	next := func() source.Fetched {
		got, err := r.Next(t.Context(), 10)
		must.Do(t, err)
		return got
	}
	for range 5 {
		if next().Silent {
			t.Fatal("a server without messages is silent")
		}
	}
	var pid int
	db.do(t, func(c *pgx.Conn) error {
		return c.QueryRow(t.Context(), "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'silent'").Scan(&pid)
	})
	must.Do(t, syscall.Kill(pid, syscall.SIGSTOP))
	defer syscall.Kill(pid, syscall.SIGCONT)
	must.Become(t, "it is silent", func() bool { return next().Silent })
	must.Do(t, syscall.Kill(pid, syscall.SIGCONT))
	must.Become(t, "it is heard again", func() bool { return !next().Silent })
	q.Write(t, brokertest.Like(1, 1))
	must.Become(t, "a message comes", func() bool { return len(next().Messages) == 1 })
}

// If a transaction has been open for long, the comparison must read much of the log. It reports
// progress meanwhile.
func TestLongComparison(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	q := db.queue(t, "pub", "countd", outbox)
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	first, _, err := b.Bounds(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	db.exec(t, "CREATE TABLE unpublished (n bigint)")
	open, err := pgx.Connect(t.Context(), db.dsn())
	if err == nil {
		defer open.Close(t.Context())
		_, err = open.Exec(t.Context(), "BEGIN; INSERT INTO unpublished VALUES (0)")
	}
	if err != nil {
		t.Fatal(err)
	}
	db.exec(t, "INSERT INTO unpublished SELECT generate_series(1, 100000)")
	q.Write(t, brokertest.Like(1, 1), brokertest.Like(1, 1))
	gotOn := 0
	again, err := b.Again(must.Context(t), 0, first, source.Position{Hi: 1 << 62}, func() { gotOn++ })
	if err != nil || len(again.Messages) != 2 || gotOn < 2 {
		t.Errorf("%+v, %v; it got on %d times", again, err, gotOn)
	}
}

// PostgreSQL 18 only warns that a publication is missing, and skips the changes of its tables. The
// source stalls at the last position before the skipped changes, as it does with older servers.
func TestSkippedPublication(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	q := db.queue(t, "pub", "countd", table)
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	for prefix, stalls := range map[string]bool{"": true, "likes": false} {
		here, there := net.Pipe()
		conn, err := pgconn.Construct(&pgconn.HijackedConn{Conn: here, Config: b.conn})
		if err != nil {
			t.Fatal(err)
		}
		r := &reader{
			conn: conn, dec: decoder{prefix: prefix}, items: make(chan item, 10), holds: source.NewBuffered(), ended: make(chan struct{}), b: b,
			from: source.Position{Hi: 1}, next: source.Position{Hi: 1}, heard: func() {},
		}
		go r.receive(t.Context())
		go func() { _, _ = io.Copy(io.Discard, there) }() // read and ignore the requests of Next
		keepalive := func(end byte) *pgproto3.CopyData {
			return &pgproto3.CopyData{Data: append([]byte{'k', 0, 0, 0, 0, 0, 0, 0, end}, make([]byte, 9)...)}
		}
		server := pgproto3.NewBackend(there, there)
		server.Send(keepalive(5))
		server.Send(&pgproto3.NoticeResponse{Severity: "WARNING", Code: "01000", Message: "another"})
		server.Send(&pgproto3.NoticeResponse{Severity: "WARNING", Code: "55000", Message: `skipped loading publication "countd"`})
		server.Send(keepalive(9))
		go server.Flush() // ends when the reader has ended
		var got source.Fetched
		for err == nil && got.Next.Hi < 9 {
			got, err = r.Next(t.Context(), 10)
		}
		stalled, is := errors.AsType[*source.StalledError](err)
		if is != stalls || stalls && (stalled.Next == (source.Position{}) || r.next.Hi != 5) {
			t.Errorf("with prefix %q it came to %v, %v", prefix, r.next, err)
		}
		there.Close()
		<-r.ended
	}
}
