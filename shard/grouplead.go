package shard

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
)

// barrierRetryDelay is the pause before a barrier that raft refused for a
// passing reason is tried again.
const barrierRetryDelay = 10 * time.Millisecond

// watchLeadership follows raft's changes of leadership, so that raft never
// waits for anybody to hear of them.
func (g *group) watchLeadership() {
	for {
		select {
		case leader := <-g.leadership:
			g.readyTerm.Store(0)
			if leader {
				g.wg.Go(g.confirm)
			}
		case <-g.done:
			return
		}
	}
}

// confirm makes this node ready for the term that it leads: entries of earlier
// terms may be committed and not applied here, and a barrier comes after them.
func (g *group) confirm() {
	term, began := g.raft.CurrentTerm(), time.Now()
	for {
		index, err := g.barrier()
		if g.raft.State() != raft.Leader || g.raft.CurrentTerm() != term {
			return // another term's confirm is told of it
		}
		if err == nil {
			g.barrierIndex.Store(index)
			g.readyTerm.Store(term)
			return
		}
		if errors.Is(err, errs.ErrGroupClosed) || g.stop.Failure() != nil {
			return
		}
		if errors.Is(err, raft.ErrLeadershipTransferInProgress) && time.Since(began) > transferMax {
			_ = g.stop.Fail(fmt.Errorf("group %d: %w", g.cfg.Group, errTransferStuck))
			return
		}
		select {
		case <-time.After(barrierRetryDelay):
		case <-g.done:
			return
		}
	}
}

// campaign has a voter stand for election at once: the only one of its group, or
// the first of a new one. raft has no call
// for it, but lets a follower look at its clock when its heartbeat timeout is
// made shorter, and one that has heard of no leader then stands for election.
func (g *group) campaign() error {
	err := g.reload(func(conf *raft.ReloadableConfig) { conf.HeartbeatTimeout-- })
	if err != nil {
		return fmt.Errorf("cannot stand for election: %w", err)
	}
	return nil
}

// reload changes those of raft's settings that can be changed. raft takes all of
// them at once: of two changes at the same time one would be lost.
func (g *group) reload(change func(*raft.ReloadableConfig)) error {
	g.settings.Lock()
	defer g.settings.Unlock()
	conf := g.raft.ReloadableConfig()
	change(&conf)
	return g.raft.ReloadConfig(conf)
}
