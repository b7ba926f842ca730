package shard

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/wire"
)

// A leader proves that it leads by the terms of the other voters. A voter that is
// in a term no higher than the leader's has voted for no later leader by then; when
// that holds for a majority, no later leader was elected before the first of them
// was asked, so no write was acknowledged that this leader does not know.
// raft.VerifyLeader proves less: it counts answers to heartbeats that were sent
// before it was called, and those of non-voters (see raft.verifyLeader).

// secondAskAfter is how long a leader waits for the voters that it asked before it
// asks those that it can do without: a few times what a busy node takes. Next
// time it begins with these.
const secondAskAfter = 25 * time.Millisecond

// askFresh is one round of a replica's freshness.
func (n *Node) askFresh(ctx context.Context, g *replica.Replica, applied func() uint64) (index uint64, err error) {
	term := g.ReadyTerm()
	if g.Ready() != nil {
		return n.askLeader(ctx, g)
	}
	if err := n.proveTerm(ctx, g, term); err != nil {
		return 0, err
	}
	return g.CommittedIndex(applied), nil
}

// askLeader asks the group's leader, which another node is, how far the group is.
// In a group of three the term of this node proves with the leader's own that it
// leads; where more are needed the leader is asked for a round of its own.
func (n *Node) askLeader(ctx context.Context, g *replica.Replica) (index uint64, err error) {
	leader, number := catalog.ParseReplicaID(string(g.LeaderID()))
	if leader == "" || leader == n.cfg.NodeKey {
		return 0, ErrNoLeader
	}
	p := n.peer(leader)
	theirs, err := p.probes.Do(ctx, termProbe{g.Group(), g.Term(), g.Number(), number})
	if err != nil || theirs.index > 0 {
		return theirs.index, err
	}
	answer, err := p.confirm.Do(ctx, g.Group())
	if err == nil {
		err = answer.err
	}
	return answer.index, err
}

// proveTerm returns nil once a majority of the group's voters, this node
// included, was in no later term at some moment after the call. It asks as many as
// it needs, and the others only when one of these does not agree soon.
func (n *Node) proveTerm(ctx context.Context, g *replica.Replica, term uint64) error {
	others := g.Voters()
	need := len(others)/2 + 1
	if self := slices.Index(others, g.ID()); self >= 0 {
		others = slices.Delete(others, self, self+1)
		need--
	}
	switch agreed := n.agreeing(ctx, g, term, others, need); {
	case agreed < need:
		return fmt.Errorf("%w: %d of the other %d voters agreed, %d must", ErrNoQuorum, agreed, len(others), need)
	case g.ReadyTerm() != term || g.Ready() != nil:
		return ErrNoLeader
	}
	return nil
}

// agreeing returns how many of the voters, which are other nodes and no fewer than
// need, said that they are in no later term. It asks no further once need have.
func (n *Node) agreeing(ctx context.Context, g *replica.Replica, term uint64, voters []raft.ServerID, need int) int {
	if need == 0 {
		return 0
	}
	answers := make(chan bool, len(voters))
	first, asked := int(g.AskFirst.Load()), 0
	askUpTo := func(count int) {
		for ; asked < count; asked++ {
			node, number := catalog.ParseReplicaID(string(voters[(first+asked)%len(voters)]))
			p := n.peer(node)
			n.asking.Go(func() { // ends with ctx
				theirs, err := p.probes.Do(ctx, termProbe{g.Group(), term, g.Number(), number})
				answers <- err == nil && theirs.term <= term
			})
		}
	}
	askUpTo(need)
	late := time.NewTimer(secondAskAfter)
	defer late.Stop()
	agreed := 0
	for answered := 0; agreed < need && answered < asked; {
		yes := false
		select {
		case yes = <-answers:
			answered++
		case <-late.C:
		}
		if yes {
			agreed++
		} else if asked < len(voters) {
			askUpTo(len(voters))
			g.AskFirst.Store(uint32((first + need) % len(voters)))
		}
	}
	return agreed
}

// confirmed is one group's answer to a confirm call.
type confirmed struct {
	index uint64
	err   error
}

// confirmedBytesMax is what a confirmed takes on its way.
const confirmedBytesMax = rpc.ErrorBytesMax + binary.MaxVarintLen64

// sendConfirm asks a node that leads groups to prove it, and how far they are.
func (n *Node) sendConfirm(node string) func(context.Context, []uint32) ([]confirmed, error) {
	return func(ctx context.Context, groups []uint32) ([]confirmed, error) {
		answer, err := n.streams.Call(ctx, node, methodConfirm, appendGroups(nil, groups), len(groups)*confirmedBytesMax)
		if err != nil {
			return nil, err
		}
		r := wire.Reader{Rest: answer}
		all := make([]confirmed, len(groups))
		for i := range all {
			if all[i].err = rpc.ReadError(&r); all[i].err == nil {
				all[i].index = r.Uint()
			}
		}
		return all, r.End()
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
		if answer = rpc.AppendError(answer, c.err); c.err == nil {
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
	if err := g.Ready(); err != nil {
		return 0, fmt.Errorf("%w: %w", err, rpc.ErrLedBy(g.Leader()))
	}
	return fresh.confirm(ctx)
}

// freshnessOf returns this node's member of a group and what it knows of its
// freshness, nil for none.
func (n *Node) freshnessOf(number uint32) (*replica.Replica, *freshness) {
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
	r := wire.Reader{Rest: b}
	groups := make([]uint32, readGroups(&r, 1))
	for i := range groups {
		groups[i] = uint32(r.UintTo(1<<32 - 1))
	}
	return groups, r.End()
}
