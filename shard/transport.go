package shard

import (
	"fmt"

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

// addressBook gives raft the address that a node has now, by the node's key. Of
// one that is not known raft takes the address in the group's configuration.
type addressBook func(node string) (addr string, known bool)

var _ raft.ServerAddressProvider = addressBook(nil)

func (a addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	addr, known := a(string(id))
	if !known {
		return "", fmt.Errorf("no address of node %s is known", id)
	}
	return raft.ServerAddress(addr), nil
}

// newRaftTransport makes the transport of a group, which dials nodes where addrs
// says; nil for the addresses in the group's configuration.
func newRaftTransport(layer raft.StreamLayer, addrs addressBook, logger hclog.Logger) raftTransport {
	config := &raft.NetworkTransportConfig{
		Stream: layer,
		Logger: logger,
		// One call at a time to a peer. More is raft's pipeline, which can
		// deadlock once a follower has rejected an entry.
		MaxRPCsInFlight:         1,
		MaxPool:                 poolConnsMax,
		Timeout:                 rpcTimeout,
		MsgpackUseNewTimeFormat: true,
	}
	if addrs != nil {
		config.ServerAddressProvider = addrs
	}
	t := raft.NewNetworkTransportWithConfig(config)
	t.TimeoutScale = snapshotBytesPerTimeout
	return raftTransport{t}
}
