package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	movesMin = 200             // least number of moves for each log store
	movesFor = 8 * time.Minute // time limit for these moves
)

// TestClusterChaosMoves moves replicas of all shards of posts back and forth while nodes are killed
// and cut off. Some moves bring a replica back to its node while one voter does not know that the
// replica had left. In other cases one node misses the moves, and then another node loses its disk.
// At the end
//
//  1. each count is the sum of the answered writes;
//  2. one order explains all other answers;
//  3. replicas are equal and never differed at one index.
func TestClusterChaosMoves(t *testing.T) {
	if !*chaos {
		t.Skip("in the long form only, -chaos")
	}
	for _, store := range stores("") {
		t.Run(store, func(t *testing.T) {
			c := newCluster(t, proctest.Options{Nodes: returnNodes, LogStore: store, Cuttable: true})
			load := c.StartLoad(4, faultPace)
			mover := c.StartMoves()
			rng := rand.New(rand.NewPCG(chaosSeed, uint64(len(store))))
			happened := map[string]int{}
			moved, back := mover.Moved()
			for end := time.Now().Add(movesFor); moved < movesMin && time.Now().Before(end); moved, back = mover.Moved() {
				shard := rng.IntN(c.Shards("posts"))
				which := rng.IntN(len(faults) + 3)
				if len(happened) == 0 {
					which = len(faults) + 2 // begin with this fault, because there are too few random draws to be sure of it
				}
				switch which {
				case len(faults):
					happened["replica returns, killed"]++
					mover.Without(shard, func() { newReturn(t, c, shard).killed() })
				case len(faults) + 1:
					happened["replica returns, cut"]++
					mover.Without(shard, func() { newReturn(t, c, shard).cut() })
				case len(faults) + 2:
					happened["one misses moves, another loses its disk"]++
					newMissed(t, c, shard).chaos(mover, time.Duration(rng.Int64N(int64(faultMax))))
				default:
					happened[faults[which].name]++
					nodes := c.Nodes()
					rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
					faults[which].does(c, nodes, time.Duration(rng.Int64N(int64(faultMax))))
				}
				time.Sleep(time.Duration(rng.Int64N(int64(calmMax))))
			}
			mover.Stop()
			t.Logf("%v; %d replicas were moved, %d of them back", happened, moved, back)
			if moved < movesMin {
				t.Errorf("%d replicas were moved in %v, want %d", moved, movesFor, movesMin)
			}
			c.AwaitReady(c.Nodes()...)
			load.Stop()
			c.AwaitVoters(voters)
			// The cluster still moves replicas to even out the placement that the mover left. These
			// moves also append entries, so the replicas take longer to become equal.
			t.Logf("all replicas alike %v after it", load.End(c.Nodes()...))
			c.Nodes()[0].MustCtl("verify")
			t.Logf("load: %v", load.Between(time.Time{}, time.Now()))
		})
	}
}
