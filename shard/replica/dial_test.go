package replica

import (
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
)

func TestTransportDialsWhereANodeIs(t *testing.T) {
	to, layer := testTransport(t)
	here, nowhere := raft.ServerAddress(layer.Addr().String()), raft.ServerAddress("127.0.0.1:1")
	known := true
	from := newRaftTransport(mustLayer(t, testMux(t), 7), func(string) (string, bool) { return string(here), known }, 0, hclog.NewNullLogger())
	t.Cleanup(func() { from.Close() })
	for _, test := range []struct {
		known      bool
		configured raft.ServerAddress
	}{{true, nowhere}, {false, here}} {
		known = test.known
		go func() {
			rpc := <-to.Consumer()
			rpc.Respond(&raft.AppendEntriesResponse{Term: 4}, nil)
		}()
		request := raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("x"), ID: []byte("n1")}, Term: 4}
		var response raft.AppendEntriesResponse
		if err := from.AppendEntries("known", test.configured, &request, &response); err != nil || response.Term != 4 {
			t.Errorf("a node that is known, %v: %+v, %v", test.known, response, err)
		}
	}
}

func TestTransportHasNoHeartbeatPath(t *testing.T) {
	from, _ := testTransport(t)
	to, layer := testTransport(t)
	to.SetHeartbeatHandler(func(raft.RPC) { t.Error("the fast path was used") })
	go func() {
		rpc := <-to.Consumer()
		rpc.Respond(&raft.AppendEntriesResponse{Term: 4}, nil)
	}()
	heartbeat := raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("x"), ID: []byte("n1")}, Term: 4}
	var response raft.AppendEntriesResponse
	mustDo(t, from.AppendEntries("known", raft.ServerAddress(layer.Addr().String()), &heartbeat, &response))
	if response.Term != 4 {
		t.Errorf("response %+v", response)
	}
	if _, err := from.AppendEntriesPipeline("n2", raft.ServerAddress(layer.Addr().String())); !errors.Is(err, raft.ErrPipelineReplicationNotSupported) {
		t.Errorf("pipeline: %v", err)
	}
}

func TestRaftLogger(t *testing.T) {
	logged := &proctest.Buffer{}
	l := &raftLogger{slog: slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelInfo}))}
	sub := l.With("peer", "n2")
	sub.Error("failed", "servers", hclog.Fmt("%+v", []int{1, 2}))
	sub.Warn("election")
	sub.Warn("heartbeat timeout reached, starting election (quiet)")
	sub.Error("failed to take snapshot", "error", errors.New("cannot take snapshot now, wait until the quiet entry has been applied"))
	sub.Info("quiet")
	sub.Debug("quiet")
	got := logged.String()
	for _, want := range []string{"level=WARN msg=failed peer=n2 servers=\"[1 2]\"", "level=INFO msg=election"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if strings.Contains(got, "quiet") {
		t.Errorf("logged %q", got)
	}
}

// A call to a replica does not reach another replica that has its address now, on another node or
// on the same one. raft would count the answer as that of the first replica.
func TestAnotherReplicaAtTheAddressIsNotReached(t *testing.T) {
	m := rafttest.Mux(t, rpc.MuxConfig{NodeKey: "n2.0"})
	layer, err := m.Layer(7, "n2.0#4")
	mustDo(t, err)
	to := newRaftTransport(layer, nil, 0, hclog.NewNullLogger())
	defer to.Close()
	from := newRaftTransport(mustLayer(t, testMux(t), 7), func(string) (string, bool) { return m.Addr().String(), true }, 0, hclog.NewNullLogger())
	defer from.Close()
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case rpc := <-to.Consumer():
				rpc.Respond(&raft.RequestVoteResponse{Term: 4, Granted: true}, nil)
			case <-done:
				return
			}
		}
	}()
	for node, reached := range map[raft.ServerID]bool{"n1.0": false, "n1.0#4": false, "n2.0": false, "n2.0#3": false, "n2.0#4": true} {
		request := raft.RequestVoteRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("x"), ID: []byte("n3.0")}, Term: 4}
		var response raft.RequestVoteResponse
		if err := from.RequestVote(node, "127.0.0.1:1", &request, &response); (err == nil) != reached || response.Granted != reached {
			t.Errorf("%s: %+v, %v", node, response, err)
		}
	}
}

