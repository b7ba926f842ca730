package cluster

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The test checks these properties of forming a cluster, on simulated nodes under every kind of
// fault:
//
//  1. A node's cluster never changes, and no node is in two clusters. This holds for lost messages,
//     network cuts, wrongly declared deaths, crashes and wipes.
//  2. A node promises to form a cluster only with the exact set of nodes that it sees. When a set
//     founds a cluster, all nodes of the set are bound to it.
//  3. Once the faults have ended, exactly the expected number of nodes form one cluster, unless
//     disks were wiped.
//  4. While no living node is declared dead, no node is in two sets that found a cluster, however
//     many nodes there are.
//  5. If there are too many nodes and all see each other, they form no cluster.
func TestFormingIsSafe(t *testing.T) {
	scenarios := *formScenarios
	if testing.Short() {
		scenarios = min(scenarios, 30)
	}
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, label string, seed uint64)
	}{
		{"crashes, losses, cuts, wipes", anythingHappens},
		{"nodes see what is not", nodesDream},
		{"as many as expected", asManyAsExpected},
		{"too many, at any time", tooManyInNoOrder},
		{"too many, all seen", tooManySeen},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for seed := range scenarios {
				synctest.Test(t, func(t *testing.T) { tc.run(t, fmt.Sprintf("seed %d", seed), seed) })
				if t.Failed() {
					return
				}
			}
		})
	}
}

// The target chaos of the Makefile runs more scenarios of each kind.
var formScenarios = flag.Uint64("form-scenarios", 100, "scenarios of each kind in TestFormingIsSafe")

const stormFor = time.Minute

// storm injects faults for stormFor: it loses and delays calls, crashes processes at disk writes,
// cuts the network, and crashes and restarts nodes.
func (w *formWorld) storm(wipes bool) {
	w.setWeather(weather{lost: 0.3, slowest: 2 * time.Second, newsSlow: 3 * time.Second, crashes: 0.1})
	for began := time.Now(); time.Since(began) < stormFor; {
		time.Sleep(w.within(2 * time.Second))
		n, other := w.anyNode(), w.anyNode()
		switch {
		case w.chance(0.1):
			n.crash()
		case wipes && w.chance(0.05):
			n.wipe()
		case w.chance(0.1):
			w.cut(1 + len(w.mu.nodes)/2)
		case w.chance(0.1):
			w.cut(1)
		case w.chance(0.3):
			w.mistake(n, other)
		default:
			n.start()
		}
		w.verify()
	}
	w.setWeather(fairWeather)
	w.cut(1)
}

func (w *formWorld) anyNode() *formNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.nodes[w.mu.rng.IntN(len(w.mu.nodes))]
}

// settle starts all nodes and waits until done returns true, for at most limit. Like an
// orchestrator, it restarts a node that gave up.
func (w *formWorld) settle(limit time.Duration, done func() bool) bool {
	began := time.Now()
	for time.Since(began) < limit {
		if done() {
			return true
		}
		for _, n := range w.mu.nodes {
			n.start()
		}
		time.Sleep(time.Second)
		w.verify()
	}
	return done()
}

func (w *formWorld) allInOneCluster() bool {
	ids := slices.Compact(w.clusters())
	return len(ids) == 1 && ids[0] != ""
}

// startAll starts all nodes, each at a random time within limit.
func (w *formWorld) startAll(limit time.Duration) {
	for _, n := range w.mu.nodes {
		after := w.within(limit)
		w.wg.Go(func() {
			time.Sleep(after)
			n.start()
		})
	}
}

func anythingHappens(t *testing.T, label string, seed uint64) {
	w := newFormWorld(t, label, seed, 3+int(seed%4), 2+int(seed/4%2))
	w.startAll(10 * time.Second)
	w.storm(true)
	w.settle(time.Minute, w.allInOneCluster)
	w.end()
	w.verify()
}

// nodesDream tests only the promises and the join requests. The nodes' views of each other change
// at random, and are unrelated to the real state.
func nodesDream(t *testing.T, label string, seed uint64) {
	expect := 2 + int(seed%2)
	w := newFormWorld(t, label, seed, 6, expect)
	w.mu.blind = true
	w.setWeather(weather{lost: 0.3, slowest: time.Second, crashes: 0.05})
	w.startAll(0)
	for began := time.Now(); time.Since(began) < 2*time.Minute; {
		w.dream(expect)
		time.Sleep(w.within(4 * time.Second))
		for _, n := range w.mu.nodes {
			if w.chance(0.05) {
				n.crash()
			}
			n.start()
		}
		w.verify()
	}
	w.end()
	w.verify()
}

func asManyAsExpected(t *testing.T, label string, seed uint64) {
	expect := 2 + int(seed%4)
	w := newFormWorld(t, label, seed, expect, expect)
	w.startAll(10 * time.Second)
	if seed%5 != 0 { // the remaining scenarios run without faults
		w.storm(false)
	}
	if !w.settle(2*time.Minute, w.allInOneCluster) {
		for _, n := range w.mu.nodes {
			t.Logf("%s: %+v, run %d, %v, waits for %s", n.disk.NodeID, n.disk, n.run, n.problem, n.former.Waiting())
		}
		w.errorf("no cluster of all %d nodes 2 minutes after the storm: %v", expect, w.clusters())
	}
	w.end()
	w.verify()
	w.verifyDisjoint()
}

func tooManyInNoOrder(t *testing.T, label string, seed uint64) {
	expect := 2 + int(seed%2)
	w := newFormWorld(t, label, seed, expect+1+int(seed/2%3), expect)
	w.setWeather(weather{lost: 0.2, slowest: 2 * time.Second, newsSlow: 3 * time.Second})
	w.startAll(15 * time.Second)
	time.Sleep(stormFor)
	w.verify()
	w.verifyDisjoint()
	w.end()
	w.verify()
}

func tooManySeen(t *testing.T, label string, seed uint64) {
	expect := 2 + int(seed%3)
	w := newFormWorld(t, label, seed, expect+1+int(seed/3%2), expect)
	now := fairWeather
	now.newsSlow = settleFor / 2
	w.setWeather(now)
	for _, n := range w.mu.nodes {
		n.start()
	}
	time.Sleep(stormFor)
	if ids := slices.Compact(w.clusters()); len(ids) != 1 || ids[0] != "" {
		w.errorf("%d nodes that expect %d have clusters %v", len(w.mu.nodes), expect, ids)
	}
	w.end()
}
