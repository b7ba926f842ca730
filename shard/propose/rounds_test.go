package propose

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
)

// roundsOf runs the groups of one node in simulated time. The parameter takes of newRoundsOf
// returns how long an entry of a group takes.
type roundsOf struct {
	rounds    *Rounds
	proposers []*Proposer
	began     time.Time

	mu      sync.Mutex
	entries [][]time.Duration // for each group: when each entry was proposed
	landed  []time.Time       // for each group: when its last entry was answered
}

func newRoundsOf(t *testing.T, groups int, takes func(group, entry int) time.Duration) *roundsOf {
	t.Helper()
	m := testMetrics(t)
	w := &roundsOf{rounds: NewRounds(nil), began: time.Now(), entries: make([][]time.Duration, groups), landed: make([]time.Time, groups)}
	for i := range groups {
		fsm := counters.New(raftfsm.Places{})
		g := &simulatedGroup{fakeGroup: fakeGroup{fsm: TimedFSM{BatchingFSM: fsm, Metrics: m}, failCh: make(chan struct{})}}
		g.takes = func() time.Duration {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.entries[i] = append(w.entries[i], time.Since(w.began))
			return takes(i, len(w.entries[i])-1)
		}
		g.ends = func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.landed[i] = time.Now()
		}
		w.proposers = append(w.proposers, New(testConfig(g, w.rounds, fsm, m)))
	}
	return w
}

// simulatedGroup answers an entry after some time.
type simulatedGroup struct {
	fakeGroup
	takes func() time.Duration
	ends  func()
}

func (g *simulatedGroup) Apply(entry []byte) raft.ApplyFuture {
	f := g.fakeGroup.Apply(entry).(*fakeFuture)
	after := g.takes()
	go func() {
		time.Sleep(after)
		g.ends()
		g.settle(f, nil)
	}()
	return f
}

// waits returns how long a proposal of a group has waited without an entry of the group in flight.
func (w *roundsOf) waits(group int) time.Duration {
	p := w.proposers[group]
	p.mu.Lock()
	defer p.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := time.Duration(0)
	for _, q := range slices.Concat(p.mu.queue.small.waiting, p.mu.queue.large.waiting) {
		if q.queued && p.mu.inFlight == 0 {
			longest = max(longest, min(time.Since(q.since), time.Since(w.landed[group])))
		}
	}
	return longest
}

// call proposes for a group and returns how long that took.
func (w *roundsOf) call(t *testing.T, group int) time.Duration {
	t.Helper()
	began := time.Now()
	q := mustSubmit(t, w.proposers[group], 1, 1, 0)
	if err := waitFor(w.proposers[group], q, time.Hour); err != nil {
		t.Error(err)
	}
	return time.Since(began)
}

// close closes all proposers and checks that they count no proposals.
func (w *roundsOf) close(t *testing.T) {
	t.Helper()
	for _, p := range w.proposers {
		p.Close()
		mustBeIdle(t, p)
	}
	w.rounds.mu.Lock()
	defer w.rounds.mu.Unlock()
	if r := &w.rounds.mu; r.total != 0 || len(r.waiting) != 0 {
		t.Errorf("idle, but %d proposals and %d groups wait", r.total, len(r.waiting))
	}
}

// moments returns the distinct times at which entries were proposed, ascending.
func (w *roundsOf) moments(from time.Duration) []time.Duration {
	var all []time.Duration
	for _, at := range w.entries {
		all = append(all, at...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	first, _ := slices.BinarySearch(all, from)
	return all[first:]
}

// A single caller does not wait for a round, even if it uses several groups.
func TestSingleCallerWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 3 * time.Millisecond
		w := newRoundsOf(t, 4, func(int, int) time.Duration { return takes })
		for i := range 100 {
			if took := w.call(t, i%7%4); took != takes {
				t.Fatalf("call %d took %v", i, took)
			}
		}
		w.close(t)
	})
}

