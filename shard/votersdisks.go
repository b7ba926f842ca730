package shard

import (
	"context"
	"maps"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// votersDisksTick is the interval between checks of the voters' disks. See headroom.Tick for how
// much a disk can write in that time.
const votersDisksTick = time.Second

// watchVotersDisks checks the disks of voters until the node stops. Open starts it; Close waits.
func (n *Node) watchVotersDisks() {
	tick := time.NewTicker(votersDisksTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			n.checkVotersDisks()
		case <-n.stopping:
			return
		}
	}
}

// checkVotersDisks finds the groups led here that may take no writes because too few voters have
// free disk for them. Each voter stores each entry, and a voter whose disk is full stops. The
// group survives the loss of one voter, but not of a majority.
func (n *Node) checkVotersDisks() {
	led := map[*localReplica][]raft.ServerID{}
	others := map[string]bool{}
	for _, r := range n.registry.local() {
		if r.group.Ready() != nil {
			r.votersFull.Store(false)
			continue
		}
		led[r] = r.group.Voters()
		for _, id := range led[r] {
			others[replica.NodeOf(id)] = true
		}
	}
	full := rpc.AskAllJSON(context.Background(), n.calls, n.cfg.NodeKey, maps.Keys(others), methodDiskFull, rpc.None{}, n.serveDiskFull)
	refusing := 0
	for r, voters := range led {
		tooFew := tooFewDisks(voters, full)
		if r.votersFull.Store(tooFew); tooFew || n.headroom.DiskFull.Load() {
			refusing++
		}
	}
	n.headroom.VotersFull.Store(int64(refusing))
}

// serveDiskFull answers whether this node's disk is at its reserve.
func (n *Node) serveDiskFull(context.Context, rpc.None) (bool, error) {
	return n.headroom.DiskFull.Load(), nil
}

// tooFewDisks reports whether some voter's disk is known to be full, and no majority of the voters'
// disks is known to have space. full holds the answers by node key.
func tooFewDisks(voters []raft.ServerID, full map[string]bool) bool {
	without, with := 0, 0
	for _, id := range voters {
		switch isFull, answered := full[replica.NodeOf(id)]; {
		case isFull:
			without++
		case answered:
			with++
		}
	}
	return without > 0 && 2*with <= len(voters)
}
