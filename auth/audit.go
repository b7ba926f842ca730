package auth

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
	"github.com/countd/countd/internal/program"
)

const (
	// fileMiBMax and filesMax bound the files together to about 512 MiB.
	fileMiBMax = 64
	filesMax   = 7 // not counting the file being written
	// refusalsPerSec and refusalsBurst bound the lines about refusals of one outcome. With 300
	// bytes a line, a flood needs about three weeks to rotate all files away.
	refusalsPerSec = 1
	refusalsBurst  = 100
	// detailBytesMax bounds each text of a line.
	detailBytesMax = 256
	// AuditTailMax bounds the events that Tail returns.
	AuditTailMax = 1000
	// tailBytesMax bounds the bytes that Tail reads of a file. AuditTailMax lines fit into it.
	tailBytesMax = 1 << 20
)

// ErrNoAuditLog is returned when a node has no audit log.
var ErrNoAuditLog = errors.New("this node has no audit log: --audit-log sets one")

// AuditLog writes events. A nil *AuditLog drops them.
type AuditLog struct {
	path    string
	limited *slog.Logger
	failed  prometheus.Counter

	mu struct {
		sync.Mutex // held during writes, which are rare: one for each admin action or limited refusal
		file       *lumberjack.Logger
		refused    map[string]*budget // by outcome
	}
}

// budget is the number of lines that a rate limit still allows.
type budget struct {
	left       float64
	at         time.Time
	suppressed uint64
}

// OpenAuditLog opens the file, which Close closes.
func OpenAuditLog(path string, registry *prometheus.Registry, logger *slog.Logger) (*AuditLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // open now, to fail at the start and not at the first event
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open audit log: %w", err)
	}
	l := &AuditLog{path: path, limited: new(program.LogLimiter).Logger(logger), failed: prometheus.NewCounter(prometheus.CounterOpts{
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

// Action writes a line about a call that only an admin may make.
func (l *AuditLog) Action(e clientadmin.AuditEvent) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writeLocked(&e)
}

// Refused writes a line about a refusal, unless the rate for its outcome is exceeded.
func (l *AuditLog) Refused(e clientadmin.AuditEvent) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.mu.refused[e.Outcome]
	if b == nil { // entries are never removed, because there are few outcomes
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

func (l *AuditLog) writeLocked(e *clientadmin.AuditEvent) {
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
func (l *AuditLog) Close() error {
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
