package program

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// LogEvery is the interval at which a repeated message is written.
	LogEvery = time.Minute
	// messagesMax bounds the number of remembered messages. It is several times the number of
	// different messages in the libraries. At the bound, the LogLimiter forgets all messages, and
	// writes each again at its next occurrence.
	messagesMax = 256
)

// LogLimiter writes the first occurrence of a message, and after that at most one per minute. The
// attribute "times" is the number of occurrences since the last written one. Messages that differ
// only in digits or attributes count as the same message. The zero LogLimiter is ready to use. It
// is safe for concurrent use.
type LogLimiter struct {
	mu struct { // never held during I/O
		sync.Mutex
		messages map[string]*loggedMessage
	}
	now func() time.Time // time.Now if nil
}

// loggedMessage is the state of a message that was written at least once.
type loggedMessage struct {
	written time.Time
	times   uint64 // number of occurrences since then
}

// Logger returns a logger that forwards messages to logger within the limit. All loggers of a
// LogLimiter share the limit. Debug messages are not limited.
func (l *LogLimiter) Logger(logger *slog.Logger) *slog.Logger {
	return slog.New(&logHandler{Handler: logger.Handler(), limiter: l})
}

// pass counts a message, and reports whether to write it now. If so, times is the number of
// occurrences since the last written one.
func (l *LogLimiter) pass(text string) (times uint64, write bool) {
	now := time.Now
	if l.now != nil {
		now = l.now
	}
	key, at := withoutDigits(text), now()
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mu.messages[key]
	if m == nil {
		if l.mu.messages == nil || len(l.mu.messages) >= messagesMax {
			l.mu.messages = map[string]*loggedMessage{}
		}
		l.mu.messages[key] = &loggedMessage{written: at}
		return 1, true
	}
	m.times++
	if at.Sub(m.written) < LogEvery {
		return 0, false
	}
	times = m.times
	*m = loggedMessage{written: at}
	return times, true
}

func withoutDigits(text string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// logHandler is the handler of a logger that a LogLimiter returned.
type logHandler struct {
	slog.Handler
	limiter *LogLimiter
}

func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return h.Handler.Handle(ctx, r)
	}
	times, write := h.limiter.pass(r.Message)
	if !write {
		return nil
	}
	if times > 1 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("times", times))
	}
	return h.Handler.Handle(ctx, r)
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.Handler.WithAttrs(attrs), h.limiter}
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.Handler.WithGroup(name), h.limiter}
}
