package shard

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
)

// ledReplica returns the node that leads a shard of posts, and its replica.
func ledReplica(t *testing.T, all []*Node, shard int) (*Node, *localReplica) {
	t.Helper()
	var leader *Node
	var r *localReplica
	eventually(t, "the shard has a leader", func() bool {
		for _, n := range all {
			groups, err := n.router.groupsOf(n.Keyspace("posts"))
			mustDo(t, err)
			if here := groups[shard].replica.Load(); here != nil && here.group.Ready() == nil {
				leader, r = n, here
			}
		}
		return leader != nil
	})
	return leader, r
}

// TestLeaderWhoseStateLagsSaysWhatIsCommitted makes a leader confirm its index while its state
// machine is behind its log. The index must cover every committed write, because a follower may
// already have returned such a write to a reader.
func TestLeaderWhoseStateLagsSaysWhatIsCommitted(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	leader, r := ledReplica(t, all, 0)
	lagging := r.fsm.Applied()
	index, err := leader.prover.AskFresh(t.Context(), r.group, func() uint64 { return lagging })
	if err != nil || index != lagging {
		t.Errorf("before any write: index %d, %v, want %d", index, err, lagging)
	}
	w := once(&Write{Deadline: soon()})
	w.Ops = append(rowOps(w), addTo(0, 2, 1))
	mustDo(t, leader.Write(leader.Keyspace("posts"), w))
	index, err = leader.prover.AskFresh(t.Context(), r.group, func() uint64 { return lagging })
	if want := w.Token.Index(r.group.Group()); err != nil || index < want {
		t.Errorf("after a write: index %d, %v, want %d", index, err, want)
	}
}

// A leader that is deposed while it reads its index confirms no index. Reads would wait for the first entry of the next
// leader, which no state machine gets.
func TestLeaderIsDeposedWhileItReadsItsIndex(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	leader, r := ledReplica(t, all, 0)
	index, err := leader.prover.AskFresh(t.Context(), r.group, func() uint64 {
		eventually(t, "another node leads", func() bool {
			for _, s := range r.group.Configuration().Servers {
				if s.ID != r.group.ID() {
					_ = r.group.Transfer(replica.Member{ID: s.ID, Addr: string(s.Address)})
				}
			}
			return r.group.Ready() != nil
		})
		return r.fsm.Applied()
	})
	if !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("index %d, %v", index, err)
	}
}

// A leader and the asker together prove the leader's index if the asker is another voter in no later
// term, and two voters are a majority. Otherwise the leader returns no index.
func TestStandingIsProvedWithTheAsker(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	leader, r := ledReplica(t, all, 0)
	var follower *Node
	for _, n := range all {
		if n != leader {
			follower = n
		}
	}
	number, term := r.group.Group(), r.group.Term()
	self, other := r.group.ID(), follower.registry.Replica(number).ID()
	const counted, proves = true, true
	for name, c := range map[string]struct {
		asked           *Node
		asker           raft.ServerID
		term            uint64
		counted, proves bool
	}{
		"another voter":                {leader, other, term, counted, proves},
		"another voter, behind":        {leader, other, term - 1, counted, proves},
		"another voter, in later term": {leader, other, term + 1, counted, false},
		"the leader itself":            {leader, self, term, counted, false},
		"no member":                    {leader, "n9.00000000", term, false, false},
		"a replica that was there":     {leader, replica.RaftID(follower.cfg.NodeKey, 999), term, false, false},
		"a follower is asked":          {follower, self, term, counted, false},
	} {
		answered, index := probe(t, c.asked, c.asker, number, c.term, c.asked.registry.Replica(number).Number())
		if (answered == term) != c.counted || (answered == disagrees) == c.counted || (index > 0) != c.proves {
			t.Errorf("%s: term %d, index %d", name, answered, index)
		}
	}
	for name, c := range map[string]struct {
		group uint32
		asked uint64
	}{
		"a group that is not here":          {9999, 0},
		"another replica of the asked node": {number, 999},
	} {
		if answered, index := probe(t, leader, other, c.group, term, c.asked); answered != disagrees || index != 0 {
			t.Errorf("%s: term %d, index %d", name, answered, index)
		}
	}
}

// disagrees is the term of a replica that is not counted.
const disagrees = ^uint64(0)

// probe sends node n a term probe from the replica asker. The probe is for n's replica with the
// number replica.
func probe(t *testing.T, n *Node, asker raft.ServerID, group uint32, term, replica uint64) (answered, index uint64) {
	t.Helper()
	node, number := catalog.ParseReplicaID(string(asker))
	request := binary.AppendUvarint(wire.AppendBytes(nil, []byte(node)), 1)
	for _, field := range []uint64{uint64(group), term, number, replica} {
		request = binary.AppendUvarint(request, field)
	}
	answer, err := n.calls.Answer(t.Context(), "probe", request)
	mustDo(t, err)
	r := wire.Reader{Rest: answer}
	answered, index = r.Uint(), r.Uint()
	mustDo(t, r.End())
	return answered, index
}

func TestTwoSuffice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		voters []raft.ServerID
		a, b   raft.ServerID
		want   bool
	}{
		"two of two":      {[]raft.ServerID{"a", "b"}, "a", "b", true},
		"two of three":    {[]raft.ServerID{"a", "b", "c"}, "c", "a", true},
		"two of four":     {[]raft.ServerID{"a", "b", "c", "d"}, "a", "b", false},
		"two of five":     {[]raft.ServerID{"a", "b", "c", "d", "e"}, "a", "b", false},
		"one of one":      {[]raft.ServerID{"a"}, "a", "b", false},
		"one twice":       {[]raft.ServerID{"a", "b", "c"}, "a", "a", false},
		"first no voter":  {[]raft.ServerID{"a", "b", "c"}, "d", "a", false},
		"second no voter": {[]raft.ServerID{"a", "b", "c"}, "a", "d", false},
		"no voters":       {nil, "a", "b", false},
	} {
		if got := replica.TwoSuffice(c.voters, c.a, c.b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A leader continues to prove its leadership when the voter that it asks first is gone.
func TestLeaderAsksAnotherVoter(t *testing.T) {
	t.Parallel()
	n, g, term, others := leading(t, openMembers(t, 3))
	for _, there := range others {
		p := proverTold(t, n, map[string]uint64{there: term})
		for round := range 3 {
			if err := p.ProveTerm(t.Context(), g, term); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
}
