package postgres

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/countd/countd/source"
)

// FuzzDSN: ParseConfig refuses each DSN in which the library finds a password.
func FuzzDSN(f *testing.F) {
	if err := os.Unsetenv("PGPASSWORD"); err != nil {
		f.Fatal(err)
	}
	accepted := func(dsn string) bool {
		cfg := source.Config{
			Name: "a", Type: source.TypePostgres, DSN: dsn, Slot: "s", Publication: "p", Prefix: "x", DeadLetters: "l",
			Format: source.FormatJSON, OnError: source.OnErrorStop, Batch: source.Bounds{Messages: 1},
		}
		_, err := source.ParseConfig(cfg.JSON())
		return err == nil
	}
	if !accepted("postgres://u@h:5432/d") {
		f.Fatal("a DSN without a password is refused")
	}
	for _, dsn := range []string{
		"postgres://u:p@h/d", "postgres://u:1?p@h/d", "postgres://h/d?pass%77ord=p", "postgresql://h/d#?p%61ssword=p",
		"host=h user=u@c", "host=h password = p", "host=h password='p'",
	} {
		f.Add(dsn)
	}
	f.Fuzz(func(t *testing.T, dsn string) {
		read, err := pgconn.ParseConfig(dsn)
		hasPassword := err == nil && read.Password != "" && !strings.Contains(dsn, "passfile") && !strings.Contains(dsn, "service")
		if hasPassword && accepted(dsn) {
			t.Errorf("%q has password %q, and is accepted", dsn, read.Password)
		}
	})
}

// TestNodeOfDSN: a DSN must not name a file or a socket of the node. It must not make the node send
// a password from its environment or home directory.
func TestNodeOfDSN(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".pgpass"), []byte("*:*:*:*:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	open := func(dsn string) (*Broker, error) {
		return Open(&source.Config{Name: "a", Type: source.TypePostgres, DSN: dsn}, source.Access{})
	}
	for _, password := range []string{"", "secret"} {
		t.Setenv("PGPASSWORD", password)
		b, err := open("postgres://u@h/d?connect_timeout=3&sslmode=require")
		if err != nil {
			t.Fatal(err)
		}
		if b.conn.Password != "" || b.conn.SSLCertMode != "disable" {
			t.Errorf("it would send %q, and certificates: %s", b.conn.Password, b.conn.SSLCertMode)
		}
	}
	for _, dsn := range []string{
		"host=/var/run/postgresql user=u dbname=d", "postgres:///d?host=/tmp", "postgres://h1,%2Ftmp/d", "host=h passfile=/f", "host=h sslkey=/k sslcert=/c",
		"host=h sslrootcert=/f", "service=s servicefile=/f", "host=h sslcrl=/f",
	} {
		if _, err := open(dsn); err == nil || !strings.HasPrefix(err.Error(), "dsn: ") {
			t.Errorf("%s is opened: %v", dsn, err)
		}
	}
}
