package replica

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/rpc"
)

// raftLogger writes raft's messages to slog, one level below the level that raft uses. raft logs
// every snapshot and state change at Info, every normal election at Warn, and every heartbeat to an
// unreachable peer at Error. A failure that needs an operator reaches Config.Fatal.
//
// raftLogger logs an unreachable peer as rpc.PeerFailures decides: only after some time, and then
// rarely.
type raftLogger struct {
	hclog.Logger // discards everything; raft calls only the methods that raftLogger overrides
	slog         *slog.Logger
	failures     *rpc.PeerFailures // shared by all groups of the node; nil logs each failure
}

var _ hclog.Logger = (*raftLogger)(nil)

// raft logs these messages as warnings in normal operation. Some come at each start: a single voter
// elects itself, the catalog has not applied the addresses yet, and a snapshot waits for a change
// of members. A pre-vote is rejected when a node returns. The others come at each change of
// members: a new replica knows no peers, its log is empty or behind, and votes are split.
const (
	electionMsg = "heartbeat timeout reached"
	againMsg    = "Election timeout reached"
	noPeersMsg  = "no known peers"
	addressMsg  = "unable to get address for server"
	preVoteMsg  = "rejecting pre-vote request since we have a leader"
	snapshotMsg = "failed to take snapshot"
	waitsErr    = "cannot take snapshot now"
	behindMsg   = "failed to get previous log" // a disk error is logged with the same text, but is not lowered to debug
)

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

func (l *raftLogger) With(args ...any) hclog.Logger {
	return &raftLogger{Logger: l.Logger, slog: l.slog.With(formatted(args)...), failures: l.failures}
}

// failingPeer returns the peer's address if args belong to raft's message about a failed call to a
// peer, or "".
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
