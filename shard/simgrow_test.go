package shard

import (
	"strings"
	"testing"
)

// The files simgrow*_test.go are a model of GROWTH.md: they simulate how a group splits. The model
// is separate from the simulation in sim_test.go for two reasons. First, that simulation tests
// Raft, for one group, and needs most of its steps for elections. Second, children are ordinary
// groups, so the results of sim_test.go hold for them too. This model assumes that Raft is correct:
// an election is one step, in which a majority votes by term and log. Everything else is as random
// as in sim_test.go. Appends, snapshots, requests and commands of the catalog are late, lost or
// duplicated. Leaders are deposed and do not know it. Nodes crash between any two writes to disk,
// restart with an old catalog, or are lost.
//
//	simgrow_test.go         the tests and the rules
//	simgrowworld_test.go    nodes, disks, the catalog, and groups with their logs
//	simgrowshard_test.go    the state machine of a shard, with its request memory
//	simgrowclient_test.go   requests, reads, a source, a restore
//	simgrowrun_test.go      random steps, the recovery at the end, the checks

// growRule is a rule of GROWTH.md, or of any shard, that the model can switch off.
type growRule uint64

const (
	growFrozen       growRule = 1 << iota // R1: the catalog refuses to change the target of a frozen group
	growGated                             // R1: a leader that has applied Split changes no members before Begun
	growOverlap                           // R2: before Split, P's voters are on the nodes of the children's first voters
	growOnce                              // R3: a Split with another modulus than the replica's is void
	growFirstWins                         // R3: of Split and Abandon, only the first in the log has an effect
	growUnborn                            // R4: an unborn child refuses requests and reads
	growUnsaved                           // R4: an unborn child takes no snapshot
	growLogged                            // R4: a replica gets its part only by applying Adopt, not at bootstrap
	growAdoptOnce                         // R4: a second Adopt changes nothing
	growCounts                            // R5: a stuck or unborn replica does not count as caught up; the fault without this rule is too rare for the list
	growRepairs                           // R5: a stuck replica is repaired from another one
	growOpens                             // a replica of a child opens and votes even if its part is not on the node
	growBar                               // R6: P takes no snapshot beyond Split before Begun
	growBarSent                           // R6: P takes no such snapshot for a repair either
	growCarries                           // R7: a snapshot from before Split contains the staged members
	growStaged                            // R7: opening a child does not remove the members staged for it
	growSetsIndex                         // R7: the sets of a part get the index of Adopt
	growReplays                           // R8: if a child without a snapshot is opened again, P is opened again too
	growSaved                             // R9: Begun counts only voters with a snapshot on disk
	growWhole                             // only a finished snapshot counts after a crash
	growNames                             // R10: a section with another route is refused
	growLooks                             // R10: a read compares its route with the replica's
	growJudgesLast                        // R10: a section with another route is refused before it is judged
	growMemory                            // R11: a part contains the request memory
	growPositions                         // R11: a part contains the positions of sources
	growChain                             // K1: a part of a request states the earlier names of its judge too
	growNamed                             // K1: a judge has another name after Split
	growRelabels                          // K2: records of keys that the shard no longer judges count as judged by P
	growOwnKeys                           // K3: a key is judged only by its shard
	growTokens                            // a node catches up with the catalog if a token names an unknown group
	growNumbers                           // a node creates no replica with the number of a deleted one
	growOpensNone                         // applying Split opens no replica
	growVolatile                          // rows that were prepared before a restart are discarded
	growHeld                              // a child that opens does not delete the rows prepared for it
	growBarrier                           // R2: P's leader waits for a barrier before it reads its configuration; no fault was found without this rule
	growVoters                            // R2: Split does not wait for members without a vote
	growReadable                          // R2: Split waits until the voters can read the rows that they must copy
	growAdded                             // R12: Split adds the waiting changes to the hot lists before it divides them
	growReadsBack                         // R12: Split reads the bodies of the parts back into memory
	growAside                             // R10: Split removes no row from a table that a read may use
	growOneSection                        // the ops of an atomic section stay in one section
	growFate                              // a write with a try of unknown outcome is not reported as refused
	growInTerm                            // R3: a Split in another term than that of its leader's checks is void
	growCatalogRoute                      // R3: Split names the route of the catalog, not that of the leader's replica
	growCovers                            // a backup is complete only if its streams cover each id once

	growEnd
)

