package shard

import (
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// rpcTimeout bounds one call between two replicas. A follower answers
	// once an entry is on its disk, and a disk has diskStallMax.
	rpcTimeout = diskStallMax
	// snapshotBytesPerTimeout scales the time for sending a snapshot, its
	// restore included: another rpcTimeout for each so many bytes.
	snapshotBytesPerTimeout = 16 << 20
	// poolConnsMax bounds the idle connections to one peer: raft's replicator,
	// its heartbeat and its votes use one each.
	poolConnsMax = 3
)

// raftTransport is raft's own network transport without its fast path for
// heartbeats: that path changes term and state in the connection's goroutine,
// beside raft's main loop (hashicorp/raft#695). Here heartbeats go through the
// main loop like any other call. raft asks for the optional RequestPreVote and
// Close, which the embedded transport has.
type raftTransport struct {
	*raft.NetworkTransport
}

var (
	_ raft.Transport   = raftTransport{}
	_ raft.WithPreVote = raftTransport{}
	_ raft.WithClose   = raftTransport{}
)

// SetHeartbeatHandler does nothing, which raft.Transport allows.
func (raftTransport) SetHeartbeatHandler(func(raft.RPC)) {}

func newRaftTransport(layer raft.StreamLayer, logger hclog.Logger) raftTransport {
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer,
		Logger: logger,
		// One call at a time to a peer. More is raft's pipeline, which can
		// deadlock once a follower has rejected an entry.
		MaxRPCsInFlight:         1,
		MaxPool:                 poolConnsMax,
		Timeout:                 rpcTimeout,
		MsgpackUseNewTimeFormat: true,
	})
	t.TimeoutScale = snapshotBytesPerTimeout
	return raftTransport{t}
}
