package cold

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// stackError prints a stack but for its Error, as errors of Pebble do.
type stackError struct{}

func (stackError) Error() string { return "checksum mismatch" }

func (stackError) Format(s fmt.State, _ rune) { fmt.Fprint(s, "checksum mismatch\n\tmain.go:1") }

// However often a file is found damaged, the log has a line a minute, without a stack.
func TestDamageIsToldOnceAMinute(t *testing.T) {
	var log bytes.Buffer
	s := &Store{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	for range 500 {
		s.tellDamage("000004.sst", stackError{})
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, "main.go") {
		t.Errorf("told %q", text)
	}
	log.Reset()
	for range 500 {
		pebbleLogger{s}.Errorf("background error: %v", stackError{})
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, "main.go") {
		t.Errorf("Pebble's own words are %q", text)
	}
}
