package shard

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/tiering"
)

// The parts of a split shard write the rows that they share again, but not to a nearly full disk, even without a reserve.
// A node that is always short of memory writes them too.
func TestSharedRowsAreWrittenAgain(t *testing.T) {
	t.Parallel()
	cfg := memberConfig(t, t.TempDir(), 1, 1)
	cfg.Shards, cfg.Cold = map[string]int{"posts": 1, "users": 1}, tiering.ColdConfig{After: 24 * time.Hour} // no id has a time
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { closeCold(t, n) })
	eventually(t, "the node serves", func() bool { return n.Ready() == nil })
	fillCold(t, n, n.Keyspace("posts"))
	mustGrow(t, n, "posts")
	eventually(t, "the keyspace has grown", func() bool { return n.Catalog().Keyspaces["posts"].Growth == nil && n.space.Kept() == 0 })
	shared := func() (bytes uint64) {
		for _, l := range n.tiering.Leaving(tiering.AnyShard) {
			bytes += l.FSM.State().SharedBytes
		}
		return bytes
	}
	before := shared()
	if before == 0 {
		t.Fatal("the parts share no rows")
	}
	holdHeadroom(n)
	n.headroom.DiskReserve = 0
	n.headroom.Look()
	free := n.headroom.Disk().NeededBytes + before/4 // each part shares a third
	n.headroom.Free = func() (uint64, error) { return free, nil }
	n.headroom.Look()
	for range 4 {
		n.tiering.MoveCold()
	}
	if after := shared(); after != before {
		t.Errorf("on a nearly full disk, %d bytes of %d are still shared", after, before)
	}
	free = 1 << 40
	n.headroom.Look()
	n.headroom.MemoryTight.Store(true)
	eventually(t, "the parts share no rows", func() bool {
		n.tiering.MoveCold()
		return shared() == 0
	})
	checkCold(t, n, n.Keyspace("posts"), 1)
}

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
