package shard

import (
	"context"
	"maps"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// votersDisksTick is the interval between checks of the voters' disks. tiering.HeadroomTick
// estimates how much a disk can write in such a time.
const votersDisksTick = time.Second

// watchVotersDisks checks the disks of voters until the node stops. Open starts it; Close waits.
func (n *replicas) watchVotersDisks() {
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

// checkVotersDisks finds the groups led by this node that must accept no writes, because too few
// voters have free disk space. Each voter stores each entry, and a voter with a full disk stops. A
// group survives the loss of some voters, but not of a majority.
func (n *replicas) checkVotersDisks() {
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

func (n *replicas) serveDiskFull(context.Context, rpc.None) (bool, error) {
	return n.headroom.DiskFull.Load(), nil
}

// tooFewDisks reports whether some voter's disk is full, and no majority of the voters is known to
// have space. answers has the answers of methodDiskFull by node key.
func tooFewDisks(voters []raft.ServerID, answers map[string]bool) bool {
	without, with := 0, 0
	for _, id := range voters {
		switch isFull, answered := answers[replica.NodeOf(id)]; {
		case isFull:
			without++
		case answered:
			with++
		}
	}
	return without > 0 && 2*with <= len(voters)
}
