package postgres

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// testAccess configures a server that accepts countd only with a user, a password, and TLS with
// certificates of both sides.
func testAccess(t *testing.T, db *database) {
	a := brokertest.NewAccess(t)
	data := db.setting(t, "data_directory")
	for name, from := range map[string]string{"ca.crt": a.CA, "server.crt": a.Server.Cert, "server.key": a.Server.Key} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		db.place(t, filepath.Join(data, name), text)
	}
	db.exec(t, "SET password_encryption = 'scram-sha-256'")
	db.exec(t, "CREATE ROLE countd LOGIN REPLICATION PASSWORD '"+brokertest.Password+"'")
	db.exec(t, "CREATE ROLE stranger LOGIN PASSWORD '"+brokertest.Password+"'")
	for statement := range strings.SplitSeq(brokertest.Documented(t, "(?s)(CREATE TABLE countd_dead_letters.*?GRANT .*?);\n"), ";") {
		db.exec(t, statement) // create the table here, because the user must not create tables
	}
	db.place(t, db.setting(t, "hba_file"), []byte(`host all postgres 127.0.0.1/32 trust
hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca
`))
	for name, value := range map[string]string{"ssl": "on", "ssl_ca_file": "ca.crt"} {
		db.exec(t, fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value))
	}
	db.Restart(t)

	q := db.queue(t, "access", "countd", outbox+a.Fields())
	q.Config = strings.Replace(q.Config, db.dsn(), "postgres://"+db.Addr+"/postgres", 1)
	brokertest.Guarded(t, q, a, map[string]string{"password": "password authentication failed", "clear": "no encryption"})

	stranger := *q
	stranger.Config = strings.Replace(q.Config, "username: countd", "username: stranger", 1)
	stranger.Start(t, sinktest.New(1, nil)).Stalls(t, "must be superuser or replication role")
}

// setting returns the value of a setting of the server.
func (db *database) setting(t *testing.T, name string) (value string) {
	t.Helper()
	db.do(t, func(c *pgx.Conn) error { return c.QueryRow(t.Context(), "SHOW "+name).Scan(&value) })
	return value
}

// place writes a file that the server's user owns.
func (db *database) place(t *testing.T, path string, text []byte) {
	t.Helper()
	of, err := os.Stat(filepath.Dir(path))
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err == nil {
		owner := of.Sys().(*syscall.Stat_t)
		err = os.Chown(path, int(owner.Uid), int(owner.Gid))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAccess runs on a separate server, because it changes the configuration.
func TestAccess(t *testing.T) { t.Parallel(); testAccess(t, newDatabase(t)) }
