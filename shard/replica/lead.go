package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// barrierRetryDelay is the pause before the retry of a barrier that raft refused for a transient
// reason.
const barrierRetryDelay = 10 * time.Millisecond

// watchLeadership receives raft's notices that leadership was won or lost, so that raft never
// blocks on them.
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

// confirm makes this node ready in the term that it leads. Entries of earlier terms may be
// committed but not applied here. So confirm proposes a barrier, and waits until the barrier is
// applied. The lock confirming keeps a call for an earlier term from overwriting the result of a
// call for a later term.
func (g *Replica) confirm() {
	g.confirming.Lock()
	defer g.confirming.Unlock()
	term, began := g.raft.CurrentTerm(), time.Now()
	for {
		index, err := g.barrier()
		if g.raft.State() != raft.Leader || g.raft.CurrentTerm() != term {
			return // watchLeadership starts another confirm for a later term
		}
		if err == nil {
			g.Growth.noteBarrier(index)
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

// campaign makes this voter campaign at once. Use it for the only voter of a group, the first voter
// of a new group, or a voter with a silent leader. raft has no call to start a campaign. But if the
// heartbeat timeout is shortened, a follower checks its timer at once, and campaigns if it has not
// heard from a leader.
func (g *Replica) campaign() error {
	err := g.settings.change(func(conf *raft.ReloadableConfig) { conf.HeartbeatTimeout-- })
	if err != nil {
		return fmt.Errorf("cannot stand for election: %w", err)
	}
	return nil
}

// Follows returns nil while the group has a leader that may serve, as far as this node knows.
func (g *Replica) Follows() error {
	if leader := g.Leader(); leader != "" && leader != g.cfg.NodeID {
		return g.stop.Failure()
	}
	err := g.Ready()
	if err != nil && g.raft.State() == raft.Leader && g.stop.Failure() == nil && g.Stuck() == nil && !g.Growth.Unborn() {
		return fmt.Errorf("%w yet: this node was elected and replays the log, %d of %d entries", err, g.raft.AppliedIndex(), g.raft.LastIndex())
	}
	return err
}

// outOfTouchAfter is the time without contact to a leader after which InTouch returns false. By
// then this node has closed its connections to lost nodes.
const outOfTouchAfter = (rpc.PingsMissedMax + 1) * rpc.PingEvery

// InTouch reports whether this replica learns of a new leader as soon as any other replica: it is a
// member, and heard from a leader recently. Then no other node's hint about the leader is newer
// than this replica's own knowledge.
func (g *Replica) InTouch() bool {
	return time.Since(g.raft.LastContact()) < outOfTouchAfter &&
		Contains(g.Configuration().Servers, g.ID())
}

// Leader returns the key of the leader's node as known here, or "".
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

// Configuration returns the latest configuration, which may not be committed. The caller must not
// change it.
func (g *Replica) Configuration() raft.Configuration {
	return g.raft.GetConfiguration().Configuration() // raft answers this future at once
}
