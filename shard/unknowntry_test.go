package shard

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// fickleGroup loses its leadership with the first entry in flight, which may be committed or not.
// It accepts no other entry.
type fickleGroup struct {
	propose.Group
	lose func() // is called once, at that loss
}

func (g *fickleGroup) Apply([]byte) raft.ApplyFuture {
	if g.lose == nil {
		return failedFuture{raft.ErrNotLeader}
	}
	g.lose()
	g.lose = nil
	return failedFuture{raft.ErrLeadershipLost}
}

// A part with a try of unknown outcome stays unknown, whatever later tries report.
func TestUnknownTriesAreNotForgotten(t *testing.T) {
	t.Parallel()
	for name, met := range map[string]func(p *propose.Proposer){
		"no leader": func(*propose.Proposer) {},
		"a full queue": func(p *propose.Proposer) {
			go func() { // ends once the current try has left the queue
				for {
					if _, err := p.Reserve(nil, propose.QueueOpsMax, false, 0); !errors.Is(err, errs.ErrOverloaded) {
						return
					}
					time.Sleep(time.Millisecond)
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
			ks := n.Keyspace("posts")
			g := n.registry.groups.Load().byFirst[ks.FirstGroup].all[0]
			r := g.replica.Load()
			for wait := 300 * time.Millisecond; wait < eventuallyMax; wait *= 4 {
				var lost atomic.Bool
				fickle := &fickleGroup{Group: r.group}
				fickle.lose = func() { lost.Store(true); met(r.proposer.Load()) }
				reconfigure(n, g, func(cfg *propose.Config) { cfg.Group = fickle })
				w := &Write{Ops: counters.Ops{addTo(1, 0, 1)}, ID: dedup.ByProducer([]byte("p"), 1), Deadline: time.Now().Add(wait)}
				err := n.Write(ks, w)
				if !lost.Load() {
					continue // on a busy machine a write may end before its first try
				}
				if !errors.Is(err, errs.ErrOutcomeUnknown) || errors.Is(err, errs.ErrNoLeader) || errors.Is(err, errs.ErrOverloaded) {
					t.Errorf("told %v", err)
				}
				return
			}
			t.Error("no try was lost")
		})
	}
}
