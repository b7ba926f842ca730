package shard

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/raft"
)

// A leader proves that it leads by asking the other voters for their terms. A
// voter that answers with a term no higher than the leader's has voted for no
// later leader by then; when a majority has, no later leader was elected before
// the question was sent, so no write was acknowledged that this leader does not
// know. raft.VerifyLeader proves less: it counts answers to heartbeats that were
// sent before it was called, and those of non-voters (see raft.verifyLeader).

// askFresh is one round of a replica's freshness.
func (n *Node) askFresh(ctx context.Context, g *group, applied func() uint64) (index uint64, err error) {
	term := g.readyTerm.Load()
	if g.ready() != nil {
		return n.askLeader(ctx, g)
	}
	if err := n.proveTerm(ctx, g, term); err != nil {
		return 0, err
	}
	// Not what is applied here: a follower may be ahead of this node's state
	// machine, and somebody have read there what is to be seen from then on.
	if committed := g.raft.CommitIndex(); committed > g.barrierIndex.Load() {
		return committed, nil
	}
	return applied(), nil // the barrier never reaches a state machine, all before it has here
}

// askLeader asks the group's leader, which another node is, for a round of its own.
func (n *Node) askLeader(ctx context.Context, g *group) (index uint64, err error) {
	leader := g.leader()
	if leader == "" || leader == n.cfg.NodeKey {
		return 0, ErrNoLeader
	}
	answer, err := n.peer(leader).confirm.do(ctx, g.cfg.Group)
	if err == nil {
		err = answer.err
	}
	return answer.index, err
}

// proveTerm returns nil once a majority of the group's voters, this node
// included, was in no later term at some moment after the call.
func (n *Node) proveTerm(ctx context.Context, g *group, term uint64) error {
	voters := g.voters()
	agreed, need := 0, len(voters)/2+1
	asked := 0
	answers := make(chan bool, len(voters))
	for _, v := range voters {
		if v == raft.ServerID(n.cfg.NodeKey) {
			agreed++
			continue
		}
		asked++
		n.asking.Go(func() { // ends with ctx
			theirs, err := n.peer(string(v)).terms.do(ctx, g.cfg.Group)
			answers <- err == nil && theirs <= term
		})
	}
	for ; agreed < need && asked > 0; asked-- {
		if <-answers {
			agreed++
		}
	}
	switch {
	case agreed < need:
		return fmt.Errorf("%w: %d of %d voters agreed", ErrNoQuorum, agreed, len(voters))
	case g.readyTerm.Load() != term || g.ready() != nil:
		return ErrNoLeader
	}
	return nil
}

// sendTerms asks a node for its terms of groups. A group that it does not hold
// has the highest term there is, which agrees with nobody.
func (n *Node) sendTerms(node string) func(context.Context, []uint32) ([]uint64, error) {
	return func(ctx context.Context, groups []uint32) ([]uint64, error) {
		answer, err := n.calls.call(ctx, node, methodTerms, appendGroups(nil, groups))
		if err != nil {
			return nil, err
		}
		r := wireReader{rest: answer}
		terms := make([]uint64, len(groups))
		for i := range terms {
			terms[i] = r.uint()
		}
		return terms, r.end()
	}
}

func (n *Node) serveTerms(_ context.Context, request []byte) ([]byte, error) {
	groups, err := parseGroups(request)
	if err != nil {
		return nil, err
	}
	var answer []byte
	for _, number := range groups {
		term := ^uint64(0)
		if g := n.replicaOf(number); g != nil {
			term = g.raft.CurrentTerm()
		}
		answer = binary.AppendUvarint(answer, term)
	}
	return answer, nil
}

// confirmed is one group's answer to a confirm call.
type confirmed struct {
	index uint64
	err   error
}

// sendConfirm asks a node that leads groups to prove it, and how far they are.
func (n *Node) sendConfirm(node string) func(context.Context, []uint32) ([]confirmed, error) {
	return func(ctx context.Context, groups []uint32) ([]confirmed, error) {
		answer, err := n.calls.call(ctx, node, methodConfirm, appendGroups(nil, groups))
		if err != nil {
			return nil, err
		}
		r := wireReader{rest: answer}
		all := make([]confirmed, len(groups))
		for i := range all {
			if all[i].err = r.error(); all[i].err == nil {
				all[i].index = r.uint()
			}
		}
		return all, r.end()
	}
}

func (n *Node) serveConfirm(ctx context.Context, request []byte) ([]byte, error) {
	groups, err := parseGroups(request)
	if err != nil {
		return nil, err
	}
	all := make([]confirmed, len(groups))
	done := make(chan struct{}, len(groups))
	for i, number := range groups {
		n.asking.Go(func() { // ends with ctx
			all[i].index, all[i].err = n.confirmHere(ctx, number)
			done <- struct{}{}
		})
	}
	for range groups {
		<-done
	}
	var answer []byte
	for _, c := range all {
		if answer = appendCallError(answer, c.err); c.err == nil {
			answer = binary.AppendUvarint(answer, c.index)
		}
	}
	return answer, nil
}

// confirmHere proves that this node leads a group.
func (n *Node) confirmHere(ctx context.Context, number uint32) (index uint64, err error) {
	g, fresh := n.freshnessOf(number)
	if g == nil {
		return 0, fmt.Errorf("%w: group %d is not here", ErrNoLeader, number)
	}
	if err := g.ready(); err != nil {
		return 0, fmt.Errorf("%w: %w", err, errLedBy(g.leader()))
	}
	return fresh.confirm(ctx)
}

// freshnessOf returns this node's member of a group and what it knows of its
// freshness, nil for none.
func (n *Node) freshnessOf(number uint32) (*group, *freshness) {
	if number == catalogGroup {
		return n.meta, &n.metaFresh
	}
	if g := n.shardOf(number); g != nil {
		if r := g.replica.Load(); r != nil {
			return r.group, &r.fresh
		}
	}
	return nil, nil
}

// groupsMax bounds the groups that one call names: all that a cluster can have.
const groupsMax = GroupsMax + 1

func appendGroups(dst []byte, groups []uint32) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(groups)))
	for _, g := range groups {
		dst = binary.AppendUvarint(dst, uint64(g))
	}
	return dst
}

func parseGroups(b []byte) ([]uint32, error) {
	r := wireReader{rest: b}
	n := r.count(1)
	if n > groupsMax {
		r.fail("too many groups")
	}
	groups := make([]uint32, 0, min(n, groupsMax))
	for range n {
		groups = append(groups, uint32(r.uintTo(1<<32-1)))
	}
	return groups, r.end()
}
