package replica

import (
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/shardtest"
)

const eventuallyMax = must.BecomeMax

var (
	mustDo, eventually, changed       = must.Do, must.Become, must.Flipped
	testAppend, testHeartbeat, taking = shardtest.Append, shardtest.Heartbeat, shardtest.Taking
)

func testMux(t *testing.T) *rpc.Mux { return shardtest.Mux(t, rpc.MuxConfig{}) }
