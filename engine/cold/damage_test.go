package cold

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// stackError is like an error of Pebble: package fmt prints it with a stack, and only Error returns
// the text alone.
type stackError struct{}

func (stackError) Error() string { return "checksum mismatch" }

func (stackError) Format(s fmt.State, _ rune) { fmt.Fprint(s, "checksum mismatch\n\tmain.go:1") }

// However often damage is found in a file, the log has one line about it a minute, without a stack.
func TestDamageIsToldOnceAMinute(t *testing.T) {
	var log bytes.Buffer
	s, err := Open(Config{Dir: "cold", FS: vfs.NewMem(), Logger: slog.New(slog.NewTextHandler(&log, nil)), Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	log.Reset()
	for range 500 {
		s.noteDamage(pebble.DataCorruptionInfo{Path: "000004.sst", Details: stackError{}})
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, "main.go") {
		t.Errorf("told %q", text)
	}
}
