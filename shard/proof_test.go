package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
)

// proverTold returns a prover of a node's replicas. Another node answers the prover with its term
// in terms, or not at all if it has none there.
func proverTold(t *testing.T, n *Node, terms map[string]uint64) *leadership.Prover {
	t.Helper()
	p := leadership.NewProver(leadership.ProverConfig{
		Key: n.cfg.NodeKey, Find: n.registry.provable, Asking: &n.asking.WaitGroup,
		Call: func(_ context.Context, node, _ string, request []byte, _ int) ([]byte, error) {
			term, known := terms[node]
			if !known {
				return nil, errors.New("it is away")
			}
			r := wire.Reader{Rest: request}
			r.Bytes() // the asking node
			var answer []byte
			for range r.Uint() {
				answer = binary.AppendUvarint(answer, term)
				answer = binary.AppendUvarint(answer, 0)
			}
			return answer, nil
		},
	})
	t.Cleanup(p.Close)
	return p
}

// leading returns a node that leads a shard of posts, its replica, its term, and the
// other voters.
func leading(t *testing.T, all []*Node) (n *Node, g *replica.Replica, term uint64, others []string) {
	t.Helper()
	number := all[0].Keyspace("posts").FirstGroup
	n, followers := roles(t, all, number)
	for _, f := range followers {
		others = append(others, f.cfg.NodeKey)
	}
	g = n.registry.Replica(number)
	return n, g, g.ReadyTerm(), others
}

// A leader proves its term by a majority whose terms are no later.
func TestProveTerm(t *testing.T) {
	t.Parallel()
	n, g, term, others := leading(t, openMembers(t, 3))
	for _, c := range []struct {
		name  string
		terms []uint64 // terms of the other voters; 0 for a voter that does not answer
		want  error
	}{
		{"the same", []uint64{term, term}, nil},
		{"an earlier one", []uint64{term - 1, 0}, nil},
		{"one is in a later one", []uint64{term + 1, term}, nil},
		{"one is away", []uint64{term, 0}, nil},
		{"both are in a later one", []uint64{term + 1, term + 1}, errs.ErrNoQuorum},
		{"one is in a later one and one is away", []uint64{0, term + 1}, errs.ErrNoQuorum},
		{"both have no replica", []uint64{^uint64(0), ^uint64(0)}, errs.ErrNoQuorum},
		{"both are away", []uint64{0, 0}, errs.ErrNoQuorum},
	} {
		terms := map[string]uint64{}
		for i, other := range others {
			if c.terms[i] > 0 {
				terms[other] = c.terms[i]
			}
		}
		if err := proverTold(t, n, terms).ProveTerm(t.Context(), g, term); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	p := proverTold(t, n, map[string]uint64{others[0]: term - 1, others[1]: term - 1})
	if err := p.ProveTerm(t.Context(), g, term-1); !errors.Is(err, errs.ErrNoLeader) {
		t.Errorf("a term that it does not lead in any more: %v, want %v", err, errs.ErrNoLeader)
	}
}

// A leader that does not know that it was replaced tells no replica that the replica was removed, and
// sends no backup.
func TestReplacedLeaderAnswersNothing(t *testing.T) {
	t.Parallel()
	n, g, term, others := leading(t, openMembers(t, 3))
	asked := map[raft.ServerID]bool{"n9.0": true, replica.RaftID(n.cfg.NodeKey, 999): true}
	for _, id := range g.Voters() {
		asked[id] = false
	}
	for id, want := range asked {
		if gone, err := n.membership.ServeGone(t.Context(), leadership.MemberQuery{Group: g.Group(), ID: id}); err != nil || gone != want {
			t.Errorf("whether %s is gone: %v, %v", id, gone, err)
		}
	}
	mustDo(t, n.Write(n.Keyspace("posts"), once(&Write{Ops: counters.Ops{addTo(0, 0, 1)}, Deadline: soon()})))
	replaced := proverTold(t, n, map[string]uint64{others[0]: term + 1, others[1]: term + 1})
	m := leadership.NewMembership(leadership.MembershipConfig{Key: n.cfg.NodeKey, Catalog: n.catalog, Replicas: &n.registry, Prove: replaced.ProveTerm})
	if gone, err := m.ServeGone(t.Context(), leadership.MemberQuery{Group: g.Group(), ID: "n9.0"}); !errors.Is(err, errs.ErrNoQuorum) {
		t.Errorf("replaced: whether n9.0 is gone: %v, %v", gone, err)
	}
	defer func(answering *leadership.Prover) { n.prover = answering }(n.prover)
	n.prover = replaced
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if s, err := n.OpenSnapshot(ctx, g.Group()); !errors.Is(err, errs.ErrOverloaded) {
		t.Errorf("replaced: a snapshot %v, %v", s, err)
	}
}
