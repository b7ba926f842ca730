package shard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
)

// A pass, or the store itself, finds a flipped bit in a set that nobody reads, and another
// replica's state replaces the damaged one:
//
//  1. a pass over intact sets finds nothing;
//  2. afterwards the replica has the sets of the others, on disk too;
//  3. the damaged file is gone.
func TestScrubFindsDamagedSets(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(*testing.T, *coldMember){
		"by a pass": func(t *testing.T, m *coldMember) {
			mustDo(t, m.tiering.Scrub.Pass(noPause))
			if here := m.here(); here != nil && !here.damage.Found() && m.tiering.Repaired.Load() == 0 {
				t.Error("a pass does not find it")
			}
		},
		"as the store meets it": func(t *testing.T, m *coldMember) {
			eventually(t, "the store meets it", func() bool { // the store may have found the damage already
				here := m.here()
				return here != nil && here.fsm.Members().Verify() != nil || m.tiering.Repaired.Load() > 0
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDamagedSets(t, find)
		})
	}
}

func testDamagedSets(t *testing.T, find func(*testing.T, *coldMember)) {
	all := coldCluster(t)
	m := all[1]
	var last *Write
	for from := uint64(0); from < 20_000; from += 5_000 {
		var ops []engine.Op
		for i := from; i < from+5_000; i++ {
			ops = append(ops, engine.Join(coldID(i/100), 2, i*7919))
		}
		last = memberWrite(t, all[0].Node, all[0].Keyspace("posts"), ops...)
	}
	to := all[0].here().fsm.Applied()
	eventually(t, "the members have arrived", func() bool { return m.here().fsm.Applied() >= to })
	eventually(t, "a snapshot names the sets", func() bool { // raft refuses a snapshot while members change
		err := m.here().group.Snapshotter().Take()
		return err == nil || errors.Is(err, raft.ErrNothingNewToSnapshot)
	})
	m.stop()
	m.start() // the rows that were in Pebble's log are now in its files
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	mustDo(t, m.tiering.Scrub.Pass(noPause))
	onDisk := m.here().fsm.Members().DiskBytes()
	if s := m.tiering.Scrub.Report(); s.Damaged != 0 || onDisk < 40_000 || s.Bytes < onDisk || s.Passes != 1 || m.registry.damagedShards() != 0 {
		t.Fatalf("a pass over what is whole, with sets of %d bytes: %+v", onDisk, s)
	}
	m.stop()
	file := flipLargest(t, filepath.Join(m.dir, "groups-members", "*.sst"))
	m.start()
	eventually(t, "the node serves", func() bool { return m.Ready() == nil })
	find(t, m)
	eventually(t, "a replica is repaired", func() bool { return m.tiering.Repaired.Load() > 0 })
	mustBeRepaired(t, all, m, nil)
	eventually(t, "the damaged file is gone", func() bool {
		_, err := os.Stat(file)
		return errors.Is(err, fs.ErrNotExist)
	})
	eventually(t, "all sets are whole", func() bool {
		here := m.here()
		return here != nil && here.fsm.Members().Verify() == nil
	})
	l, err := m.List(m.Keyspace("posts"), 2, coldID(7), members.Page{Limit: 1000}, &ReadOptions{Token: last.Token, Deadline: soon()})
	if mustDo(t, err); len(l.Entries) != 100 {
		t.Errorf("a set has %d members, want 100", len(l.Entries))
	}
}
