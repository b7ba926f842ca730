package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/countd/countd/internal/proctest"
)

// TestSourcesDoc runs the command lines of docs/SOURCES.md in order. It uses a source of NATS,
// because its positions are numbers like those in the document. It also runs each block of SQL, and
// creates a source with the configuration that follows the block. After each part, the counts are
// exact.
func TestSourcesDoc(t *testing.T) {
	long(t)
	beside(t)
	text, err := os.ReadFile("../../../docs/SOURCES.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	queue, db := startNATSQueue(t), startAppDatabase(t)

	const messages, rows = 900, 10
	likes := make([]like, messages)
	for i := range likes {
		likes[i] = like{uint64(i % rows), 1}
	}
	if err := queue.write(t.Context(), likes); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	truth := "id,like\n" // the truth file: sums of the messages before position 812, where the first message has position 1
	for id := range rows {
		truth += fmt.Sprintf("%d,%d\n", id, (811-id+rows-1)/rows)
	}
	replace := strings.NewReplacer("likes.yaml", file("likes.yaml", "name: likes\n"+queue.config), "truth.csv", file("truth.csv", truth), "127.0.0.1/app", "postgres@"+db.addr+"/app")
	is := func(when string, want func(id int) int64) {
		t.Helper()
		for id := range rows {
			if got := n.Rows("posts", []string{strconv.Itoa(id)})[0].Counts["like"]; got != want(id) {
				t.Errorf("%s: row %d is %d, want %d", when, id, got, want(id))
			}
		}
	}
	// If a broker does not answer, the source's reason names the error. The node logs it once, and
	// not in the format of the client library.
	first := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(doc)[1]
	n.MustCtl("source", "create", file("down.yaml", strings.Replace(first, "127.0.0.1:6379", proctest.FreePorts(t, 1)[0], 1)))
	succeeds(t, "the source says why it does not go on", func(context.Context) error {
		var shown sourceShown
		n.MustCall(http.MethodGet, "/v1/sources/likes", nil, &shown)
		if !strings.Contains(shown.Reason, "connection refused") {
			return fmt.Errorf("%+v", shown)
		}
		return nil
	})
	if log := n.Log(); strings.Contains(log, "redis: ") || strings.Count(log, "connection refused") > 1 {
		t.Errorf("the log is\n%s", log)
	}
	n.MustCtl("source", "delete", "likes")

	commands := regexp.MustCompile(`(?m)^    countctl (.*?)(?:  +#.*)?$`).FindAllStringSubmatch(doc, -1)
	if len(commands) < 11 {
		t.Fatalf("docs/SOURCES.md has the commands %q", commands)
	}
	deleted := false
	for _, command := range commands {
		args := words(replace.Replace(command[1]))
		if args[0] == "reconcile" {
			if deleted { // the document deletes its source, but the next commands need one
				n.MustCtl("source", "create", replace.Replace("likes.yaml"))
				n.MustCtl("source", "show", "likes", "--wait")
				deleted = false
			}
			if strings.Contains(command[1], "--quiesced") {
				n.MustCtl("source", "pause", "likes")
			}
			args = append(args, "--yes")
		}
		n.MustCtl(args...)
		deleted = deleted || args[1] == "delete"
		switch {
		case strings.HasSuffix(command[1], "--wait"):
			is("counted", func(int) int64 { return messages / rows })
		case args[0] == "reconcile" && strings.Contains(command[1], "--source") && !strings.Contains(command[1], "--dry-run"):
			is("corrected", func(int) int64 { return messages / rows }) // the seek made some messages count twice, and reconcile corrected this
		case strings.Contains(command[1], "--postgres"):
			is("as in the database", func(id int) int64 { return int64(id) })
		}
	}

	examples := regexp.MustCompile("(?s)```sql\n(.*?)```.*?```yaml\n(.*?)```").FindAllStringSubmatch(doc, -1)
	if len(examples) != 2 {
		t.Fatalf("docs/SOURCES.md has %d examples of SQL", len(examples))
	}
	for i, example := range examples {
		n.MustCtl("source", "delete", "likes")
		if i > 0 { // repeat, because a node reads from the slot until a moment after its source is deleted
			succeeds(t, "the slot is dropped", func(ctx context.Context) error {
				return db.do(ctx, "SELECT pg_drop_replication_slot('countd_likes'); DROP PUBLICATION countd")
			})
		}
		before := n.Rows("posts", []string{"1"})[0].Counts["like"]
		for statement := range strings.Lines(example[1]) {
			if err := db.do(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		if i == 1 {
			if err := db.do(t.Context(), "INSERT INTO likes VALUES (1)"); err != nil {
				t.Fatal(err)
			}
		}
		n.MustCtl("source", "create", file("postgres.yaml", strings.Replace(example[2], "127.0.0.1:5432", db.addr, 1)))
		n.MustCtl("source", "show", "likes", "--wait")
		if got := n.Rows("posts", []string{"1"})[0].Counts["like"]; got != before+1 {
			t.Errorf("with\n%s row 1 is %d, want %d", example[1], got, before+1)
		}
	}
}

// words splits a command line like a shell, but only with the syntax that the documentation uses.
func words(line string) (all []string) {
	for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1) {
		all = append(all, strings.Trim(word, "'"))
	}
	return all
}

// appDatabase is a server with a database app and a user countd. The table likes of app has id rows
// for each post id.
type appDatabase struct{ addr string }

func startAppDatabase(t *testing.T) *appDatabase {
	t.Helper()
	db := &appDatabase{proctest.StartPostgres(t, nil).Addr}
	conn, err := pgx.Connect(t.Context(), "postgres://postgres@"+db.addr+"/postgres?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err = conn.Exec(t.Context(), "CREATE DATABASE app"); err == nil {
		err = db.do(t.Context(), "CREATE ROLE countd LOGIN REPLICATION; CREATE TABLE likes (post_id bigint);"+
			"INSERT INTO likes SELECT id FROM generate_series(1, 9) id, generate_series(1, id)")
	}
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// do runs SQL statements in the database app.
func (db *appDatabase) do(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, "postgres://postgres@"+db.addr+"/app?sslmode=disable")
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}
