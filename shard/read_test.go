package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

func TestReadByToken(t *testing.T) {
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2, "users": 1})
	ks := n.Keyspace("posts")
	w := mustWrite(t, n, ks, addTo(2, 0, 1), addTo(3, 0, 1))
	next := Token{{w.Token[0].Group, w.Token[0].Index + 1}}
	for _, level := range []Consistency{Stale, Bounded, Linearizable} {
		opt := &ReadOptions{Consistency: level, Token: next, Deadline: time.Now().Add(20 * time.Millisecond)}
		rows := make([]int64, 2)
		if err := n.Get(ks, []uint64{2}, 1, opt, rows); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("level %d, one id: %v", level, err)
		}
		if err := n.Get(ks, []uint64{2, 3}, 1, opt, rows); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("level %d, a page: %v", level, err)
		}
		if _, err := n.Scan(ks, 0, false, 10, 1, opt); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("level %d, a scan: %v", level, err)
		}
		opt.Deadline = soon()
		if err := n.Get(ks, []uint64{3}, 1, opt, rows); err != nil || rows[0] != 1 {
			t.Errorf("level %d, of the other shard: %v, %v", level, rows, err)
		}
	}
	seen := make(chan error, 1)
	rows := make([]int64, 1)
	go func() { seen <- n.Get(ks, []uint64{2}, 1, &ReadOptions{Token: next, Deadline: soon()}, rows) }()
	mustWrite(t, n, ks, addTo(2, 0, 5))
	if err := <-seen; err != nil || rows[0] != 6 {
		t.Errorf("the awaited write reads as %v, %v", rows, err)
	}
	// Groups that are not the keyspace's are not waited for.
	foreign := Token{{99, 1 << 40}, {w.Token[1].Group, 1}}
	if got := mustGet(t, n, ks, ReadOptions{Token: foreign}, 2, 3); got[0] != 6 {
		t.Errorf("rows %v", got)
	}
}

// counterReplicas is one shard on three nodes.
func counterReplicas(t *testing.T) []*counterGroup {
	t.Helper()
	var all []*counterGroup
	for i := range 3 {
		cfg := testConfig(t, testMux(t), fmt.Sprintf("n%d", i+1))
		c := &counterGroup{number: cfg.Group, fsm: raftfsm.NewCounters()}
		metrics := testMetrics(t)
		cfg.Bootstrap, cfg.FSM = i == 0, timedFSM{c.fsm, metrics}
		c.group = mustOpen(t, cfg)
		logger := slog.New(slog.DiscardHandler)
		c.proposer = newProposer(c.group, newLogClock(c.fsm.LogTime, logger), LimitsDefault, metrics, logger)
		all = append(all, c)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := c.close(ctx, false); err != nil {
				t.Error(err)
			}
		})
		if i == 0 {
			mustBeReady(t, c.group)
			continue
		}
		future := all[0].group.raft.AddVoter(raft.ServerID(cfg.NodeID), raft.ServerAddress(cfg.Mux.Addr().String()), 0, 5*time.Second)
		mustDo(t, future.Error())
	}
	return all
}

// With three voters a linearizable read goes through the log: 1. at the leader
// it is behind every write that was acknowledged; 2. a follower does not answer;
// 3. nor does a leader without its majority, from the first moment, though it
// does not know yet; 4. nor a bounded read that asks for less than a lease; 5. a
// stale one does.
func TestConfirmGoesThroughTheLog(t *testing.T) {
	all := counterReplicas(t)
	var l *counterGroup
	leader := func() *counterGroup {
		eventually(t, "one replica is ready", func() bool {
			for _, c := range all {
				if c.group.ready() == nil {
					l = c
					return true
				}
			}
			return false
		})
		return l
	}
	n := &Node{}
	ks := &Keyspace{Name: "x", Shards: 1, Columns: []string{"a"}, firstGroup: 7}
	for i := range int64(10) {
		eventually(t, "a write and a read of it", func() bool { // through an election on a busy machine
			g := leader()
			n.groups.Store(&groupTable{byFirst: map[uint32][]*counterGroup{7: {g}}})
			set := engine.Op{ID: 1, Kind: engine.OpSet, Cells: []engine.Cell{{Value: i + 1}}}
			if err := n.Write(ks, &Write{Ops: []engine.Op{set}, Deadline: soon()}); err != nil {
				return false
			}
			before, row := g.group.stats().Commit, make([]int64, 1)
			if err := n.Get(ks, []uint64{1}, 1, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, row); err != nil {
				return false
			}
			if row[0] != i+1 {
				t.Errorf("read %d after %d was written", row[0], i+1)
			}
			if after := g.group.stats().Commit; after <= before {
				t.Errorf("commit index %d before the read and %d after it", before, after)
			}
			return true
		})
	}

	l = leader()
	soonest := func() *ReadOptions {
		return &ReadOptions{Consistency: Linearizable, Deadline: time.Now().Add(3 * time.Second)}
	}
	for _, c := range all {
		if err := c.admit(soonest()); c != l && !errors.Is(err, ErrNoLeader) {
			t.Errorf("a follower answers %v", err)
		}
	}
	for _, c := range all {
		if c != l {
			mustClose(t, c.group)
		}
	}
	brief := &ReadOptions{MaxStaleness: time.Millisecond, Deadline: time.Now().Add(3 * time.Second)}
	for _, opt := range []*ReadOptions{brief, soonest(), brief, soonest()} {
		err := l.admit(opt)
		if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrNoQuorum) {
			t.Errorf("without a majority, %+v: %v", opt, err)
		}
		if errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("a read's outcome is unknown: %v", err)
		}
	}
	if err := l.admit(&ReadOptions{Consistency: Stale, Deadline: soon()}); err != nil {
		t.Errorf("a stale read: %v", err)
	}
}

// A read that is confirmed through a log which does not answer ends at its
// deadline, and is told as a read.
func TestConfirmEndsAtItsDeadline(t *testing.T) {
	all := counterReplicas(t)
	l := all[0]
	eventually(t, "a replica is ready", func() bool {
		for _, c := range all {
			if c.group.ready() == nil {
				l = c
				return true
			}
		}
		return false
	})
	l.proposer.close()
	hold := make(chan struct{})
	logger := slog.New(slog.DiscardHandler)
	l.proposer = newProposer(&heldGroup{proposeGroup: l.group, hold: hold}, newLogClock(l.fsm.LogTime, logger), LimitsDefault, testMetrics(t), logger)
	for range entriesInFlightMax + 2 { // in flight, and in the queue behind
		err := l.admit(&ReadOptions{Consistency: Linearizable, Deadline: time.Now().Add(10 * time.Millisecond)})
		if !errors.Is(err, ErrNoQuorum) || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrOverloaded) {
			t.Errorf("told %v", err)
		}
	}
	close(hold)
}
