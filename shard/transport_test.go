package shard

import (
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A heartbeat that is answered on the spot shares no memory with its answer:
// raft sends the one and decodes into the other again and again.
func TestSparedHeartbeatIsLeftAlone(t *testing.T) {
	trans := raftTransport{pause: time.Hour, reached: &sync.Map{}}
	trans.reached.Store(raft.ServerID("n2"), reached{time.Now(), 7})
	args := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("n1"), Addr: []byte("a1")}, Term: 7}
	var resp raft.AppendEntriesResponse
	if err := trans.AppendEntries("n2", "a2", args, &resp); err != nil || !resp.Success || resp.Term != 7 {
		t.Fatalf("answered %+v, %v", resp, err)
	}
	copy(resp.ID[:cap(resp.ID)], "n2")
	copy(resp.Addr[:cap(resp.Addr)], "a2")
	if string(args.ID) != "n1" || string(args.Addr) != "a1" {
		t.Errorf("the next heartbeat would come from %s at %s", args.ID, args.Addr)
	}
}
