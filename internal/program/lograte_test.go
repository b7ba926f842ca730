package program

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// limited is a LogLimiter with a fake clock, and a log for the messages that it forwards.
type limited struct {
	LogLimiter
	clock time.Time
	log   bytes.Buffer
}

func newLimited(level slog.Level) (*limited, *slog.Logger) {
	l := &limited{clock: time.Unix(1_800_000_000, 0)}
	l.now = func() time.Time { return l.clock }
	return l, slog.New(slog.NewTextHandler(&l.log, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func (l *limited) takes(t *testing.T, want string) {
	t.Helper()
	if got := l.log.String(); got != want {
		t.Errorf("the log has\n%swant\n%s", got, want)
	}
	l.log.Reset()
}

// The first occurrence of a message is written at once. Later occurrences are written at most once
// a minute, with their number.
func TestRepeatsAreCountedByTheMinute(t *testing.T) {
	l, base := newLimited(slog.LevelInfo)
	logger := l.Logger(base)
	for range 500 {
		logger.Warn("cannot reach a peer")
	}
	l.takes(t, "level=WARN msg=\"cannot reach a peer\"\n")
	l.clock = l.clock.Add(LogEvery - time.Nanosecond)
	logger.Warn("cannot reach a peer")
	l.takes(t, "")
	l.clock = l.clock.Add(time.Nanosecond)
	logger.Warn("cannot reach a peer")
	l.takes(t, "level=WARN msg=\"cannot reach a peer\" times=501\n")
	logger.Warn("cannot reach a peer")
	l.takes(t, "")
	l.clock = l.clock.Add(time.Hour)
	logger.Warn("cannot reach a peer")
	l.takes(t, "level=WARN msg=\"cannot reach a peer\" times=2\n")
}

// Messages that differ only in attributes and digits are the same message, and loggers share the
// limit.
func TestWhatIsTheSameMessage(t *testing.T) {
	l, base := newLimited(slog.LevelInfo)
	for group := range 24 {
		l.Logger(base).With("group", group).WithGroup("raft").Warn("failed", "peer", group)
		l.Logger(base).Info(fmt.Sprintf("no answer from 127.0.0.1:%d", group))
	}
	l.takes(t, "level=WARN msg=failed group=0 raft.peer=0\nlevel=INFO msg=\"no answer from 127.0.0.1:0\"\n")
	l.Logger(base).Warn("failed otherwise")
	l.takes(t, "level=WARN msg=\"failed otherwise\"\n")
}

func TestDebugMessagesAreNotLimited(t *testing.T) {
	l, base := newLimited(slog.LevelDebug)
	for range 3 {
		l.Logger(base).Debug("sent")
	}
	l.takes(t, strings.Repeat("level=DEBUG msg=sent\n", 3))
}

func TestMessagesRememberedAreBounded(t *testing.T) {
	l, base := newLimited(slog.LevelInfo)
	logger := l.Logger(base)
	for n := range 10 * messagesMax {
		logger.Info(strings.Repeat("x", n))
		if len(l.mu.messages) > messagesMax {
			t.Fatalf("%d messages are remembered", len(l.mu.messages))
		}
	}
}
