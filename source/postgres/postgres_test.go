package postgres

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// database is a database of a real PostgreSQL with a table and its publication.
type database struct {
	*proctest.Server
	conn *pgx.Conn
}

var template proctest.PostgresTemplate

func TestMain(m *testing.M) {
	code := m.Run()
	template.Remove()
	os.Exit(code)
}

func newDatabase(t *testing.T) *database { return newDatabaseOf(t, &template) }

func newDatabaseOf(t *testing.T, template *proctest.PostgresTemplate) *database {
	t.Helper()
	db := &database{Server: proctest.StartPostgres(t, template)}
	db.exec(t, "CREATE TABLE likes (id bigserial PRIMARY KEY, post_id bigint, weight int, note text)")
	db.exec(t, "ALTER TABLE likes REPLICA IDENTITY FULL")
	db.exec(t, "CREATE PUBLICATION countd FOR TABLE likes")
	t.Cleanup(func() { db.conn.Close(context.Background()) })
	return db
}

func (db *database) dsn() string {
	return "postgres://postgres@" + db.Addr + "/postgres?sslmode=disable"
}

// do calls f with a connection, and repeats it after an error, because the server may be starting.
func (db *database) do(t *testing.T, f func(*pgx.Conn) error) {
	t.Helper()
	var err error
	for end := time.Now().Add(must.BecomeMax); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if db.conn == nil || db.conn.IsClosed() {
			if db.conn, err = pgx.Connect(t.Context(), db.dsn()); err != nil {
				continue
			}
		}
		if err = f(db.conn); err == nil {
			return
		}
		if !db.conn.IsClosed() {
			break
		}
	}
	t.Fatal(err)
}

func (db *database) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	db.do(t, func(c *pgx.Conn) error {
		_, err := c.Exec(t.Context(), sql, args...)
		return err
	})
}

// awaitFree waits until the server has released a slot, which takes some time after its reader has
// closed.
func (db *database) awaitFree(t *testing.T, slot string) {
	t.Helper()
	must.Become(t, "the slot is free", func() bool {
		free := false
		db.do(t, func(c *pgx.Conn) error {
			return c.QueryRow(t.Context(), "SELECT NOT coalesce(bool_or(active), false) FROM pg_replication_slots WHERE slot_name = $1", slot).Scan(&free)
		})
		return free
	})
}

