package shard

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// fickleGroup loses its lead with the first entry in flight, which may be
// committed or not, and takes no other.
type fickleGroup struct {
	proposeGroup
	lose func() // is called then, once
}

func (g *fickleGroup) apply([]byte, time.Duration) raft.ApplyFuture {
	if g.lose == nil {
		return refusedFuture{raft.ErrNotLeader}
	}
	g.lose()
	g.lose = nil
	return refusedFuture{raft.ErrLeadershipLost}
}

// A part of which a try had an unknown outcome stays unknown, whatever the tries
// behind it meet.
func TestUnknownTriesAreNotForgotten(t *testing.T) {
	for name, met := range map[string]func(p *proposer){
		"no leader": func(*proposer) {},
		"a full queue": func(p *proposer) {
			p.mu.Lock()
			p.mu.queue.load.ops += queueOpsMax
			p.mu.Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
			ks := n.Keyspace("posts")
			g := n.groups.Load().byFirst[ks.firstGroup][0].replica.Load()
			g.proposer.close()
			lost := false
			fickle := &fickleGroup{proposeGroup: g.group}
			fickle.lose = func() { lost = true; met(g.proposer) }
			g.proposer = newProposer(fickle, n.rounds, raftfsm.KindCounters, newLogClock(g.fsm.LogTime, n.cfg.Logger), LimitsDefault, n.metrics, n.cfg.Logger)
			w := &Write{Ops: []engine.Op{addTo(1, 0, 1)}, ID: ByProducer([]byte("p"), 1), Deadline: time.Now().Add(300 * time.Millisecond)}
			err := n.Write(ks, w)
			if !lost || !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNoLeader) || errors.Is(err, ErrOverloaded) {
				t.Errorf("told %v", err)
			}
		})
	}
}
