package shard

import (
	"context"
	"maps"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// votersRoomTick is how often the voters of groups that this node leads are asked
// whether their disks have room. Meanwhile a disk takes what Tick says.
const votersRoomTick = time.Second

// votersRoom finds the groups led here that may take no writes because too few
// voters have room for them. Each voter stores each entry, and a voter whose disk is
// full stops. The group survives the loss of one voter, but not of a majority.
type votersRoom struct {
	key      string // of this node
	registry *registry
	headroom *headroom.Headroom
	calls    *rpc.Calls
	stopping <-chan struct{}
}

// run checks until the node is stopping. Open starts it, Close waits for it.
func (v votersRoom) run() {
	tick := time.NewTicker(votersRoomTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			v.check()
		case <-v.stopping:
			return
		}
	}
}

// check asks the voters once.
func (v votersRoom) check() {
	led := map[*localReplica][]raft.ServerID{}
	others := map[string]bool{}
	for _, g := range v.registry.groups.Load().all {
		r, err := g.led()
		if err != nil {
			if r != nil {
				r.votersFull.Store(false)
			}
			continue
		}
		led[r] = r.group.Voters()
		for _, id := range led[r] {
			others[replica.NodeOf(id)] = true
		}
	}
	full := v.disksFull(others)
	short := 0
	for r, voters := range led {
		tooFew := tooFewWithRoom(voters, full)
		if r.votersFull.Store(tooFew); tooFew || v.headroom.DiskFull.Load() {
			short++
		}
	}
	v.headroom.VotersFull.Store(int64(short))
}

// tooFewWithRoom reports whether a disk is known to be full and those known not to
// be are no majority of the voters.
func tooFewWithRoom(voters []raft.ServerID, full map[string]bool) bool {
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

// disksFull asks nodes whether their disks are at their reserve. Those that do not
// answer are not in it.
func (v votersRoom) disksFull(nodes map[string]bool) map[string]bool {
	return rpc.AskAllJSON(context.Background(), v.calls, v.key, maps.Keys(nodes), methodRoom, rpc.None{}, v.serve)
}

// serve reports whether this node's disk is at its reserve.
func (v votersRoom) serve(context.Context, rpc.None) (bool, error) {
	return v.headroom.DiskFull.Load(), nil
}
