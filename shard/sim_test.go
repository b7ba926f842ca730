package shard

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

var (
	simSteps = flag.Int("sim-steps", 400_000, "steps of each kind of simulated world")
	simSeed  = flag.Uint64("sim-seed", 0, "simulate this seed alone and print what happens")
)

const (
	// simWorldSteps is the number of steps in which a world has faults. A voter moves away and back
	// in a few hundred steps.
	simWorldSteps = 2000
	// simFindWorlds bounds the worlds in which TestSimulatedWithout looks for a fault.
	// TestSimulatedWithout finds the rarest fault within about a tenth of them.
	simFindWorlds = 6000
)

// simAll has the rules of the product. simOld has the rules of a product whose catalog does not
// number replicas.
var (
	simAll = simRules{
		numbers: true, named: true, refuseUnnamed: true, probesNamed: true, deleteAsks: true, asksAll: true,
		retireProves: true, neverTwice: true, inForce: true, initialBegins: true,
		mindsNumbers: true, votesByLog: true, freeCandidates: true, withholds: true, leadersAlone: true, notLate: true, sendsRest: true, filter: true,
	}
	simOld = simRules{filter: true}
)

// TestSimulated checks, in worlds of all kinds, after each step:
//
//  1. A term has at most one leader.
//  2. A leader has all entries that were committed in earlier terms.
//  3. No two replicas commit or apply different entries at one index, and none deletes an entry
//     that it has applied.
//  4. A linearizable read, of the leader or of a follower, returns no less than was acknowledged
//     before the read began.
//  5. A Raft id has one lifetime. So no majority counts one replica twice.
//  6. A log has no gap.
//
// At the end, the faults stop. Then the group has one leader and the members that the catalog
// wants, and each member has all acknowledged entries. No other replica is left.
func TestSimulated(t *testing.T) {
	for name, shape := range map[string]simShape{
		"moves":          {},
		"one voter":      {single: true},
		"three voters":   {small: true},
		"restarts":       {restarts: true},
		"late snapshots": {lateSnapshots: true},
		"lost nodes":     {wipes: true, lateSnapshots: true},
		"five voters":    {five: true, wipes: true},
		"full disks":     {full: true},
		"torn writes":    {torn: true},
		"full and lost":  {full: true, wipes: true},
		"large and lost": {largeState: true, wipes: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if *simSeed > 0 {
				w := newSimWorld(*simSeed, simAll, shape)
				w.tracing = true
				w.run(simWorldSteps)
				t.Log(strings.Join(w.trace, "\n"))
				return
			}
			steps := *simSteps
			if testing.Short() {
				steps /= 8
			}
			var stats simStats
			for seed := uint64(1); stats.steps < steps; seed++ {
				w := newSimWorld(seed, simAll, shape)
				w.run(simWorldSteps)
				if w.failure != nil {
					t.Fatalf("seed %d (see -sim-seed): step %d: %s: %s", seed, w.failure.step, w.failure.fault, w.failure.text)
				}
				stats.add(w.stats)
			}
			t.Logf("%+v", stats)
		})
	}
}

// If a rule is switched off, the simulation finds the fault that the rule prevents. This shows that
// TestSimulated can fail.
func TestSimulatedWithout(t *testing.T) {
	without := func(change func(*simRules)) simRules {
		rules := simAll
		change(&rules)
		return rules
	}
	for name, c := range map[string]struct {
		rules simRules
		shape simShape
		fault simFault
		// The test tries up to simFindWorlds worlds after this seed. For a rare fault, the seed is
		// shortly before a world with the fault. A change of the simulation gives every seed
		// another world, so one seed is not enough.
		seed uint64
		long bool // the fault is too rare for a short run
	}{
		"numbers: an incomplete leader":  {rules: simOld, shape: simShape{small: true}, fault: simIncomplete, seed: 725},
		"numbers: a stale read":          {rules: simOld, shape: simShape{small: true}, fault: simStaleRead, seed: 725},
		"numbers: a lost entry":          {rules: simOld, shape: simShape{small: true}, fault: simDiverged, seed: 725},
		"numbers: two leaders of a term": {rules: simOld, fault: simTwoLeaders},
		"numbers: two lifetimes":         {rules: simOld, fault: simTwoLives},
		"the filter: an incomplete leader": {
			rules: without(func(r *simRules) { r.filter = false }), fault: simIncomplete, long: true,
		},
		"the filter: a damaged log": {
			rules: without(func(r *simRules) { r.filter = false }), fault: simDamage,
		},
		"names of replicas in calls": {
			rules: without(func(r *simRules) { r.named, r.refuseUnnamed, r.probesNamed = false, false, false }), fault: simIncomplete, long: true,
		},
		"a memory of deleted numbers": {
			rules: without(func(r *simRules) { r.neverTwice = false }), fault: simTwoLives, long: true,
		},
		"voters that know the configuration": {
			rules: without(func(r *simRules) { r.inForce = false }), fault: simWedged,
		},
		"votes that depend on the candidate alone": {
			rules: without(func(r *simRules) { r.votesByLog = false }), shape: simShape{wipes: true}, fault: simWedged, seed: 420,
		},
		"what is not committed goes to voters alone": {
			rules: without(func(r *simRules) { r.withholds = false }), shape: simShape{wipes: true}, fault: simWedged, seed: 850,
		},
		"candidates that vote although they know a leader": {
			rules: without(func(r *simRules) { r.freeCandidates = false }), shape: simShape{wipes: true}, fault: simWedged, seed: 2840,
		},
		"appends of leaders alone": {
			rules: without(func(r *simRules) { r.leadersAlone = false }), shape: simShape{full: true}, fault: simWedged, seed: 2110,
		},
		"configurations that are not stored late": {
			rules: without(func(r *simRules) { r.notLate = false }), shape: simShape{full: true, wipes: true}, fault: simWedged,
		},
		"snapshots that outlast the lease of their sender": {
			rules: without(func(r *simRules) { r.sendsRest = false }), shape: simShape{largeState: true, wipes: true}, fault: simWedged,
		},
		"a leader that is asked wherever it is": {
			rules: without(func(r *simRules) { r.asksAll = false }), fault: simWedged,
		},
		"first voters that begin late": {
			rules: without(func(r *simRules) { r.initialBegins = false }), fault: simWedged, long: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			worlds := simFindWorlds
			if c.long {
				if worlds = *simSteps / simWorldSteps; worlds < simFindWorlds {
					return
				}
			}
			for seed := c.seed + 1; seed <= c.seed+uint64(worlds); seed++ {
				w := newSimWorld(seed, c.rules, c.shape)
				w.only = c.fault
				w.run(simWorldSteps)
				if w.failure != nil {
					t.Logf("seed %d, step %d: %s: %s", seed, w.failure.step, w.failure.fault, w.failure.text)
					return
				}
			}
			t.Errorf("no %s in %d worlds", fmt.Sprint(c.fault), worlds)
		})
	}
}
