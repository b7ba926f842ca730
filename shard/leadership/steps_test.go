package leadership

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// A Split that is proposed again, after the replica has applied it, names the route from before it. So it is void.
func TestRepeatedSplitNamesTheFirstRoute(t *testing.T) {
	m := kinds.All.New(codec.KindCounters, raftfsm.Places{})
	m.SetRoute(codec.Route{Modulus: 9, Residue: 1}) // as Split has left it
	s := step{group: 5, local: &GrowthShard{Machine: &tiering.Machine{Machine: m}}}
	s.of.Keyspace = catalog.Keyspace{Groups: []uint32{4, 5, 6}}
	if got, want := s.from(), (codec.Route{Modulus: 3, Residue: 1}); got != want {
		t.Errorf("from %+v, want %+v", got, want)
	}
}

// A leader whose parent's log has abandoned an attempt does not tell the catalog in each step, if the catalog refuses
// or does not answer.
func TestAbandonIsProposedSeldom(t *testing.T) {
	t.Parallel()
	leader, _ := elected(t, newGrowVoters(t))
	must.Become(t, "the leader is ready", func() bool { return leader.r.Ready() == nil })
	g := NewGrowth(GrowthConfig{Catalog: catalog.New(), Logger: slog.New(slog.DiscardHandler), Limited: slog.New(slog.DiscardHandler)})
	silent := false
	// The group takes the place of the catalog's, too.
	g.Connect(nil, &CatalogClient{cfg: CatalogConfig{
		Key: leader.key, Catalog: g.cfg.Catalog, Group: func() *replica.Replica { return leader.r }, Draining: new(atomic.Bool),
		DiskError: func() error {
			if silent {
				return errors.New("no answer")
			}
			return nil
		},
	}})
	steps := func(a *attempt) (commands int64) {
		g.attempts[growGroup] = a
		s := step{Growth: g, group: growGroup, tell: true, local: &GrowthShard{Group: leader.r}}
		s.of.Attempt.Number = a.number
		before := leader.shard.applied.Load()
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // the Catalog here applies nothing
			_ = s.split(ctx)
			cancel()
		}
		return leader.shard.applied.Load() - before
	}
	if n := steps(&attempt{number: 9, abandoned: true}); n != 1 {
		t.Errorf("%d commands in 5 steps", n)
	}
	silent = true
	a := &attempt{number: 10, abandoned: true}
	if n := steps(a); n != 0 || !a.next.After(time.Now()) {
		t.Errorf("%d commands, the next after %s", n, time.Until(a.next))
	}
	silent = false
	a.next = time.Now()
	if n := steps(a); n != 1 {
		t.Errorf("%d commands in 5 steps after the wait", n)
	}
}
