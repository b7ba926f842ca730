package postgres

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/countd/countd/source"
)

// FuzzDSN: a DSN in which the library finds a password is refused, however it is written.
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