// queue creates a slot, and returns a queue of everything that is written after that.
func (db *database) queue(t *testing.T, slot, publication, more string) *brokertest.Queue {
	db.exec(t, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
	return &brokertest.Queue{
		Config:  "name: likes\ntype: postgres\ndsn: " + db.dsn() + "\nslot: " + slot + "\npublication: " + publication + "\nbatch: {messages: 100, linger: 1ms}\n" + more,
		Open:    func(c *source.Config, access source.Access) (source.Broker, error) { return Open(c, access) },
		Restart: func(t *testing.T) { db.Restart(t) },
		Write: func(t *testing.T, values ...string) {
			db.exec(t, "SELECT pg_logical_emit_message(true, 'likes', v) FROM unnest($1::text[]) v", values)
		},
		Letters: func(t *testing.T) (all []string) {
			db.do(t, func(c *pgx.Conn) error {
				rows, err := c.Query(t.Context(), "SELECT message FROM countd_dead_letters WHERE source = 'likes' AND reason <> '' AND position <> ''")
				if err != nil {
					return err
				}
				messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
				for _, m := range messages {
					all = append(all, string(m))
				}
				return err
			})
			return all
		},
	}
}

const (
	outbox = "prefix: likes\n"
	table  = "format: debezium\nmap: {keyspace: posts, id: $.post_id, column: like, add: $.weight}\n"
)

func TestOnce(t *testing.T) {
	t.Parallel()
	brokertest.Once(t, newDatabase(t).queue(t, "countd", "countd", outbox))
}

// TestReads runs the tests that share one server.
func TestReads(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	t.Run("outbox", func(t *testing.T) { testOutbox(t, db) })
	t.Run("table", func(t *testing.T) { testTable(t, db) })
	t.Run("values", func(t *testing.T) { testValues(t, db) })
	t.Run("lag", func(t *testing.T) { testLag(t, db) })
	testLostSlot(t, db)
	t.Run("publication", func(t *testing.T) { testPublication(t, db) })
	t.Run("bounded", func(t *testing.T) { testBounded(t, db) })
	t.Run("letters", func(t *testing.T) { testLetters(t, db) })
}

// testOutbox: messages of rolled-back transactions and of other prefixes, and changes of tables,
// count nothing. A message outside of a transaction stalls the source at each start. A seek past
// that message skips no other message.
func testOutbox(t *testing.T, db *database) {
	q := db.queue(t, "outbox", "countd", outbox)
	like := brokertest.Like(1, 1)
	db.exec(t, "SELECT pg_logical_emit_message(true, 'other', $1)", like)
	db.exec(t, "INSERT INTO likes (post_id, weight) VALUES (1, 1)")
	db.do(t, func(c *pgx.Conn) error {
		tx, err := c.Begin(t.Context())
		if err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'likes', $1)", like); err != nil {
			return err
		}
		return tx.Rollback(t.Context())
	})
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, Open)
	first, _, err := b.Bounds(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	q.Write(t, like, like)
	_, before, err := b.Bounds(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	db.exec(t, "SELECT pg_logical_emit_message(false, 'other', $1)", like)
	db.exec(t, "SELECT pg_logical_emit_message(false, 'likes', $1)", brokertest.Like(1, 10))
	q.Write(t, like)
	if again, err := b.Again(t.Context(), 0, first, before, func() {}); err != nil || len(again.Messages) != 2 {
		t.Fatalf("a comparison of what stands below it: %+v, %v", again, err)
	}
	c := sinktest.New(2, nil)
	var at source.Position
	for range 2 {
		r := q.Start(t, c)
		r.Stalls(t, "outside of a transaction")
		at = seekTo(t, r.Status().Reason)
		r.Stop()
		if got := c.Sums()[1]; got != 2 {
			t.Fatalf("row 1 is %d at a message outside of transactions, want 2", got)
		}
		db.awaitFree(t, "outbox")
	}
	c.Seek(at)
	r := q.Start(t, c)
	r.Counts(t, c, 3)
	r.Stop()
	q.Write(t, brokertest.Like(1, 100))
	q.Start(t, c).Counts(t, c, 103)
}

// seekTo returns the position that the reason of a stall names.
func seekTo(t *testing.T, reason string) source.Position {
	t.Helper()
	_, to, _ := strings.Cut(reason, "seek to ")
	to, _, named := strings.Cut(to, " ")
	if !named {
		t.Fatalf("no position to seek to: %s", reason)
	}
	at, err := source.ParsePosition(to)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// testTable: the sums match the rows after changes of any kind. A TRUNCATE stalls the source.
func testTable(t *testing.T, db *database) {
	db.exec(t, "DELETE FROM likes")
	c := sinktest.New(2, nil)
	r := db.queue(t, "rows", "countd", table).Start(t, c)
	db.exec(t, "INSERT INTO likes (post_id, weight, note) SELECT i % 5, i, repeat('x', 5000) FROM generate_series(1, 300) i")
	db.exec(t, "UPDATE likes SET weight = weight + 1 WHERE id % 3 = 0")
	db.exec(t, "UPDATE likes SET post_id = 1 WHERE id % 4 = 0")
	db.exec(t, "DELETE FROM likes WHERE id % 7 = 0")
	db.exec(t, "INSERT INTO likes (post_id, weight) VALUES (77, 1)") // the last one
	must.Become(t, "all is counted", func() bool { return c.Sums()[77] == 1 })
	for id := range 5 {
		var want int64
		db.do(t, func(conn *pgx.Conn) error {
			return conn.QueryRow(t.Context(), "SELECT coalesce(sum(weight), 0) FROM likes WHERE post_id = $1", id).Scan(&want)
		})
		if got := c.Sums()[uint64(id)]; got != want {
			t.Errorf("post %d is %d, want %d", id, got, want)
		}
	}
	if s := r.Status(); s.Rejected > 0 {
		t.Errorf("%+v", s)
	}
	db.exec(t, "TRUNCATE likes")
	r.Stalls(t, "the table was truncated")
}

// testValues: the source subtracts a row when its post is deleted, or when a condition begins to
// exclude the row. Columns may have any type whose value is a whole number or a boolean.
func testValues(t *testing.T, db *database) {
	for _, sql := range []string{
		"CREATE DOMAIN flag AS bool", "CREATE DOMAIN amount AS int",
		"CREATE TABLE articles (id bigint PRIMARY KEY)",
		"CREATE TABLE claps (id bigserial PRIMARY KEY, article bigint REFERENCES articles ON DELETE SET NULL, visible flag, hidden bool, n numeric(10, 2), more amount)",
	} {
		db.exec(t, sql)
	}
	db.exec(t, "ALTER TABLE claps REPLICA IDENTITY FULL")
	db.exec(t, "CREATE PUBLICATION claps FOR TABLE claps")
	start := func(slot, mapping string) (*sinktest.Cluster, *brokertest.Reader) {
		c := sinktest.New(1, nil)
		return c, db.queue(t, slot, "claps", "format: debezium\nmap: {keyspace: posts, id: $.article, column: like, "+mapping+"}\n").Start(t, c)
	}
	visible, r1 := start("claps_visible", "add: $.n, if: $.visible")
	shown, r2 := start("claps_shown", "add: $.more, unless: $.hidden")
	truths, r3 := start("claps_truths", "add: $.visible")
	db.exec(t, "INSERT INTO articles SELECT generate_series(1, 9)")
	db.exec(t, "INSERT INTO claps (article, visible, hidden, n, more) SELECT a, a % 2 = 0, a % 3 = 0, 5.00, a FROM generate_series(1, 8) a")
	db.exec(t, "INSERT INTO claps (article, visible, hidden, n, more) VALUES (NULL, true, false, 1, 1), (1, true, false, NULL, NULL)")
	db.exec(t, "UPDATE claps SET visible = NOT visible WHERE article IN (1, 2)")
	db.exec(t, "UPDATE claps SET hidden = NOT hidden WHERE article IN (3, 4)")
	db.exec(t, "UPDATE claps SET article = 5 WHERE article IS NULL")
	db.exec(t, "DELETE FROM articles WHERE id IN (6, 7)")
	db.exec(t, "UPDATE claps SET article = 8 WHERE id = (SELECT min(id) FROM claps WHERE article IS NULL)")
	db.exec(t, "INSERT INTO claps (article, visible, hidden, n, more) VALUES (9, true, false, 1, 1)") // the last one
	for _, of := range []struct {
		c    *sinktest.Cluster
		r    *brokertest.Reader
		rows string
	}{
		{visible, r1, "sum(n) FILTER (WHERE visible)"}, {shown, r2, "sum(more) FILTER (WHERE NOT hidden)"}, {truths, r3, "count(*) FILTER (WHERE visible)"},
	} {
		must.Become(t, "all is counted", func() bool { return of.c.Sums()[9] == 1 })
		for id := range uint64(10) {
			var want int64
			db.do(t, func(conn *pgx.Conn) error {
				return conn.QueryRow(t.Context(), "SELECT coalesce("+of.rows+", 0)::bigint FROM claps WHERE article = $1", id).Scan(&want)
			})
			if got := of.c.Sums()[id]; got != want {
				t.Errorf("%s: article %d is %d, want %d", of.rows, id, got, want)
			}
		}
		if s := of.r.Status(); s.Rejected > 0 {
			t.Errorf("%s: %+v", of.rows, s)
		}
	}
}

func testLostSlot(t *testing.T, db *database) {
	like := brokertest.Like(1, 1)
	const drop = "SELECT pg_drop_replication_slot('SLOT')"
	n := 0
	for name, c := range map[string]struct {
		harm []string
		want string
	}{
		"dropped":      {[]string{drop}, "is missing: SELECT"},
		"made anew":    {[]string{drop, "WRITE", "SELECT pg_create_logical_replication_slot('SLOT', 'pgoutput')"}, "past position"},
		"moved":        {[]string{"WRITE", "SELECT pg_replication_slot_advance('SLOT', pg_current_wal_lsn())"}, "past position"},
		"other plugin": {[]string{drop, "SELECT pg_create_logical_replication_slot('SLOT', 'test_decoding')"}, "has plugin test_decoding"},
		"unpublished":  {[]string{"DROP PUBLICATION SLOT"}, "is missing"},
	} {
		n++
		slot := fmt.Sprintf("slot_%d", n)
		t.Run(name, func(t *testing.T) {
			db.exec(t, "CREATE PUBLICATION "+slot)
			q := db.queue(t, slot, slot, outbox)
			shards := sinktest.New(2, nil)
			q.Write(t, like, like)
			r := q.Start(t, shards)
			r.Counts(t, shards, 2)
			r.Stop()
			for _, sql := range c.harm {
				if sql == "WRITE" {
					q.Write(t, like)
					continue
				}
				db.awaitFree(t, slot)
				db.exec(t, strings.ReplaceAll(sql, "SLOT", slot))
			}
			r = q.Start(t, shards)
			r.Stalls(t, c.want)
			r.Stop()
			if got := shards.Sums()[1]; got != 2 {
				t.Errorf("row 1 is %d after messages were lost", got)
			}
		})
	}
}

// FuzzDecode: no message of pgoutput makes the decoder panic, not even an invalid one.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("R\x00\x00\x00\x01public\x00likes\x00f\x00\x01\x01id\x00\x00\x00\x00\x14\xff\xff\xff\xff"))
	f.Add([]byte("I\x00\x00\x00\x01N\x00\x01t\x00\x00\x00\x0242"))
	f.Add([]byte("U\x00\x00\x00\x01O\x00\x01n\x00N\x00\x01u"))
	f.Add([]byte("M\x01\x00\x00\x00\x00\x00\x00\x00\x05likes\x00\x00\x00\x00\x02{}"))
	f.Add([]byte("T\x00\x00\x00\x01\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, prefix := range []string{"", "likes"} {
			d := decoder{prefix: prefix, relations: map[uint32]relation{1: {"likes", []column{{"id", 20}, {"ok", boolType}}}}}
			out, err := d.decode(data)
			if err == nil && out.has && out.message.Value == nil && len(data) < 10 {
				t.Fatalf("%q", data)
			}
		}
	})
}

