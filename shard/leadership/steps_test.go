package leadership

import (
	"testing"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/tiering"
)

// A Split that is proposed again, after the replica has applied it, names the route from before it. So it is void.
func TestRepeatedSplitNamesTheFirstRoute(t *testing.T) {
	m := kinds.All.New(codec.KindCounters, raftfsm.Places{})
	m.SetRoute(codec.Route{Modulus: 9, Residue: 1}) // as Split has left it
	s := step{group: 5, local: &GrowthShard{Machine: &tiering.Machine{Machine: m}}}
	s.of.Keyspace = catalog.Keyspace{Groups: []uint32{4, 5, 6}}
	if got, want := s.from(), (codec.Route{Modulus: 3, Residue: 1}); got != want {
		t.Errorf("from %+v, want %+v", got, want)
	}
}
