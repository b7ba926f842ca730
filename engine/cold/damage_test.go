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

// However often a file is found damaged, the log has a line a minute, without a stack,
// with how often it was.
func TestDamageIsToldOnceAMinute(t *testing.T) {
	var log bytes.Buffer
	s := &Store{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	for range 500 {
		s.tellDamage("000004.sst", stackError{})
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, "main.go") || !strings.Contains(text, "times=1") {
		t.Errorf("told %q", text)
	}
	log.Reset()
	s.damage.toldAt.Add(-int64(damageTold))
	s.tellDamage("000004.sst", stackError{})
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "times=500") {
		t.Errorf("told a minute later %q", text)
	}
	pebbleLogger{s.cfg}.Errorf("background error: %v", stackError{})
	if strings.Contains(log.String(), "main.go") {
		t.Errorf("Pebble's own line has a stack: %q", log.String())
	}
}
