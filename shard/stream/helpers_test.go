package stream

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/shard/rpc"
)

type callNodes = rafttest.Nodes

var (
	testAppend, testHeartbeat, taking = rafttest.Append, rafttest.Heartbeat, rafttest.Taking

	mustDo, eventually            = must.Do, must.Become
	testContext, mustLeaveNothing = must.Context, must.LeaveNothing
)

func testMux(t *testing.T) *rpc.Mux { return rafttest.Mux(t, rpc.MuxConfig{}) }

// testStreams returns streams over a Mux. They dial each node at its fallback address.
func testStreams(t *testing.T, mux *rpc.Mux) *Streams {
	t.Helper()
	s := New(Config{
		Mux: mux, Lookup: func(string) (string, bool) { return "", false },
	})
	t.Cleanup(s.Close)
	return s
}

// nodeOf returns the node of a replica.
func nodeOf(id raft.ServerID) string {
	node, _, _ := strings.Cut(string(id), "#")
	return node
}
