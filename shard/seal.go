package shard

import (
	"time"

	"github.com/countd/countd/raftfsm"
)

const (
	// SealAfterDefault is for how long ids stop coming to rows that are packed in
	// memory.
	SealAfterDefault = time.Minute
	// sealShare is the part of one core, as a share, that sealing takes at most: some
	// 200,000 rows a second.
	sealShare = 8
)

// runSeal packs rows in memory to whose range of ids no more come. Open starts it,
// Close stops and waits for it.
func (n *Node) runSeal() {
	if n.cfg.Cold.SealAfter == 0 {
		return
	}
	tick := time.NewTicker(n.cfg.Cold.SealAfter)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-n.stopping:
			return
		}
		for _, g := range n.groups.Load().all {
			if r := g.replica.Load(); r != nil {
				n.seal(r)
			}
		}
	}
}

// seal goes through the rows of a replica once, a segment at a time with pauses
// between, until the node stops.
func (n *Node) seal(r *replica) {
	fsm, ok := r.fsm.(*raftfsm.Counters)
	if !ok { // others stay as they are
		return
	}
	for from, more := uint64(0), true; more && !n.draining.Load(); {
		began, rows := time.Now(), 0
		rows, from, more = fsm.Seal(from)
		n.sealed.Add(uint64(rows))
		select {
		case <-time.After(time.Since(began) * (sealShare - 1)):
		case <-n.stopping:
			return
		}
	}
}
