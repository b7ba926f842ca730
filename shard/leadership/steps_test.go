package leadership

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
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

// countingHandler counts the records of a logger.
type countingHandler struct {
	slog.Handler
	records int
}

func (h *countingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *countingHandler) Handle(context.Context, slog.Record) error {
	h.records++
	return nil
}

// A leader whose parent's log has abandoned an attempt does not tell the catalog in each step, if the catalog does
// not answer.
func TestAbandonIsProposedSeldom(t *testing.T) {
	t.Parallel()
	failures := &countingHandler{Handler: slog.DiscardHandler}
	g := NewGrowth(GrowthConfig{Limited: slog.New(failures)})
	stopping := new(atomic.Bool)
	stopping.Store(true)
	g.Connect(nil, &CatalogClient{cfg: CatalogConfig{Draining: stopping}}) // each command fails at once
	a := &attempt{number: 9, abandoned: true}
	g.attempts[growGroup] = a
	s := step{Growth: g, group: growGroup, tell: true}
	s.of.Attempt.Number = a.number
	steps := func() (commands int) {
		before := failures.records
		for range 5 {
			_ = s.split(t.Context())
		}
		return failures.records - before
	}
	if n := steps(); n != 1 || time.Until(a.next) > g.patience(1) {
		t.Errorf("%d commands in 5 steps, the next after %s", n, time.Until(a.next))
	}
	a.next = time.Now()
	if n := steps(); n != 1 {
		t.Errorf("%d commands in 5 steps after the wait", n)
	}
}

// An attempt lasts longer while a voter parts more rows than ever before, so not while it begins anew and anew.
func TestAttemptLastsWhileVotersPartRows(t *testing.T) {
	t.Parallel()
	before := time.Now().Add(-time.Hour)
	a := &attempt{steps: map[raft.ServerID]uint64{}}
	for _, c := range []struct {
		steps map[raft.ServerID]uint64
		lasts bool
	}{
		{nil, false},
		{map[raft.ServerID]uint64{"a": 0, "b": 0}, false},
		{map[raft.ServerID]uint64{"a": 5, "b": 7}, true},
		{map[raft.ServerID]uint64{"a": 5, "b": 7}, false},
		{map[raft.ServerID]uint64{"a": 6}, true}, // b is ready
		{map[raft.ServerID]uint64{"a": 2}, false},
		{map[raft.ServerID]uint64{"a": 6}, false},
		{map[raft.ServerID]uint64{"a": 7, "b": 1}, true},
	} {
		a.since = before
		if a.note(c.steps); a.since.After(before) != c.lasts {
			t.Errorf("%v: lasts longer: %t", c.steps, !c.lasts)
		}
	}
}