// testLetters: a source does not read its dead letters.
func testLetters(t *testing.T, db *database) {
	const want = "would read its dead letters"
	db.exec(t, "CREATE PUBLICATION everything FOR ALL TABLES")
	db.queue(t, "everything", "everything", table).Start(t, sinktest.New(1, nil)).Stalls(t, want)

	db.exec(t, "CREATE SCHEMA app")
	db.exec(t, "CREATE TABLE app.likes (id bigserial PRIMARY KEY, post_id bigint, weight text)")
	db.exec(t, "CREATE PUBLICATION app FOR TABLES IN SCHEMA app")
	q := db.queue(t, "app", "app", table+"dead-letters: app.dead\n")
	r := q.Start(t, sinktest.New(1, nil))
	db.exec(t, "INSERT INTO app.likes (post_id, weight) VALUES (1, 'no number')")
	r.Stalls(t, want) // stalls at the first dead letter, which creates the table

	// A source that reads messages of an outbox reads no tables, so this publication is harmless.
	c := sinktest.New(1, nil)
	q = db.queue(t, "outbox_of_everything", "everything", outbox)
	q.Write(t, "poison", brokertest.Like(1, 1))
	q.Start(t, c).Counts(t, c, 1)
}

// testLag: the lag is 0 if no message waits, even while other tables are written. The lag is
// unknown while the reader is behind.
func testLag(t *testing.T, db *database) {
	q := db.queue(t, "lag", "countd", outbox)
	c := sinktest.New(1, nil)
	q.Write(t, brokertest.Like(1, 1))
	r := q.Start(t, c)
	r.Counts(t, c, 1)
	db.exec(t, "CREATE TABLE other (n int)")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	conn, err := pgx.Connect(t.Context(), db.dsn())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		defer conn.Close(context.Background())
		for ctx.Err() == nil {
			_, _ = conn.Exec(ctx, "INSERT INTO other SELECT 1") // fails when the test ends
		}
	}()
	defer func() { cancel(); <-ended }()
	began := time.Now()
	must.Become(t, "there is no lag", func() bool {
		s := r.Status()
		lag, known := s.Lag()
		return known && lag == 0 && s.LagSeconds == 0 && s.Looked.After(began)
	})
}

