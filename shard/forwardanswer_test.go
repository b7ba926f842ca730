package shard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
)

// If the leader's answer for a part makes no sense, the part has an unknown outcome. It is reported
// neither as applied nor as not applied.
func TestForwardedPartsWithABadAnswer(t *testing.T) {
	mustLeaveNothing(t)
	settled := func(ops int, outcome dedup.Outcome) []byte {
		q := propose.Settled(nil)
		q.Ops, q.Width, q.Result = ops, 4, raftfsm.NewResult(7, 4, make([]int64, 4*ops), nil, outcome)
		return propose.AppendOutcome(nil, q, nil)
	}
	one := settled(1, dedup.Applied)
	two := append(append([]byte(nil), one...), one...)
	var answer atomic.Pointer[[]byte]
	var nodes callNodes
	n := &Node{}
	n.calls, n.mux = nodes.Node(t, "a", nil, nil)
	n.streams = stream.New(stream.Config{Mux: n.mux, Lookup: nodes.Lookup, Calls: n.calls})
	t.Cleanup(n.streams.Close)
	n.router = router{node: "a", calls: n.calls}
	n.writer = writer{router: &n.router, streams: n.streams, asking: &n.asking, prover: n.prover}
	nodes.Node(t, "b", map[string]rpc.Handler{methodPropose: func(context.Context, []byte) ([]byte, error) { return *answer.Load(), nil }}, nil)
	leader := "b"
	var w raftfsm.RequestWriter
	op := addTo(1, 0, 1)
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	counters.Ops{op}.AppendTo(&w, 1, 0)
	part := &propose.ForwardedPart{Section: w.Section(), Width: 4, Ops: w.Ops()}
	for name, c := range map[string]struct {
		answer []byte
		whole  bool
	}{
		"whole":              {answer: two, whole: true},
		"nothing":            {answer: nil},
		"of one part":        {answer: one},
		"cut":                {answer: two[:len(two)-1]},
		"something behind":   {answer: append(append([]byte(nil), two...), 0)},
		"an unknown outcome": {answer: append(append([]byte(nil), one...), settled(1, dedup.Misrouted+1)...)},
		"fewer ops":          {answer: append(append([]byte(nil), one...), settled(0, dedup.Applied)...)},
		"more ops":           {answer: append(append([]byte(nil), one...), settled(2, dedup.Applied)...)},
	} {
		t.Run(name, func(t *testing.T) {
			answer.Store(&c.answer)
			g := &shardReplica{number: 1}
			g.hint.Store(&leader)
			got, err := n.writer.sendToLeader(testContext(t), g, []*propose.ForwardedPart{part, part})
			for i := range got {
				err = errors.Join(err, got[i].Err)
			}
			if c.whole {
				mustDo(t, err)
				if len(got) != 2 || got[1].Ops != 1 || len(got[1].Result.Rows) != 4 {
					t.Errorf("settled %+v", got)
				}
			} else if err == nil || !errors.Is(rpc.Fate(err), errs.ErrOutcomeUnknown) {
				t.Errorf("told %v", err)
			}
		})
	}
	n.asking.Wait()
}

// If an answer is too large to send, the node may have applied the request.
func TestTooLargeAnAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	if err := rpc.Fate(&rpc.Error{Code: rpc.CodeOf(rpc.ErrTooLarge)}); !errors.Is(err, errs.ErrOutcomeUnknown) {
		t.Errorf("told %v", err)
	}
}

// The outcome of a part that was not sent is known, even if its deadline passes before or during the
// try.
func TestForwardNotSentIsNotUnknown(t *testing.T) {
	t.Parallel()
	cfg := memberConfig(t, t.TempDir(), 1, 2)
	cfg.Place = nil
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustStop(t, n) })
	other := catalog.Node{Key: "n2.0", Name: "n2", ClusterAddr: "127.0.0.1:1", VersionMax: catalog.ClusterVersionMax}
	mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: other}}))
	g := &shardReplica{number: 1000} // nobody holds it
	g.forward = n.writer.newForwardBatcher(g)
	t.Cleanup(g.forward.Close)
	p := &part{group: g}
	op := addTo(1, 0, 1)
	p.writer.Reset(nil, codec.Whole, &dedup.RequestID{})
	counters.Ops{op}.AppendTo(&p.writer, 1, 0)
	forward := func(left time.Duration) error {
		w := &Write{Deadline: time.Now().Add(left)}
		return n.writer.forward(p, w, false).Wait(time.NewTimer(left))
	}
	for i := range 200 {
		if err := forward(time.Duration(i) * time.Microsecond); !errors.Is(err, errs.ErrNoLeader) {
			t.Fatalf("to nobody, with %d µs left: %v", i, err)
		}
	}
	g.hint.Store(&other.Key)
	if err := forward(0); !errors.Is(err, errs.ErrOverloaded) || !errors.Is(err, errs.ErrTooLate) {
		t.Errorf("to a leader, with no time left: %v", err)
	}
}

// A request that arrives right before asking.Close is refused, or its call to the leader has ended
// when Close returns.
func TestForwardBesideClose(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	other := catalog.Node{Key: "n2.0", Name: "n2", ClusterAddr: "127.0.0.1:1", VersionMax: catalog.ClusterVersionMax}
	mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: other}}))
	for range 200 {
		var asking rpc.Questions
		wr := n.writer
		wr.asking = &asking
		var ended atomic.Int32
		g := &shardReplica{number: 1000}
		g.forward = rpc.NewBatcher(rpc.BatcherConfig[*propose.ForwardedPart, *propose.Proposal]{
			Send: func(context.Context, []*propose.ForwardedPart) ([]*propose.Proposal, error) {
				ended.Add(1)
				return nil, errs.ErrNoLeader
			},
			InFlight: 1, Items: 100, Bytes: 1 << 20, CallItems: 1, CallBytes: 1 << 20,
		})
		var requests sync.WaitGroup
		var refused atomic.Int32
		const count = 4
		for range count {
			requests.Go(func() {
				p, op := &part{group: g}, addTo(1, 0, 1)
				p.writer.Reset(nil, codec.Whole, &dedup.RequestID{})
				counters.Ops{op}.AppendTo(&p.writer, 1, 0)
				switch err := wr.forward(p, &Write{Deadline: soon()}, false).Wait(time.NewTimer(eventuallyMax)); {
				case errors.Is(err, errs.ErrDraining):
					refused.Add(1)
				case !errors.Is(err, errs.ErrNoLeader):
					t.Errorf("told %v", err)
				}
			})
		}
		asking.Close()
		sent := ended.Load()
		requests.Wait()
		g.forward.Close()
		if sent+refused.Load() != count {
			t.Fatalf("%d were sent when Close returned, %d refused, of %d", sent, refused.Load(), count)
		}
	}
}
