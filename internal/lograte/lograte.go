// Package lograte owns the limit on messages that repeat: a single event can make a library,
// or each of many groups, write the same message many times. It never limits messages below
// slog.LevelInfo, which are for debugging.
//
// Invariant: the first occurrence of a message is written at once, and each written message
// includes the count of the suppressed ones.
package lograte

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// Every is how often a message that repeats is written.
	Every = time.Minute
	// messagesMax bounds the messages that are remembered: several times as many as the libraries
	// have. If there are more, the Limiter forgets all of them and writes each once more.
	messagesMax = 256
)

// Limiter writes the first occurrence of a message, and then one a minute. The attribute "times" is
// the number of occurrences since the last written one. Two messages are the same if they differ in
// digits or attributes alone. The zero Limiter is ready; it is safe for concurrent use.
type Limiter struct {
	mu struct { // never held during I/O
		sync.Mutex
		messages map[string]*message
	}
	now func() time.Time // time.Now if nil
}

// message is a message that was written.
type message struct {
	written time.Time
	times   uint64 // occurrences since
}

// Logger returns a logger that passes messages on to logger within the limit. All loggers of
// a Limiter share the limit.
func (l *Limiter) Logger(logger *slog.Logger) *slog.Logger {
	return slog.New(&handler{Handler: logger.Handler(), limiter: l})
}

// pass counts a message, and reports whether to write it now. If so, times is the number of
// occurrences since the last written one.
func (l *Limiter) pass(text string) (times uint64, write bool) {
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
			l.mu.messages = map[string]*message{}
		}
		l.mu.messages[key] = &message{written: at}
		return 1, true
	}
	m.times++
	if at.Sub(m.written) < Every {
		return 0, false
	}
	times = m.times
	*m = message{written: at}
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

// handler is one logger's part of a Limiter.
type handler struct {
	slog.Handler
	limiter *Limiter
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
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

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.limiter}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.limiter}
}
