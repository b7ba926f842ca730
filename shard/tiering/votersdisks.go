package tiering

import (
	"context"
	"iter"
	"maps"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// votersDisksTick is the interval between checks of the voters' disks. See HeadroomTick for how
// much a disk can write in that time.
const votersDisksTick = time.Second

// methodDiskFull asks a node whether its disk is at its reserve.
const methodDiskFull = "diskfull"

// VotersDisks finds the groups led by this node that must accept no writes, because too few voters
// have free disk space. Each voter stores each entry, and a voter with a full disk stops. A group
// survives the loss of some voters, but not of a majority. It also checks the limits of keyspaces.
type VotersDisks struct {
	Headroom *Headroom
	Calls    *rpc.Calls
	Self     string // key of this node
	Catalog  *catalog.Catalog
	// Replicas yields this node's replicas with their machines. Check sets VotersFull of a machine that
	// leads, if too few of its voters have free disk space.
	Replicas func() iter.Seq2[*replica.Replica, *Machine]
	Stopping <-chan struct{}
}

// Run checks until the node stops. The node's Open starts it; its Close waits for it.
func (v *VotersDisks) Run() {
	tick := time.NewTicker(votersDisksTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			v.Check()
		case <-v.Stopping:
			return
		}
	}
}

// Check runs one check: it asks the voters of all groups that this node leads.
func (v *VotersDisks) Check() {
	type ledGroup struct {
		voters []raft.ServerID
		full   *atomic.Bool
	}
	var led []ledGroup
	others := map[string]bool{}
	view := v.Catalog.View()
	for r, m := range v.Replicas() {
		m.CheckLimits(view)
		full := &m.VotersFull
		if r.Ready() != nil {
			full.Store(false)
			continue
		}
		voters := r.Voters()
		led = append(led, ledGroup{voters, full})
		for _, id := range voters {
			others[replica.NodeOf(id)] = true
		}
	}
	answers := rpc.AskAllJSON(context.Background(), v.Calls, v.Self, maps.Keys(others), methodDiskFull, rpc.None{}, v.serve)
	refusing := 0
	for _, g := range led {
		tooFew := tooFewDisks(g.voters, answers)
		if g.full.Store(tooFew); tooFew || v.Headroom.DiskFull.Load() {
			refusing++
		}
	}
	v.Headroom.VotersFull.Store(int64(refusing))
}

// Handle makes this node answer the checks of other nodes.
func (v *VotersDisks) Handle() { v.Calls.Handle(methodDiskFull, rpc.JSON(v.serve)) }

func (v *VotersDisks) serve(context.Context, rpc.None) (bool, error) {
	return v.Headroom.DiskFull.Load(), nil
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
