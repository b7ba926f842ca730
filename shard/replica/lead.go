package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// barrierRetryDelay is the pause before a barrier that raft refused for a
// passing reason is tried again.
const barrierRetryDelay = 10 * time.Millisecond

// watchLeadership follows raft's changes of leadership, so that raft never
// waits for anybody to hear of them.
func (g *Replica) watchLeadership() {
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
// terms may be committed and not applied here, and a barrier comes after them. That of an
// earlier term ends first, so that it does not replace what this one stores.
func (g *Replica) confirm() {
	g.confirming.Lock()
	defer g.confirming.Unlock()
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
			g.cfg.Logger.Warn("a handover of leadership does not end: the replica is opened again", "group", g.cfg.Group)
			g.Reopen(errTransferStuck)
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
func (g *Replica) campaign() error {
	err := g.reload(func(conf *raft.ReloadableConfig) { conf.HeartbeatTimeout-- })
	if err != nil {
		return fmt.Errorf("cannot stand for election: %w", err)
	}
	return nil
}

// reload changes those of raft's settings that can be changed. raft takes all of
// them at once: of two changes at the same time one would be lost.
func (g *Replica) reload(change func(*raft.ReloadableConfig)) error {
	g.settings.Lock()
	defer g.settings.Unlock()
	conf := g.raft.ReloadableConfig()
	change(&conf)
	return g.raft.ReloadConfig(conf)
}

// Follows returns nil while the group has a leader that may serve, as far as is
// known here.
func (g *Replica) Follows() error {
	if leader := g.Leader(); leader != "" && leader != g.cfg.NodeID {
		return g.stop.Failure()
	}
	err := g.Ready()
	if err != nil && g.raft.State() == raft.Leader && g.stop.Failure() == nil && g.Stuck() == nil {
		return fmt.Errorf("%w yet: this node was elected and replays the log, %d of %d entries", err, g.raft.AppliedIndex(), g.raft.LastIndex())
	}
	return err
}

// outOfTouchAfter is for how long a replica has no leader until it is doubted that
// it would hear of one: it may be new to its group, or removed from it. By then
// connections to nodes that were lost are closed.
const outOfTouchAfter = (rpc.PingsMissedMax + 1) * rpc.PingEvery

// InTouch reports whether the group's replica here hears of a new leader as soon
// as any: it is a member, and has heard of one not long ago. What was hinted
// before is no better, and one that is asked may be the one that was lost.
func (g *Replica) InTouch() bool {
	return time.Since(g.raft.LastContact()) < outOfTouchAfter &&
		Contains(g.Configuration().Servers, g.ID())
}

// Leader returns the key of the group's leader as raft knows it here, or "".
func (g *Replica) Leader() string {
	_, id := g.raft.LeaderWithID()
	return NodeOf(id)
}

// Voters returns the voters of the latest configuration.
func (g *Replica) Voters() []raft.ServerID {
	var voters []raft.ServerID
	for _, s := range g.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters = append(voters, s.ID)
		}
	}
	return voters
}

// Configuration returns the latest configuration, which may not be committed. It
// is not to be changed.
func (g *Replica) Configuration() raft.Configuration {
	return g.raft.GetConfiguration().Configuration() // raft answers it at once
}
