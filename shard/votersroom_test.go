package shard

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard/forward"
)

func TestTooFewWithRoom(t *testing.T) {
	t.Parallel()
	three := []raft.ServerID{"a", "b", "c"}
	for _, test := range []struct {
		name   string
		voters []raft.ServerID
		full   map[string]bool // by those that answered
		want   bool
	}{
		{"all have room", three, map[string]bool{"a": false, "b": false, "c": false}, false},
		{"one is full", three, map[string]bool{"a": false, "b": true, "c": false}, false},
		{"two are full", three, map[string]bool{"a": false, "b": true, "c": true}, true},
		{"one is full, one away", three, map[string]bool{"a": false, "b": true}, true},
		{"two are away", three, map[string]bool{"a": false}, false},
		{"another node is full", three, map[string]bool{"a": false, "b": false, "c": false, "d": true}, false},
		{"one of two is full", three[:2], map[string]bool{"a": false, "b": true}, true},
	} {
		if got := tooFewWithRoom(test.voters, test.full); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// A leader whose own disk has room takes writes while one follower's has none, and
// refuses them while both have none.
func TestMostVotersFull(t *testing.T) {
	all := openMembers(t, 3)
	ks := all[0].Keyspace("posts")
	for _, n := range all {
		holdHeadroom(n)
	}
	leader, followers := roles(t, all, ks.FirstGroup)
	shard := leader.registry.groups.Load().byFirst[ks.FirstGroup][0]
	write := func() error {
		return leader.Write(leader.Keyspace("posts"), &Write{Ops: []engine.Op{addTo(0, 0, 1)}, Deadline: soon()})
	}
	followers[0].headroom.DiskFull.Store(true)
	leader.votersRoom().check()
	if err := write(); err != nil {
		t.Errorf("with one disk full: %v", err)
	}
	followers[1].headroom.DiskFull.Store(true)
	eventually(t, "a write is refused", func() bool { return errors.Is(write(), ErrDiskFull) })
	if q := leader.writer.check(shard, &forward.Part{}, soon()).propose(t.Context(), soon()); !errors.Is(q.Err, ErrDiskFull) {
		t.Errorf("a write by way of another node: %v", q.Err)
	}
	if got := metricOf(t, leader, "countd_groups_without_room"); got < 1 {
		t.Errorf("%v groups are without room", got)
	}
	followers[0].headroom.DiskFull.Store(false)
	eventually(t, "a write is taken", func() bool { return write() == nil })
}
