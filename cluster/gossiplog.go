package cluster

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"slices"
	"strings"

	"github.com/countd/countd/internal/program"
)

// gossipLog writes memberlist's log lines to slog. It lowers each level by one, for example from
// error to warning. memberlist logs an ERR for each ping to a node that is down, and a WARN for
// each suspicion. This package itself logs the events that need an operator.
type gossipLog struct{ logger *slog.Logger }

func newGossipLog(logger *slog.Logger) *log.Logger {
	return log.New(&gossipLog{new(program.LogLimiter).Logger(logger)}, "", 0)
}

var gossipLevels = []struct {
	prefix []byte
	level  slog.Level
}{
	{[]byte("[ERR] "), slog.LevelWarn},
	{[]byte("[ERROR] "), slog.LevelWarn},
	{[]byte("[WARN] "), slog.LevelInfo},
	{[]byte("[INFO] "), slog.LevelDebug},
	{[]byte("[DEBUG] "), slog.LevelDebug - 4},
}

// gossipRefusals has the beginnings of memberlist's lines about refused members. gossipView logs
// these refusals itself.
var gossipRefusals = [][]byte{
	[]byte("[WARN] memberlist: ignoring alive message for"),
	[]byte("[ERR] memberlist: Failed push/pull merge"),
}

// malformed has phrases of memberlist's lines about packets and streams of another protocol. Most
// of these lines quote bytes of the packet, so they differ from each other and the limit on equal
// lines does not apply.
var malformed = []string{
	"label", "invalid checksum", "missing message type", "ot supported", "Failed to decode", "Failed to decompress",
	"truncated messages", "Decrypt packet failed", "invalid msgType", "ailed to receive",
}

// Write logs one line. log.Logger passes one line a call.
func (g *gossipLog) Write(line []byte) (int, error) {
	level, text := slog.LevelInfo, bytes.TrimSpace(line)
	refusal := slices.ContainsFunc(gossipRefusals, func(begin []byte) bool { return bytes.HasPrefix(text, begin) })
	for _, l := range gossipLevels {
		if rest, ok := bytes.CutPrefix(text, l.prefix); ok {
			level, text = l.level, rest
			break
		}
	}
	if refusal {
		level = slog.LevelDebug
	}
	if !g.logger.Enabled(context.Background(), level) {
		return len(line), nil
	}
	message, attrs := string(bytes.TrimPrefix(text, []byte("memberlist: "))), []any{"of", "gossip"}
	if slices.ContainsFunc(malformed, func(words string) bool { return strings.Contains(message, words) }) {
		level, attrs = slog.LevelWarn, append(attrs, "latest", message)
		message = "what came to the gossip port is not understood: another program, or a node with another gossip key"
	}
	g.logger.Log(context.Background(), level, message, attrs...)
	return len(line), nil
}