// An event that hits all groups of a node is logged once, not once for each group.
func TestRaftLoggersOfGroupsShareTheirLimit(t *testing.T) {
	logged := &proctest.Buffer{}
	mux := &rpc.Mux{}
	for group := range uint32(24) {
		c := Config{Group: group, Mux: mux, Logger: slog.New(slog.NewTextHandler(logged, nil))}
		c.raftLogger().Warn("failed to contact", "server-id", raft.ServerID("n2"), "time", time.Second)
	}
	if got := logged.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "group=0") {
		t.Errorf("logged %q", got)
	}
}

// raftLogger logs raft's messages about an unreachable peer rarely, and all other messages at once.
func TestRaftLoggerThinsFailuresOfPeers(t *testing.T) {
	logged := &proctest.Buffer{}
	l := &raftLogger{
		slog:     slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelInfo})),
		failures: &rpc.PeerFailures{},
	}
	down := errors.New("connection refused")
	server := raft.Server{ID: "n2", Address: "127.0.0.1:1"}
	l.With("of", "group").Error("failed to appendEntries to", "peer", server, "error", down)
	l.Error("failed to heartbeat to", "peer", server.Address, "backoff time", time.Second, "error", down)
	l.Error("failed to make requestVote RPC", "target", server, "error", down, "term", uint64(2))
	if logged.String() != "" {
		t.Errorf("logged %q", logged.String())
	}
	// Another peer has failed for six seconds.
	l.failures.ShouldLog("127.0.0.1:2", time.Now().Add(-6*time.Second))
	l.Error("failed to heartbeat to", "peer", raft.ServerAddress("127.0.0.1:2"), "error", down)
	l.Error("peer has newer term, stopping replication", "peer", server)
	if got := strings.Count(logged.String(), "level=WARN"); got != 2 {
		t.Errorf("%d lines: %q", got, logged.String())
	}
}

// A leader freezes while it sends a snapshot, and its connections stay open. It does not keep the
// other two of three voters from electing another leader.
func TestLeaderFreezesInASnapshot(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	r.add(t, 1, -1)
	r.mustAgree(t, -1)
	old := r.leader(t, -1)
	leader, follower := r.groups[old], r.groups[(old+1)%3]

	// The frozen leader's connection has a Mux of its own, which stays open.
	layer, err := testMux(t).Layer(leader.cfg.Group, "n9.0")
	mustDo(t, err)
	trans := newRaftTransport(layer, nil, 0, leader.cfg.raftLogger())
	t.Cleanup(func() { mustDo(t, trans.Close()) })
	addr := raft.ServerAddress(r.cfgs[old].Mux.Addr().String())
	args := &raft.InstallSnapshotRequest{
		RPCHeader:       raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader.cfg.NodeID), Addr: []byte(addr)},
		SnapshotVersion: raft.SnapshotVersionMax, Term: leader.raft.CurrentTerm(), Leader: []byte(addr),
		LastLogIndex: leader.raft.LastIndex() + 1, LastLogTerm: leader.raft.CurrentTerm(),
		Configuration: raft.EncodeConfiguration(leader.Configuration()), ConfigurationIndex: 1, Size: 1 << 30,
	}
	state, thaw := io.Pipe()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		var resp raft.InstallSnapshotResponse
		_ = trans.InstallSnapshot(raft.ServerID(follower.cfg.NodeID), raft.ServerAddress(follower.cfg.Mux.Addr().String()), args, &resp, state)
	}()
	_, err = thaw.Write(make([]byte, 1<<20))
	mustDo(t, err)
	eventually(t, "the follower takes the snapshot", func() bool {
		unfinished, err := filepath.Glob(filepath.Join(follower.cfg.Dir, "snapshots", "*"+".tmp"))
		return err == nil && len(unfinished) > 0
	})
	mustClose(t, leader)
	r.add(t, 1, old)
	r.mustAgree(t, old)
	mustDo(t, thaw.CloseWithError(io.ErrUnexpectedEOF))
	<-sent
}
