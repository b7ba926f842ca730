package shard

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/proctest"
)

func TestFailuresOfAPeerAreToldOnceAMinute(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	for name, test := range map[string]struct {
		at   []time.Duration // of failures
		told []bool
	}{
		"one":                    {[]time.Duration{0}, []bool{false}},
		"a node that starts":     {[]time.Duration{0, time.Second, 4 * time.Second}, []bool{false, false, false}},
		"a node that is dead":    {[]time.Duration{0, 4 * time.Second, 5 * time.Second, 6 * time.Second}, []bool{false, false, true, false}},
		"it stays dead":          {[]time.Duration{0, 5 * time.Second, 14 * time.Second, 24 * time.Second, 34 * time.Second, 44 * time.Second, 54 * time.Second, 64 * time.Second, 65 * time.Second}, []bool{false, true, false, false, false, false, false, false, true}},
		"it comes and is lost":   {[]time.Duration{0, 5 * time.Second, 16 * time.Second, 17 * time.Second}, []bool{false, true, false, false}},
		"two spells with a rest": {[]time.Duration{0, 11 * time.Second, 22 * time.Second}, []bool{false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var p peerFailures
			for i, at := range test.at {
				if told := p.tell("n2", start.Add(at)); told != test.told[i] {
					t.Errorf("at %v: told %v, want %v", at, told, test.told[i])
				}
			}
			if p.tell("n3", start) {
				t.Error("another's first failure is told")
			}
		})
	}
}

// An event that hits all groups of a node is one line of raft's, not one a group.
func TestRaftLoggersOfGroupsShareTheirLimit(t *testing.T) {
	logged := &proctest.Buffer{}
	mux := &Mux{}
	for group := range uint32(24) {
		c := groupConfig{Group: group, Mux: mux, Logger: slog.New(slog.NewTextHandler(logged, nil))}
		c.raftLogger().Warn("failed to contact", "server-id", raft.ServerID("n2"), "time", time.Second)
	}
	if got := logged.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "group=0") {
		t.Errorf("logged %q", got)
	}
}

func TestFailingPeersAreBounded(t *testing.T) {
	var p peerFailures
	for i := range 3 * failingPeersMax {
		p.tell(strings.Repeat("x", i), time.Unix(1, 0))
		if len(p.mu.of) > failingPeersMax {
			t.Fatalf("%d peers are remembered", len(p.mu.of))
		}
	}
}

// The messages are those that raft writes about a peer that it cannot reach; all
// others are told as before.
func TestRaftLoggerThinsFailuresOfPeers(t *testing.T) {
	logged := &proctest.Buffer{}
	l := &raftLogger{
		slog:     slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelInfo})),
		failures: &peerFailures{},
	}
	down := errors.New("connection refused")
	server := raft.Server{ID: "n2", Address: "127.0.0.1:1"}
	l.With("of", "group").Error("failed to appendEntries to", "peer", server, "error", down)
	l.Error("failed to heartbeat to", "peer", server.Address, "backoff time", time.Second, "error", down)
	l.Error("failed to make requestVote RPC", "target", server, "error", down, "term", uint64(2))
	if logged.String() != "" {
		t.Errorf("logged %q", logged.String())
	}
	l.failures.mu.of["127.0.0.1:1"] = failures{first: time.Now().Add(-failureSpell), last: time.Now()}
	l.Error("failed to heartbeat to", "peer", server.Address, "error", down)
	l.Error("peer has newer term, stopping replication", "peer", server)
	if got := strings.Count(logged.String(), "level=WARN"); got != 2 {
		t.Errorf("%d lines: %q", got, logged.String())
	}
}