const growAll = growEnd - 1

func (r growRule) has(rule growRule) bool { return r&rule != 0 }

type growFault string

const (
	growLost     growFault = "an acknowledged op is missing"
	growTwice    growFault = "an op counted twice"
	growDiffers  growFault = "two replicas differ"
	growStale    growFault = "a stale read"
	growTwoLives growFault = "two lifetimes under one number"
	growBodies   growFault = "two bodies of one key"
	growRefused  growFault = "a request refused for nothing"
	growLate     growFault = "a section of an earlier epoch after a fence"
	growWedged   growFault = "a wedged group"
	growDamage   growFault = "a damaged log"
	growTorn     growFault = "a part of an atomic section"
	growFalse    growFault = "an op that was reported as refused"
	growApart    growFault = "a voter of a parent without one of its children"
)

// growShape selects the faults and the load of a world.
type growShape struct {
	wipes   bool // nodes are lost for ever, as long as each group keeps a majority
	moves   bool // replicas move often
	crashes bool // nodes crash often
	leaps   bool // the log time of one group jumps ahead by more than the key horizon
	keys    bool // most requests have keys
	alone   bool // one node
	single  bool // each group has a single voter, on one of four nodes
	drops   bool // the keyspace is dropped
	disks   bool // cold rows of parents are damaged, on one node at a time
	all     bool // the keyspace is "everywhere": all nodes have a replica of each group
	queues  bool // a Split waits in raft's queue after its leader's checks
}

var growShapes = map[string]growShape{
	"plain":     {},
	"moves":     {moves: true},
	"crashes":   {crashes: true},
	"losses":    {wipes: true, crashes: true},
	"all":       {wipes: true, crashes: true, moves: true},
	"keys":      {keys: true},
	"leaps":     {keys: true, leaps: true},
	"one voter": {alone: true, crashes: true},
	"restless":  {crashes: true, moves: true},
	"drops":     {drops: true, crashes: true, moves: true},
	"disks":     {disks: true, crashes: true},
	"one disk":  {disks: true, crashes: true, alone: true},
	"all nodes": {all: true, crashes: true, moves: true},
	"single":    {single: true, crashes: true, moves: true},
	"queues":    {queues: true, moves: true, crashes: true},
}

const (
	growWorldSteps = 5000
	growFindWorlds = 4000 // bounds the worlds in which TestSimulatedGrowthWithout looks for a fault
)

// TestSimulatedGrowth checks, in worlds of all shapes: no op counts twice; a linearizable read sees
// all ops acknowledged before it, and a read with a token sees the token's op; replicas that
// applied the same entries are equal; a number has one lifetime; a key has one body; no section of
// an earlier epoch is applied after a fence. At the end, the faults stop. Then the growth
// completes, each group has a leader and the members that the catalog wants, each request is
// answered, the source is read to its end, and each acknowledged op is there.
func TestSimulatedGrowth(t *testing.T) {
	for name, shape := range growShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if *simSeed > 0 {
				w := newGrowWorld(*simSeed, growAll, shape)
				w.tracing = true
				w.run(growWorldSteps)
				t.Log(strings.Join(w.trace, "\n"))
				if w.failure != nil {
					t.Fatalf("step %d: %s: %s", w.failure.step, w.failure.fault, w.failure.text)
				}
				return
			}
			steps := *simSteps / 4
			if testing.Short() {
				steps /= 8
			}
			var stats growStats
			for seed := uint64(1); stats.Steps < steps; seed++ {
				w := newGrowWorld(seed, growAll, shape)
				w.run(growWorldSteps)
				if w.failure != nil {
					t.Fatalf("seed %d (see -sim-seed): step %d: %s: %s", seed, w.failure.step, w.failure.fault, w.failure.text)
				}
				stats.add(&w.stats)
			}
			t.Logf("%+v", stats)
			if stats.Splits == 0 || stats.Adopts == 0 && !shape.drops || stats.Acked == 0 {
				t.Error("nothing happened")
			}
		})
	}
}

