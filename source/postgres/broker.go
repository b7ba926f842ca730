// Package postgres owns the connections to PostgreSQL, and reads its log for package source. It
// reads messages of pg_logical_emit_message, or changes of tables, which it converts to Debezium
// envelopes.
//
// It never creates a slot or a publication; the operator does. A slot retains the log that was not
// confirmed, so nothing is lost while no node reads. An abandoned slot fills the disk of
// PostgreSQL.
//
// Invariant: the package confirms a position to PostgreSQL only after every shard has passed the
// position.
package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/countd/countd/source"
)

// Broker is a connection to a database. It has partition 0 only.
type Broker struct {
	cfg  *source.Config
	conn *pgconn.Config

	mu struct {
		sync.Mutex
		control *pgconn.PgConn // connection for queries; nil before the first use
		// connects counts the connections for queries. compared is the value of connects when
		// Again last began.
		connects, compared uint64
		// asked is the database system that Identity found last. Queries fail on any other system.
		// A new connection may reach another server, because the client tries the addresses of a
		// DSN in turn.
		asked string
		read  string // system whose log an open reader reads; "" for none
		// unpublished is the start position of the last reader that did not find the publication.
		// published is the end of the log when a reader with this start position first failed.
		unpublished, published source.Position
	}
}

// dsnKeys are the settings that a DSN may have. None of them names a file of the node or is a
// password.
var dsnKeys = []string{
	"host", "port", "dbname", "user", "sslmode", "ssl", "sslsni", "sslnegotiation", "channel_binding", "require_auth",
	"connect_timeout", "target_session_attrs", "application_name", "client_encoding", "options",
	"min_protocol_version", "max_protocol_version",
}

func hostsOf(fallbacks []*pgconn.FallbackConfig) (hosts []string) {
	for _, f := range fallbacks {
		hosts = append(hosts, f.Host)
	}
	return hosts
}

// Open returns a broker. It connects when it is used.
func Open(cfg *source.Config, access source.Access) (*Broker, error) {
	conn, err := pgconn.ParseConfigWithOptions(cfg.DSN, pgconn.ParseConfigOptions{ConnStringAllowedKeys: dsnKeys})
	if err != nil {
		return nil, fmt.Errorf("dsn: %w", err)
	}
	for _, host := range append([]string{conn.Host}, hostsOf(conn.Fallbacks)...) {
		if network, _ := pgconn.NetworkAddress(host, conn.Port); network == "unix" {
			return nil, fmt.Errorf("dsn: host %s is a socket of the node: name a host", host)
		}
	}
	if cfg.Username != "" {
		conn.User = cfg.Username
	}
	conn.Password = access.Password // set it even if it is "", because pgconn may have taken a password from the environment or the home directory
	if access.TLS != nil {
		access.TLS.ServerName = conn.Host
		conn.TLSConfig, conn.Fallbacks = access.TLS, nil
	} else {
		conn.SSLCertMode = "disable" // do not send a certificate from the home directory
	}
	conn.RuntimeParams["replication"] = "database"
	conn.RuntimeParams["application_name"] = "countd " + cfg.Name
	conn.RuntimeParams["client_min_messages"] = "warning" // the method noticed needs warnings, which a setting of the role may turn off
	return &Broker{cfg: cfg, conn: conn}, nil
}

// Close closes the connection for queries.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closeLocked()
}

func (b *Broker) closeLocked() error {
	if b.mu.control == nil {
		return nil
	}
	control := b.mu.control
	b.mu.control = nil
	return control.Close(context.Background()) // needs no timeout, because it only sends one last message
}