func testBounded(t *testing.T, db *database) {
	q := db.queue(t, "bounded", "countd", outbox)
	brokertest.Bounded(t, q, func(r source.Reader) int { return r.(*reader).holds.Bytes() })
}

// testPublication: if the publication was created after the slot, or was created again, the source
// stalls and names a seek. After the seek it continues. A source whose publication has no tables
// stalls.
func testPublication(t *testing.T, db *database) {
	db.exec(t, "CREATE TABLE thanks (id bigserial PRIMARY KEY, post_id bigint, weight int)")
	db.exec(t, "ALTER TABLE thanks REPLICA IDENTITY FULL")
	const insert = "INSERT INTO thanks (post_id, weight) VALUES (1, 1)"
	q := db.queue(t, "older", "thanks", table)
	c := sinktest.New(1, nil)
	db.exec(t, insert)
	db.exec(t, "CREATE PUBLICATION thanks FOR TABLE thanks")
	r := q.Start(t, c)
	const want = "publication thanks was not there at position "
	r.Stalls(t, want)
	var reason string
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s := r.Status()
		if s.State != source.StateStalled || reason != "" && s.Reason != reason {
			t.Fatalf("%s: %s, before %s", s.State, s.Reason, reason)
		}
		reason = s.Reason
	}
	at := seekTo(t, reason)
	r.Stop()
	c.Restore(0, at) // as a seek does
	db.exec(t, insert)
	r = q.Start(t, c)
	r.Counts(t, c, 1)
	db.exec(t, "DROP PUBLICATION thanks")
	r.Stop()
	db.exec(t, insert)
	db.exec(t, "CREATE PUBLICATION thanks FOR TABLE thanks")
	q.Start(t, c).Stalls(t, want)

	db.exec(t, "CREATE PUBLICATION bare")
	db.queue(t, "bare", "bare", table).Start(t, sinktest.New(1, nil)).Stalls(t, "publication bare has no tables")
}

