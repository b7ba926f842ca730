// Package audit owns the audit log: a file of JSON lines about calls of admins and refused calls.
// It never writes a token, and it never fails a call. If it cannot write a line, it counts that and
// reports it in the node's log.
//
// Invariant: refusals cannot fill the disk. Lines about them are limited to a rate, and each
// contains the number of refusals that had no line before it. The files together have a bounded
// size.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/natefinch/lumberjack.v2"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/lograte"
)

const (
	// fileMiBMax and filesMax bound the files together to about 512 MiB.
	fileMiBMax = 64
	filesMax   = 7 // without the one being written
	// refusalsPerSec and refusalsBurst bound the lines about refusals of one outcome. With 300
	// bytes a line, a flood needs about three weeks to rotate all files away.
	refusalsPerSec = 1
	refusalsBurst  = 100
	// detailBytesMax bounds each text of a line.
	detailBytesMax = 256
	// TailMax bounds the events that Tail returns.
	TailMax = 1000
	// tailBytesMax bounds what Tail reads of a file: TailMax lines and more.
	tailBytesMax = 1 << 20
)

// ErrNone is returned when a node has no audit log.
var ErrNone = errors.New("this node has no audit log: --audit-log sets one")

// Log writes events. A nil Log drops them.
type Log struct {
	path    string
	limited *slog.Logger
	failed  prometheus.Counter

	mu struct {
		sync.Mutex // held during writes, which are as rare as admin actions and limited refusals
		file       *lumberjack.Logger
		refused    map[string]*budget // by outcome
	}
}

// budget is how many lines a rate limit still allows.
type budget struct {
	left       float64
	at         time.Time
	suppressed uint64
}

// Open opens the file, which Close closes.
func Open(path string, registry *prometheus.Registry, logger *slog.Logger) (*Log, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // fail at the start, not at the first event
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open audit log: %w", err)
	}
	l := &Log{path: path, limited: new(lograte.Limiter).Logger(logger), failed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "countd_audit_errors_total",
		Help: "Lines that could not be written to the audit log.",
	})}
	l.mu.file = &lumberjack.Logger{Filename: path, MaxSize: fileMiBMax, MaxBackups: filesMax}
	l.mu.refused = map[string]*budget{}
	if err := registry.Register(l.failed); err != nil {
		return nil, fmt.Errorf("cannot register metrics: %w", err)
	}
	return l, nil
}

// Action writes a call that only an admin may make.
func (l *Log) Action(e clientadmin.AuditEvent) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writeLocked(&e)
}

// Refused writes a refusal, unless the rate for its outcome is exceeded.
func (l *Log) Refused(e clientadmin.AuditEvent) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.mu.refused[e.Outcome]
	if b == nil { // outcomes are few
		b = &budget{left: refusalsBurst, at: e.Time}
		l.mu.refused[e.Outcome] = b
	}
	b.left = min(b.left+refusalsPerSec*max(e.Time.Sub(b.at).Seconds(), 0), refusalsBurst)
	b.at = e.Time
	if b.left < 1 {
		b.suppressed++
		return
	}
	b.left--
	e.Suppressed, b.suppressed = b.suppressed, 0
	l.writeLocked(&e)
}

func (l *Log) writeLocked(e *clientadmin.AuditEvent) {
	e.Time = e.Time.UTC()
	for _, text := range []*string{&e.Who, &e.From, &e.What, &e.Target} {
		*text = MaskTokens(*text)
		*text = (*text)[:min(len(*text), detailBytesMax)]
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.mu.file.Write(append(line, '\n'))
	}
	if err != nil {
		l.failed.Inc()
		l.limited.Error("cannot write to the audit log", "err", err)
	}
}

// Close writes the number of refusals without a line, and closes the file.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for outcome, b := range l.mu.refused {
		if b.suppressed > 0 {
			l.writeLocked(&clientadmin.AuditEvent{Time: b.at, What: "refusals", Outcome: outcome, Suppressed: b.suppressed})
			b.suppressed = 0
		}
	}
	if err := l.mu.file.Close(); err != nil {
		return fmt.Errorf("cannot close audit log: %w", err)
	}
	return nil
}