// query runs statements and returns the rows of the last one, with text values. After an error the
// next call connects again.
func (b *Broker) query(ctx context.Context, sql string) ([][][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.control == nil {
		system, err := b.connectLocked(ctx)
		if err == nil && b.mu.asked != "" && b.mu.asked != system {
			err = source.Stalled("the server is another one by now: it was %s and is %s", b.mu.asked, system)
			_ = b.closeLocked() // err already says why
		}
		if err != nil {
			return nil, err
		}
	}
	return b.queryLocked(ctx, sql)
}

func (b *Broker) queryLocked(ctx context.Context, sql string) ([][][]byte, error) {
	results, err := b.mu.control.Exec(ctx, sql).ReadAll()
	if err != nil {
		_ = b.closeLocked() // err already says why
		return nil, err
	}
	if len(results) == 0 {
		return nil, errors.New("the server answers without a result")
	}
	return results[len(results)-1].Rows, nil
}

// connectLocked opens the connection for queries, and returns the database system of its server.
func (b *Broker) connectLocked(ctx context.Context) (system string, err error) {
	if b.mu.control, err = pgconn.ConnectConfig(ctx, b.conn); err != nil {
		b.mu.control = nil
		return "", err
	}
	b.mu.connects++
	if system, err = identify(ctx, b.mu.control); err != nil {
		_ = b.closeLocked() // err already says why
	}
	return system, err
}

// identify returns the database system and the timeline of a connection's server.
func identify(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	results, err := conn.Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
	if err != nil {
		return "", err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 2 {
		return "", errors.New("the server does not identify itself")
	}
	system := results[0].Rows[0]
	return fmt.Sprintf("system %s timeline %s", system[0], system[1]), nil
}

// ask returns the database system that answers queries, and binds later queries to it. read is
// another system whose log an open reader reads, or "".
func (b *Broker) ask(ctx context.Context) (asked, read string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.control == nil {
		asked, err = b.connectLocked(ctx)
	} else if asked, err = identify(ctx, b.mu.control); err != nil {
		_ = b.closeLocked() // err already says why
	}
	if err != nil {
		return "", "", err
	}
	b.mu.asked = asked
	if b.mu.read == asked {
		return asked, "", nil
	}
	return asked, b.mu.read, nil
}

// publishedAt returns a position at which the publication exists, for a reader that did not find it
// at the position start. The first call for a start returns end, the end of the log. Later calls
// for the same start return the same position, so that the stall's reason does not change.
func (b *Broker) publishedAt(start, end source.Position) source.Position {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.unpublished != start || b.mu.published == (source.Position{}) {
		b.mu.unpublished, b.mu.published = start, end
	}
	return b.mu.published
}

// setCompared records the connection for queries at the beginning of Again.
func (b *Broker) setCompared() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.compared = b.mu.connects
}

// stillCompared returns an error if the connection for queries was replaced since Again began. The
// server may have restarted, and lost the end of its log.
func (b *Broker) stillCompared() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.compared != b.mu.connects {
		return errors.New("the server was connected to anew while its log was compared with what was counted")
	}
	return nil
}

// setRead sets the system whose log is read; "" for none.
func (b *Broker) setRead(system string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.read = system
}

// row runs a query and returns its first row, or nil if there is no row. A row with fewer columns
// is an error.
func (b *Broker) row(ctx context.Context, columns int, sql string) ([][]byte, error) {
	rows, err := b.query(ctx, sql)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	if len(rows[0]) < columns {
		return nil, fmt.Errorf("%d columns of %d", len(rows[0]), columns)
	}
	return rows[0], nil
}

// Identity returns the database system, its timeline and the slot. If a reader reads the log of
// another system than the one that answers queries, Identity returns both systems.
func (b *Broker) Identity(ctx context.Context) (string, error) {
	asked, read, err := b.ask(ctx)
	if err != nil {
		return "", err
	}
	if _, err := b.confirmed(ctx); err != nil {
		return "", err
	}
	if err := b.published(ctx); err != nil {
		return "", err
	}
	if read != "" {
		asked += ", whose log is read from " + read + ","
	}
	return asked + " slot " + b.cfg.Slot, nil
}

// published returns a *source.StalledError if the publication is missing or has no table to read.
// It also does so if the publication contains the dead-letter table, because each dead letter
// would then become another bad message.
func (b *Broker) published(ctx context.Context) error {
	// Call to_regclass only for the dead-letter table, because it fails for a schema that the user
	// may not use.
	found, err := b.row(ctx, 2, "SELECT p.puballtables OR EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"+
		" JOIN pg_publication_tables t ON t.schemaname = n.nspname AND t.tablename = c.relname"+
		" WHERE c.oid = to_regclass('"+b.cfg.DeadLetters+"') AND t.pubname = p.pubname)"+
		", EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = p.pubname) FROM pg_publication p WHERE p.pubname = '"+b.cfg.Publication+"'")
	switch {
	case err != nil:
		return err
	case found == nil:
		return source.Stalled("publication %s is missing", b.cfg.Publication)
	case b.cfg.Prefix == "" && string(found[1]) != "t":
		return source.Stalled("publication %s has no tables: nothing can be read", b.cfg.Publication)
	case b.cfg.Prefix == "" && string(found[0]) == "t":
		return source.Stalled("publication %s has the table of dead letters, %s, or all tables: the source would read its dead letters; name the tables in the publication", b.cfg.Publication, b.cfg.DeadLetters)
	}
	return nil
}