// TestRegrown: a database was restored to an earlier state, for example from a copy of its disk,
// and has written another log since.
func TestRegrown(t *testing.T) {
	if testing.Short() {
		t.Skip("it restarts a server several times")
	}
	t.Parallel()
	db := newDatabase(t)
	data, copied := filepath.Join(db.Dir(), "data"), filepath.Join(db.Dir(), "copy")
	move := func(to, from string) func(*testing.T) {
		return func(t *testing.T) {
			db.Kill()
			brokertest.Copy(t, to, from)
			db.Restart(t)
		}
	}
	brokertest.Regrown(t, db.queue(t, "countd", "countd", outbox), move(copied, data), move(data, copied))
}

// TestCrashKeepsMarks: a server that has crashed may have forgotten the slot's latest position.
// Then it sends messages that are already counted. The source does not stall, and counts each
// message once.
func TestCrashKeepsMarks(t *testing.T) {
	if testing.Short() {
		t.Skip("it restarts a server several times")
	}
	t.Parallel()
	db := newDatabase(t)
	q := db.queue(t, "countd", "countd", table)
	c := sinktest.New(2, nil)
	for n := range int64(4) {
		r := q.Start(t, c)
		db.exec(t, "INSERT INTO likes (post_id, weight) VALUES (1, 1)")
		r.Counts(t, c, n+1)
		db.Restart(t)
		r.Stop()
		db.exec(t, "ALTER SYSTEM SET timezone = "+[]string{"'UTC'", "'Asia/Tokyo'"}[n%2])
	}
}
