package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/wire"
)

// answerTerms has other nodes answer a node that asks for their terms: with the
// one that is given, or not at all where none is.
func answerTerms(n *Node, terms map[string]uint64) {
	n.prover.mu.Lock()
	defer n.prover.mu.Unlock()
	for node, answered := range n.prover.peers {
		answered.probes = rpc.NewBatcher(rpc.BatcherConfig[termProbe, termAnswer]{
			Send: func(_ context.Context, asked []termProbe) ([]termAnswer, error) {
				term, known := terms[node]
				if !known {
					return nil, errors.New("it is away")
				}
				return slices.Repeat([]termAnswer{{term: term}}, len(asked)), nil
			},
			InFlight: 1, Items: 1024, CallItems: 1024,
		})
		n.prover.peers[node] = answered
	}
}

// leading returns a node that leads a shard of posts, its replica, its term, and the
// other voters, which it knows as peers.
func leading(t *testing.T, all []*Node) (n *Node, g *replica.Replica, term uint64, others []string) {
	t.Helper()
	number := all[0].Keyspace("posts").firstGroup
	n, followers := roles(t, all, number)
	for _, f := range followers {
		n.prover.peer(f.cfg.NodeKey)
		others = append(others, f.cfg.NodeKey)
	}
	g = n.Replica(number)
	return n, g, g.ReadyTerm(), others
}

// A leader proves its term by a majority that is in no later one.
func TestProveTerm(t *testing.T) {
	n, g, term, others := leading(t, openMembers(t, 3))
	for _, c := range []struct {
		name  string
		terms []uint64 // of the other voters, 0 for one that does not answer
		want  error
	}{
		{"the same", []uint64{term, term}, nil},
		{"an earlier one", []uint64{term - 1, 0}, nil},
		{"one is in a later one", []uint64{term + 1, term}, nil},
		{"one is away", []uint64{term, 0}, nil},
		{"both are in a later one", []uint64{term + 1, term + 1}, ErrNoQuorum},
		{"one is in a later one and one is away", []uint64{0, term + 1}, ErrNoQuorum},
		{"both have no replica", []uint64{^uint64(0), ^uint64(0)}, ErrNoQuorum},
		{"both are away", []uint64{0, 0}, ErrNoQuorum},
	} {
		terms := map[string]uint64{}
		for i, other := range others {
			if c.terms[i] > 0 {
				terms[other] = c.terms[i]
			}
		}
		answerTerms(n, terms)
		if err := n.prover.proveTerm(t.Context(), g, term); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	answerTerms(n, map[string]uint64{others[0]: term - 1, others[1]: term - 1})
	if err := n.prover.proveTerm(t.Context(), g, term-1); !errors.Is(err, ErrNoLeader) {
		t.Errorf("a term that it does not lead in any more: %v, want %v", err, ErrNoLeader)
	}
}

// A leader that was replaced without knowing it tells nobody that it is not a member, and
// sends no backup.
func TestReplacedLeaderAnswersNothing(t *testing.T) {
	n, g, term, others := leading(t, openMembers(t, 3))
	ask := func(id raft.ServerID) ([]byte, error) {
		request := binary.AppendUvarint(nil, uint64(g.Group()))
		return n.membership.ServeMember(t.Context(), wire.AppendBytes(request, []byte(id)))
	}
	asked := map[raft.ServerID]byte{"n9.0": 0, replica.RaftID(n.cfg.NodeKey, 999): 0}
	for _, id := range g.Voters() {
		asked[id] = 1
	}
	for id, want := range asked {
		if answer, err := ask(id); err != nil || !slices.Equal(answer, []byte{want}) {
			t.Errorf("whether %s is a member: %v, %v", id, answer, err)
		}
	}
	mustDo(t, n.Write(n.Keyspace("posts"), once(&Write{Ops: []engine.Op{addTo(0, 0, 1)}, Deadline: soon()})))
	answerTerms(n, map[string]uint64{others[0]: term + 1, others[1]: term + 1})
	if answer, err := ask("n9.0"); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("replaced: whether n9.0 is a member: %v, %v", answer, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if s, err := n.OpenSnapshot(ctx, g.Group()); !errors.Is(err, ErrOverloaded) {
		t.Errorf("replaced: a snapshot %v, %v", s, err)
	}
}
