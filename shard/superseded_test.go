package shard

import (
	"testing"
	"time"

	"github.com/countd/countd/shard/rpc"
)

// TestCallToASupersededLeaderEnds makes a node without a replica call a node that does not answer.
// The call goes on while that node leads, and ends once another node reports that it leads.
func TestCallToASupersededLeaderEnds(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	n := all[3]
	ks := n.Keyspace("posts")
	groups, err := n.router.groupsOf(ks)
	mustDo(t, err)
	g := groups[0]
	if g.replica.Load() != nil {
		t.Fatal("the node that calls holds a replica")
	}
	leading := ""
	eventually(t, "the shard has a leader", func() bool {
		for _, m := range all {
			if at := m.registry.shardOf(g.number); at.replica.Load() != nil && at.replica.Load().group.Ready() == nil {
				leading = m.cfg.NodeKey
			}
		}
		return leading != ""
	})

	// On a busy machine, the leader may lose its leadership or seem to. The check then makes
	// another call.
	eventually(t, "a call to the leader goes on", func() bool {
		asLed, done := n.writer.whileLed(t.Context(), g, leading)
		defer done()
		select {
		case <-asLed.Done():
			return false
		case <-time.After(4 * rpc.CheckEvery):
			return true
		}
	})
	superseded, done := n.writer.whileLed(t.Context(), g, "n9.0")
	defer done()
	select {
	case <-superseded.Done():
	case <-time.After(eventuallyMax):
		t.Error("a call to a node that does not lead goes on")
	}
}
