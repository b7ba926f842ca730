package shard

import (
	"errors"
	"testing"

	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
)

// A leader with free disk takes writes while the disk of one follower is full, and refuses them while both
// are full.
func TestMostVotersFull(t *testing.T) {
	all := openMembers(t, 3)
	ks := all[0].Keyspace("posts")
	for _, n := range all {
		holdHeadroom(n)
	}
	leader, followers := roles(t, all, ks.FirstGroup)
	shard := leader.registry.groups.Load().byFirst[ks.FirstGroup].all[0]
	write := func() error {
		return leader.Write(leader.Keyspace("posts"), &Write{Ops: counters.Ops{addTo(0, 0, 1)}, Deadline: soon()})
	}
	followers[0].headroom.DiskFull.Store(true)
	leader.votersDisks.Check()
	if err := write(); err != nil {
		t.Errorf("with one disk full: %v", err)
	}
	followers[1].headroom.DiskFull.Store(true)
	eventually(t, "a write is refused", func() bool { return errors.Is(write(), errs.ErrDiskFull) })
	if q := leader.writer.check(shard, &propose.ForwardedPart{}, soon()).propose(t.Context()); !errors.Is(q.Err, errs.ErrDiskFull) {
		t.Errorf("a write by way of another node: %v", q.Err)
	}
	if got := metricOf(t, leader, "countd_groups_without_room"); got < 1 {
		t.Errorf("%v groups are without room", got)
	}
	followers[0].headroom.DiskFull.Store(false)
	eventually(t, "a write is taken", func() bool { return write() == nil })
}

// A node whose disk is full or hangs hands its groups over to nodes with free disk, and gets none
// back. In the meantime it forwards its clients' writes.
func TestUnfitDiskLeadsNothing(t *testing.T) {
	all := openMembers(t, 3)
	for _, n := range all {
		holdHeadroom(n)
	}
	ks := all[0].Keyspace("posts")
	leader, followers := roles(t, all, ks.FirstGroup)
	for name, turn := range map[string]func(unfit bool){
		"full": leader.headroom.DiskFull.Store,
		"hangs": func(unfit bool) {
			if leader.headroom.DiskHangs.Store(0); unfit {
				leader.headroom.DiskHangs.Store(1)
			}
		},
	} {
		turn(true)
		eventually(t, "the node whose disk is unfit leads nothing: "+name, func() bool {
			led, _ := leader.membership.ToHandOver()
			return led == 0
		})
		if _, err := leader.membership.Progress(t.Context(), leader.cfg.NodeKey, nil); err == nil {
			t.Errorf("%s: it may be given a lead", name)
		}
		for id := range uint64(ks.Shards) {
			mustDo(t, leader.Write(leader.Keyspace("posts"), once(&Write{Ops: counters.Ops{addTo(id, 0, 1)}, Deadline: soon()})))
		}
		turn(false)
		group := followers[0].registry.Replica(ks.FirstGroup)
		if group.Ready() != nil {
			group = followers[1].registry.Replica(ks.FirstGroup)
		}
		eventually(t, "the node leads again: "+name, func() bool {
			_ = group.Transfer(replica.Member{ID: leader.registry.Replica(ks.FirstGroup).ID(), Addr: leader.mux.Addr().String()})
			led, _ := leader.membership.ToHandOver()
			return led > 0
		})
	}
}
