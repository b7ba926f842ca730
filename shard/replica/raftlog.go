package replica

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/rpc"
)

// raftLogger writes raft's messages to slog, one level lower than raft gives them: raft
// logs every snapshot and state change at Info, every normal election at Warn and every
// heartbeat to a peer that is down at Error. Config.Fatal reports what an operator must act
// on.
//
// It logs that a peer cannot be reached once that has lasted, and then seldom.
type raftLogger struct {
	slog     *slog.Logger
	name     string
	with     []any
	failures *rpc.PeerFailures // of all groups of the node; nil tells each of them
}

var _ hclog.Logger = (*raftLogger)(nil)

// What raft warns of at each start: that a group of this node alone begins to
// elect itself, that the catalog, which is not applied yet, does not know where
// nodes are, and that a snapshot waits until a change of members is applied. Of
// each question of a node that comes back to all its groups at once. And of each
// change of members: that a new replica knows none yet, that its log has not begun
// or is behind what it is sent, and that votes are split.
const (
	electionMsg = "heartbeat timeout reached"
	againMsg    = "Election timeout reached"
	noPeersMsg  = "no known peers"
	addressMsg  = "unable to get address for server"
	preVoteMsg  = "rejecting pre-vote request since we have a leader"
	snapshotMsg = "failed to take snapshot"
	waitsErr    = "cannot take snapshot now"
	behindMsg   = "failed to get previous log" // an error of the disk is none of a log that is behind
)

// levelOf is the level of a message.
func levelOf(level hclog.Level, msg string, args []any) slog.Level {
	for _, usual := range []string{electionMsg, againMsg, noPeersMsg, addressMsg, preVoteMsg} {
		if strings.HasPrefix(msg, usual) {
			return slog.LevelDebug
		}
	}
	if told := fmt.Sprint(args...); msg == snapshotMsg && strings.Contains(told, waitsErr) ||
		msg == behindMsg && strings.Contains(told, raft.ErrLogNotFound.Error()) {
		return slog.LevelDebug
	}
	return slogLevel(level)
}

func slogLevel(level hclog.Level) slog.Level {
	switch level {
	case hclog.Warn:
		return slog.LevelInfo
	case hclog.Error:
		return slog.LevelWarn
	case hclog.Info:
		return slog.LevelDebug
	default:
		return slog.LevelDebug - 4
	}
}

func (l *raftLogger) enabled(level hclog.Level) bool {
	return l.slog.Enabled(context.Background(), slogLevel(level))
}

func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	at := levelOf(level, msg, args)
	if peer := failingPeer(args); peer != "" && l.failures != nil && !l.failures.ShouldLog(peer, time.Now()) {
		at = slog.LevelDebug
	}
	if l.slog.Enabled(context.Background(), at) {
		l.slog.Log(context.Background(), at, msg, formatted(args)...)
	}
}

// formatted resolves hclog's deferred formats, which slog would print raw.
func formatted(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			a = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		out[i] = a
	}
	return out
}

func (l *raftLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *raftLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *raftLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *raftLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *raftLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *raftLogger) IsTrace() bool { return l.enabled(hclog.Trace) }
func (l *raftLogger) IsDebug() bool { return l.enabled(hclog.Debug) }
func (l *raftLogger) IsInfo() bool  { return l.enabled(hclog.Info) }
func (l *raftLogger) IsWarn() bool  { return l.enabled(hclog.Warn) }
func (l *raftLogger) IsError() bool { return l.enabled(hclog.Error) }

func (l *raftLogger) ImpliedArgs() []any { return l.with }
func (l *raftLogger) Name() string       { return l.name }

func (l *raftLogger) With(args ...any) hclog.Logger {
	args = formatted(args)
	with := append(append([]any(nil), l.with...), args...)
	return &raftLogger{slog: l.slog.With(args...), name: l.name, with: with, failures: l.failures}
}

func (l *raftLogger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

func (l *raftLogger) ResetNamed(name string) hclog.Logger {
	return &raftLogger{slog: l.slog, name: name, with: l.with, failures: l.failures}
}

// SetLevel does nothing: slog's handler decides.
func (l *raftLogger) SetLevel(hclog.Level) {}

// GetLevel returns NoLevel: slog's handler decides.
func (l *raftLogger) GetLevel() hclog.Level { return hclog.NoLevel }

func (l *raftLogger) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(opts), "", 0)
}

func (l *raftLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return slog.NewLogLogger(l.slog.Handler(), slog.LevelDebug).Writer()
}

// failingPeer returns the address of the peer that a message of raft's about a
// failed exchange is of, or "" for any other message.
func failingPeer(args []any) string {
	peer, failed := "", false
	for i := 0; i+1 < len(args); i += 2 {
		switch args[i] {
		case "peer", "target":
			switch p := args[i+1].(type) {
			case raft.Server:
				peer = string(p.Address)
			case raft.ServerAddress:
				peer = string(p)
			}
		case "error":
			failed = true
		}
	}
	if !failed {
		return ""
	}
	return peer
}