// Groups with separate callers propose at the same times, and nearly all groups take part in each
// round.
func TestGroupsProposeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const groups, callers, takes = 16, 64, 5 * time.Millisecond
		w := newRoundsOf(t, groups, func(group, entry int) time.Duration {
			return takes + time.Duration(group*entry%7)*50*time.Microsecond // syncs take different times
		})
		ends := w.began.Add(2 * time.Second)
		var all sync.WaitGroup
		var mu sync.Mutex
		longest := time.Duration(0)
		for i := range callers {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(7, uint64(i)))
				for time.Now().Before(ends) {
					took := w.call(t, rng.IntN(groups))
					mu.Lock()
					longest = max(longest, took)
					mu.Unlock()
					time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
				}
			})
		}
		all.Wait()
		w.close(t)
		entries := 0
		for _, at := range w.entries {
			entries += len(at)
		}
		moments := len(w.moments(0))
		if entries < moments*groups*3/4 {
			t.Errorf("%d entries at %d moments: a round has few of %d groups", entries, moments, groups)
		}
		if longest > 5*takes { // the rest of a round, a wait of two rounds, the call's own round, and some delay
			t.Errorf("a call took %v", longest)
		}
	})
}

// A slow group delays the other groups at most by the bound of a round, and only in a round in
// which it proposes. A group that never answers delays them once.
func TestSlowGroupIsLeftBehind(t *testing.T) {
	for name, slow := range map[string]time.Duration{"slow": 80 * time.Millisecond, "without a quorum": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const takes = 2 * time.Millisecond
				w := newRoundsOf(t, 4, func(group, _ int) time.Duration {
					if group == 0 {
						return slow
					}
					return takes
				})
				ends := w.began.Add(2 * time.Second)
				var all sync.WaitGroup
				var waited [4]time.Duration
				var calls [4]int
				for i := range 4 {
					all.Go(func() {
						for time.Now().Before(ends) {
							waited[i] = max(waited[i], w.call(t, i)-takes)
							calls[i]++
						}
					})
				}
				all.Wait()
				w.close(t)
				for i := 1; i < 4; i++ {
					if waited[i] > takes+roundWaitMax || calls[i] < int(2*time.Second/takes)*2/5 {
						t.Errorf("group %d: %d calls, one waited %v", i, calls[i], waited[i])
					}
				}
			})
		})
	}
}

// With random arrivals, withdrawals, sizes and delays:
//
//  1. every proposal is answered or withdrawn;
//  2. no proposal waits longer than the bounds while its group has no entry in flight;
//  3. no proposal is counted at the end.
func TestRoundsAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			groups := 1 + rng.IntN(6)
			var mu sync.Mutex
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return rng.IntN(n)
			}
			w := newRoundsOf(t, groups, func(int, int) time.Duration {
				if draw(50) == 0 {
					return time.Duration(draw(300)) * time.Millisecond
				}
				return time.Duration(1+draw(5000)) * time.Microsecond
			})
			const bound = gatherMax + roundWaitMax
			ends := w.began.Add(time.Second)
			watched := make(chan struct{})
			go func() {
				defer close(watched)
				for time.Now().Before(ends) {
					for i := range groups {
						if held := w.waits(i); held > bound {
							t.Errorf("seed %d: a proposal of group %d waits for %v", seed, i, held)
						}
					}
					time.Sleep(500 * time.Microsecond)
				}
			}()
			var all sync.WaitGroup
			for range 1 + rng.IntN(30) {
				all.Go(func() {
					for time.Now().Before(ends) {
						p, ops := w.proposers[draw(groups)], 1
						if draw(40) == 0 {
							ops = secondEntryOps
						}
						q := mustSubmit(t, p, 1, ops, 0)
						patience := time.Hour
						if draw(5) == 0 {
							patience = time.Duration(draw(5000)) * time.Microsecond
						}
						_ = waitFor(p, q, patience)
						time.Sleep(time.Duration(draw(3)) * time.Millisecond)
					}
				})
			}
			all.Wait()
			<-watched
			time.Sleep(time.Second) // until the entries of callers that no longer wait have ended
			w.close(t)
		})
	}
}
