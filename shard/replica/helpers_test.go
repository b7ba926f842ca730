package replica

import (
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/shard/rpc"
)

const eventuallyMax = must.BecomeMax

var (
	mustDo, eventually, changed       = must.Do, must.Become, must.Flipped
	testAppend, testHeartbeat, taking = rafttest.Append, rafttest.Heartbeat, rafttest.Taking
)

func testMux(t *testing.T) *rpc.Mux { return rafttest.Mux(t, rpc.MuxConfig{}) }
