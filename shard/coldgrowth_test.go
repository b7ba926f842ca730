package shard

import (
	"path/filepath"
	"testing"

	"github.com/countd/countd/raftfsm/counters"
)

// A bit flips in a block that the three parts of a split shard use, on one of three nodes. The replica of each part finds
// the damage and is repaired, whether a scrub or reads find it.
func TestDamageOfSharedRowsIsRepaired(t *testing.T) {
	for _, by := range []string{"scrub", "reads"} {
		t.Run(by, func(t *testing.T) {
			if testing.Short() && by == "reads" {
				t.Skip("it makes 25,000 rows cold")
			}
			t.Parallel()
			// On a busy machine the parts may have written the rows for themselves before the damage.
			eventually(t, "the parts share rows", func() bool { return damagedShareIsRepaired(t, by == "scrub") })
		})
	}
}

// damagedShareIsRepaired returns false if the parts share no rows when a bit flips.
func damagedShareIsRepaired(t *testing.T, scrub bool) bool {
	t.Helper()
	const parts = 3
	all := coldCluster(t)
	m := all[1]
	m.mustNameCold() // otherwise its next start writes rows that it was sent anew
	mustGrow(t, all[0].Node, "posts")
	eventually(t, "the shard has split", func() bool {
		for _, n := range all {
			for shard := range parts {
				if r := n.replicaOf(shard); r == nil || r.fsm.Applied() == 0 {
					return false
				}
			}
		}
		return m.Catalog().Keyspaces["posts"].Growth == nil
	})
	for shard := range parts {
		r := m.replicaOf(shard)
		last := r.fsm.Applied()
		eventually(t, "a snapshot names the rows of a part", func() bool {
			_ = r.group.Snapshotter().Take() // fails if one is being taken, or nothing is new
			return r.group.Snapshots().NewestIndex() >= last
		})
	}
	m.stop()
	m.start() // what was in Pebble's log is in its files now
	m.stop()
	flipLargest(t, filepath.Join(m.dir, "cold", "*.sst"))
	m.start()
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	var damaged []*localReplica
	for shard := range parts {
		r := m.replicaOf(shard)
		if !r.fsm.Machine.(*counters.Machine).Shares() {
			return false
		}
		damaged = append(damaged, r)
	}
	if scrub {
		mustDo(t, m.tiering.Scrub.Pass(noPause))
	} else {
		readAllCold(t, m)
	}
	for shard, r := range damaged {
		if !r.damage.Found() {
			t.Errorf("part %d has not found the damage", shard)
			continue
		}
		mustRepairShard(t, all, m, shard, r)
	}
	if n := m.registry.damagedShards(); n != 0 {
		t.Errorf("%d shards are damaged", n)
	}
	readAllCold(t, m)
	checkCold(t, m.Node, m.Keyspace("posts"), 1)
	return true
}