// confirmed returns the position up to which readers of the slot have confirmed the log.
func (b *Broker) confirmed(ctx context.Context) (source.Position, error) {
	slot, err := b.row(ctx, 4, "SELECT plugin, coalesce(database = current_database(), false), coalesce(wal_status, ''), coalesce(confirmed_flush_lsn, '0/0')"+
		" FROM pg_replication_slots WHERE slot_name = '"+b.cfg.Slot+"'")
	switch {
	case err != nil:
		return source.Position{}, err
	case slot == nil:
		return source.Position{}, source.Stalled("slot %s is missing: SELECT pg_create_logical_replication_slot('%[1]s', 'pgoutput') makes it", b.cfg.Slot)
	case string(slot[0]) != "pgoutput":
		return source.Position{}, source.Stalled("slot %s has plugin %s; a source needs pgoutput", b.cfg.Slot, slot[0])
	case string(slot[1]) != "t":
		return source.Position{}, source.Stalled("slot %s is of another database", b.cfg.Slot)
	case string(slot[2]) == "lost":
		return source.Position{}, source.Stalled("slot %s has lost the log that it needs (max_slot_wal_keep_size)", b.cfg.Slot)
	}
	return source.ParsePosition(string(slot[3]))
}

// Partitions returns partition 0.
func (b *Broker) Partitions(context.Context) ([]uint32, error) { return []uint32{0}, nil }

// Bounds returns the confirmed position of the slot, and the end of the log.
func (b *Broker) Bounds(ctx context.Context, _ uint32) (first, end source.Position, err error) {
	if first, err = b.confirmed(ctx); err != nil {
		return first, end, err
	}
	lsn, err := b.row(ctx, 1, "SELECT pg_current_wal_flush_lsn()")
	if err != nil {
		return first, end, err
	}
	if lsn == nil {
		return first, end, errors.New("the server does not say where its log ends")
	}
	end, err = source.ParsePosition(string(lsn[0]))
	return first, end, err
}

// DeadLetter inserts letters into the table of dead letters, and creates the table if it is
// missing. The table keeps one copy of a letter that is written twice.
func (b *Broker) DeadLetter(ctx context.Context, letters []source.Letter) error {
	table := b.cfg.DeadLetters
	// CREATE TABLE IF NOT EXISTS needs the right to create tables even if the table exists.
	there, err := b.row(ctx, 1, "SELECT to_regclass('"+table+"')")
	if err == nil && (there == nil || there[0] == nil) {
		_, err = b.query(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (id text PRIMARY KEY, source text NOT NULL, position text NOT NULL,"+
			" reason text NOT NULL, op text NOT NULL, message bytea NOT NULL, at timestamptz NOT NULL DEFAULT now())")
	}
	if err == nil {
		err = b.published(ctx) // check again, because a publication of a whole schema contains the new table
	}
	if err != nil {
		return err
	}
	for part := range source.LetterBatches(letters, letterBatchBytes) {
		if _, err := b.query(ctx, insert(table, part)); err != nil {
			return err
		}
	}
	return nil
}

// letterBatchBytes bounds the letters of one query.
const letterBatchBytes = 1 << 20

// insert returns the statements that insert letters.
func insert(table string, letters []source.Letter) string {
	var sql strings.Builder
	for i := range letters {
		l := &letters[i]
		fmt.Fprintf(&sql, "INSERT INTO %s (id, source, position, reason, op, message) VALUES (%s, %s, %s, %s, %s, '\\x%x') ON CONFLICT DO NOTHING;",
			table, literal(l.Key()), literal(l.Source), literal(l.Position.String()), literal(l.Reason), literal(l.Op), l.Value)
	}
	return sql.String()
}

// CheckLetters implements source.LetterQueue.
func (b *Broker) CheckLetters(ctx context.Context) error {
	schema := "current_schema()"
	if of, _, qualified := strings.Cut(b.cfg.DeadLetters, "."); qualified {
		schema = "'" + of + "'"
	}
	found, err := b.row(ctx, 1, "SELECT to_regclass('"+b.cfg.DeadLetters+"') IS NOT NULL OR EXISTS (SELECT FROM pg_namespace"+
		" WHERE nspname = "+schema+" AND has_schema_privilege(oid, 'CREATE'))")
	if err == nil && found != nil && string(found[0]) == "f" {
		return source.Stalled("table %s is missing, and the user may not create it", b.cfg.DeadLetters)
	}
	return err
}

// passing lists the classes and codes of SQLSTATE for conditions that disappear by themselves: 08 a
// broken connection, 40 a transaction to repeat, 53 lack of resources, 57 a restart by an
// administrator, 55006 a slot that another node still reads.
var passing = []string{"08", "40", "53", "57", "55006"}

// Denied reports whether the server refused a statement for a lasting reason, such as an unknown
// user.
func (b *Broker) Denied(err error) bool {
	of, is := errors.AsType[*pgconn.PgError](err)
	return is && !slices.ContainsFunc(passing, func(code string) bool { return strings.HasPrefix(of.Code, code) })
}

// literal returns an SQL expression for a text. It is safe for any content of the text.
func literal(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "?")
	return "convert_from('\\x" + hex.EncodeToString([]byte(text)) + "', 'UTF8')"
}
