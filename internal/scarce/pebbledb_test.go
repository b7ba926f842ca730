package scarce

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/internal/must"
)

// stackError is like Pebble's errors: fmt prints it with a stack, but its Error returns none.
type stackError struct{}

func (stackError) Error() string { return "checksum mismatch" }

func (stackError) Format(s fmt.State, _ rune) { fmt.Fprint(s, "checksum mismatch\n\tmain.go:1") }

// Even if Pebble repeats an error, the log has only one line a minute, without a stack.
func TestErrorsAreLoggedOnceAMinute(t *testing.T) {
	var log bytes.Buffer
	d := &DB{cfg: DBConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	for range 500 {
		logger{d}.Errorf("background error: %v", stackError{})
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, "main.go") {
		t.Errorf("Pebble's own words are %q", text)
	}
}

// Close waits until the database is not in use. Afterwards Use returns ErrClosed, and a new DB can
// open the files.
func TestClose(t *testing.T) {
	files := vfs.NewMem()
	for range 2 {
		last := 0
		d := NewDB(DBConfig{Dir: "db", Holds: "things", FS: files, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
		must.Do(t, d.Open(&pebble.Options{Cache: pebble.NewCache(1 << 20), FS: d.Waiting()}))
		done, err := d.Use()
		must.Do(t, err)
		closed := make(chan error)
		go func() { closed <- d.Close(func() { last++ }) }()
		<-d.Stopping.Done()
		must.Do(t, d.Set([]byte("a"), nil, pebble.Sync)) // works, because Close waits for done
		if last > 0 {
			t.Error("Close does not wait for what is in use")
		}
		done()
		must.Do(t, <-closed)
		must.Do(t, d.Close(func() { last++ }))
		if _, err := d.Use(); !errors.Is(err, ErrClosed) || last != 1 {
			t.Errorf("used after Close: %v, %d last calls", err, last)
		}
	}
}

func TestAfter(t *testing.T) {
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b\x00", "a\x00\xff\xff": "a\x01\x00\x00"} {
		if got := string(PrefixEnd([]byte(prefix))); got != want {
			t.Errorf("after %q comes %q, want %q", prefix, got, want)
		}
	}
}
