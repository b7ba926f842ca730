package replica

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// raft's warnings about ordinary events are logged at debug level; its warnings about a
// disk are not.
func TestLevelOf(t *testing.T) {
	for name, c := range map[string]struct {
		level hclog.Level
		msg   string
		args  []any
		want  slog.Level
	}{
		"election":       {hclog.Warn, "heartbeat timeout reached, starting election", nil, slog.LevelDebug},
		"split votes":    {hclog.Warn, "Election timeout reached, restarting election", nil, slog.LevelDebug},
		"new replica":    {hclog.Warn, "no known peers, aborting election", nil, slog.LevelDebug},
		"log behind":     {hclog.Warn, "failed to get previous log", []any{"last-index", 3, "error", raft.ErrLogNotFound}, slog.LevelDebug},
		"log unreadable": {hclog.Warn, "failed to get previous log", []any{"error", errors.New("input/output error")}, slog.LevelInfo},
		"any warning":    {hclog.Warn, "rejecting vote request", nil, slog.LevelInfo},
		"any error":      {hclog.Error, "failed to heartbeat to", nil, slog.LevelWarn},
	} {
		t.Run(name, func(t *testing.T) {
			if got := levelOf(c.level, c.msg, c.args); got != c.want {
				t.Errorf("level %v, want %v", got, c.want)
			}
		})
	}
}