// If a rule is switched off, the model finds the fault that the rule prevents.
func TestSimulatedGrowthWithout(t *testing.T) {
	for name, c := range map[string]struct {
		without growRule
		shape   string
		seed    uint64 // worlds after this seed are tried; see TestSimulatedWithout
	}{
		"1/1 as the first index with rows":             {without: growLogged, shape: "crashes"},
		"a child that serves after its bootstrap":      {without: growUnborn, shape: "plain"},
		"a snapshot of an unborn child":                {without: growUnsaved, shape: "crashes"},
		"a blank replica that does not vote":           {without: growOpens, shape: "losses"},
		"Split truncated too early":                    {without: growBar, shape: "losses"},
		"a repair beyond Split":                        {without: growBarSent, shape: "losses"},
		"sets beyond Split with a snapshot before it":  {without: growCarries, shape: "disks", seed: 80},
		"sets staged under the child's group":          {without: growStaged, shape: "crashes"},
		"sets with the parent's index":                 {without: growSetsIndex, shape: "plain"},
		"an unfinished snapshot opened":                {without: growWhole, shape: "crashes", seed: 75},
		"the child's snapshot not durable":             {without: growSaved, shape: "losses", seed: 120},
		"a replay that makes a child twice":            {without: growAdoptOnce, shape: "crashes", seed: 80},
		"a replay that makes a child that left":        {without: growOpensNone, shape: "restless", seed: 1590},
		"a second Split":                               {without: growOnce, shape: "plain"},
		"a Split by the route of the replica":          {without: growCatalogRoute, shape: "queues"},
		"members that change after Commit":             {without: growFrozen | growGated | growOverlap, shape: "single"},
		"judging before refusal":                       {without: growJudgesLast, shape: "plain"},
		"a missing modulus":                            {without: growNames, shape: "plain"},
		"a missing modulus of reads":                   {without: growLooks, shape: "plain"},
		"a key judged in the wrong child":              {without: growOwnKeys, shape: "keys"},
		"a judge that changes":                         {without: growChain, shape: "keys"},
		"a key that the parent judged":                 {without: growRelabels, shape: "keys"},
		"a request memory that is not copied":          {without: growMemory, shape: "plain"},
		"a checkpoint that is not copied":              {without: growPositions, shape: "plain"},
		"a token of an unknown group":                  {without: growTokens, shape: "plain"},
		"a blank child under an old number":            {without: growNumbers, shape: "all", seed: 55},
		"rows that the child sweeps":                   {without: growHeld, shape: "plain"},
		"rows prepared before a restart":               {without: growVolatile, shape: "crashes"},
		"Split behind Abandon":                         {without: growFirstWins, shape: "plain", seed: 45},
		"a stuck replica that nobody repairs":          {without: growRepairs, shape: "losses"},
		"a child opened again without its parent":      {without: growReplays, shape: "one voter"},
		"a member without a vote that Split waits for": {without: growVoters, shape: "all nodes"},
		"a Split that cannot read what it copies":      {without: growReadable, shape: "one disk"},
		"hot lists without their newest changes":       {without: growAdded, shape: "plain"},
		"bodies that the parent's process removes":     {without: growReadsBack, shape: "crashes", seed: 200},
		"rows that leave under a reader":               {without: growAside, shape: "plain"},
		"an atomic section that is split":              {without: growOneSection, shape: "plain"},
		"CROSSSLOT for what was perhaps applied":       {without: growFate, shape: "plain"},
		"a backup of streams from both sides of Split": {without: growCovers, shape: "plain"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := c.seed + 1; seed <= c.seed+growFindWorlds; seed++ {
				w := newGrowWorld(seed, growAll&^c.without, growShapes[c.shape])
				w.run(growWorldSteps)
				if w.failure != nil {
					t.Logf("seed %d, step %d: %s: %s", seed, w.failure.step, w.failure.fault, w.failure.text)
					return
				}
			}
			t.Errorf("no fault in %d worlds", growFindWorlds)
		})
	}
}
