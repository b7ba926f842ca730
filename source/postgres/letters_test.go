package postgres

import (
	"strings"
	"testing"

	"github.com/countd/countd/source/brokertest"
)

func TestMissingLetters(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	q := db.queue(t, "pub", "countd", outbox)
	brokertest.MissingLetters(t, q, "nowhere.letters") // the schema nowhere does not exist
	db.exec(t, "CREATE ROLE reader LOGIN REPLICATION")
	q.Config = strings.Replace(q.Config, "postgres://postgres@", "postgres://reader@", 1)
	db.exec(t, "CREATE TABLE countd_dead_letters (id text)")
	brokertest.MissingLetters(t, q, "letters_of_nobody")
}
