package shard

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
	"github.com/countd/countd/shard/wire"
)

// A leader proves that it leads by the terms of the other voters. A voter that is
// in a term no higher than the leader's has voted for no later leader by then; when
// that holds for a majority, no later leader was elected before the first of them
// was asked, so no write was acknowledged that this leader does not know.
// raft.VerifyLeader proves less: it counts answers to heartbeats that were sent
// before it was called, and those of non-voters (see raft.verifyLeader).

// prover proves that this node leads a group, and learns how far groups are that other
// nodes lead. mu guards peers; no call to another node is made under it.
type prover struct {
	key      string // of this node
	registry *registry
	catalog  *catalog.Catalog
	streams  *stream.Streams // set before the first question
	asking   *sync.WaitGroup // questions to other nodes, for which Node.Close waits

	mu    sync.Mutex
	peers map[string]provingPeer // by node key; made when first asked
}

// provingPeer is what waits to be asked of another node.
type provingPeer struct {
	probes  *rpc.Batcher[termProbe, termAnswer]
	confirm *rpc.Batcher[uint32, confirmed]
}

// peer returns the batchers of questions to a node; it makes them for the first question.
func (p *prover) peer(node string) provingPeer {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer, known := p.peers[node]
	if !known {
		peer = provingPeer{
			probes: rpc.NewBatcher(rpc.BatcherConfig[termProbe, termAnswer]{
				Send: p.sendProbes(node), InFlight: askInFlightMax, Items: askQueueMax, CallItems: catalog.GroupsMax + 1,
			}),
			confirm: rpc.NewBatcher(rpc.BatcherConfig[uint32, confirmed]{
				Send: p.sendConfirm(node), InFlight: askInFlightMax, Items: askQueueMax, CallItems: catalog.GroupsMax + 1,
			}),
		}
		p.peers[node] = peer
	}
	return peer
}

// close closes the batchers.
func (p *prover) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, peer := range p.peers {
		peer.probes.Close()
		peer.confirm.Close()
	}
}

// secondAskAfter is how long a leader waits for the voters that it asked before it
// asks those that it can do without: a few times what a busy node takes. Next
// time it begins with these.
const secondAskAfter = 25 * time.Millisecond

// askFresh is one round of a replica's freshness.
func (p *prover) askFresh(ctx context.Context, g *replica.Replica, applied func() uint64) (index uint64, err error) {
	term := g.ReadyTerm()
	if g.Ready() != nil {
		return p.askLeader(ctx, g)
	}
	if err := p.proveTerm(ctx, g, term); err != nil {
		return 0, err
	}
	return g.CommittedIndex(applied), nil
}

// askLeader asks the group's leader, which another node is, how far the group is.
// In a group of three the term of this node proves with the leader's own that it
// leads; where more are needed the leader is asked for a round of its own.
func (p *prover) askLeader(ctx context.Context, g *replica.Replica) (index uint64, err error) {
	leader, number := catalog.ParseReplicaID(string(g.LeaderID()))
	if leader == "" || leader == p.key {
		return 0, ErrNoLeader
	}
	peer := p.peer(leader)
	theirs, err := peer.probes.Do(ctx, termProbe{g.Group(), g.Term(), g.Number(), number})
	if err != nil || theirs.index > 0 {
		return theirs.index, err
	}
	answer, err := peer.confirm.Do(ctx, g.Group())
	if err == nil {
		err = answer.err
	}
	return answer.index, err
}

// proveTerm returns nil once a majority of the group's voters, this node
// included, was in no later term at some moment after the call. It asks as many as
// it needs, and the others only when one of these does not agree soon.
func (p *prover) proveTerm(ctx context.Context, g *replica.Replica, term uint64) error {
	others := g.Voters()
	need := len(others)/2 + 1
	if self := slices.Index(others, g.ID()); self >= 0 {
		others = slices.Delete(others, self, self+1)
		need--
	}
	switch agreed := p.agreeing(ctx, g, term, others, need); {
	case agreed < need:
		return fmt.Errorf("%w: %d of the other %d voters agreed, %d must", ErrNoQuorum, agreed, len(others), need)
	case g.ReadyTerm() != term || g.Ready() != nil:
		return ErrNoLeader
	}
	return nil
}

// agreeing returns how many of the voters, which are other nodes and no fewer than
// need, said that they are in no later term. It asks no further once need have.
func (p *prover) agreeing(ctx context.Context, g *replica.Replica, term uint64, voters []raft.ServerID, need int) int {
	if need == 0 {
		return 0
	}
	answers := make(chan bool, len(voters))
	first, asked := int(g.AskFirst.Load()), 0
	askUpTo := func(count int) {
		for ; asked < count; asked++ {
			node, number := catalog.ParseReplicaID(string(voters[(first+asked)%len(voters)]))
			peer := p.peer(node)
			p.asking.Go(func() { // ends with ctx
				theirs, err := peer.probes.Do(ctx, termProbe{g.Group(), term, g.Number(), number})
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
func (p *prover) sendConfirm(node string) func(context.Context, []uint32) ([]confirmed, error) {
	return func(ctx context.Context, groups []uint32) ([]confirmed, error) {
		answer, err := p.streams.Call(ctx, node, methodConfirm, wire.AppendGroups(nil, groups), len(groups)*confirmedBytesMax)
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

func (p *prover) serveConfirm(ctx context.Context, request []byte) ([]byte, error) {
	groups, err := wire.ParseGroups(request, catalog.GroupsMax+1)
	if err != nil {
		return nil, err
	}
	all := make([]confirmed, len(groups))
	done := make(chan struct{}, len(groups))
	for i, number := range groups {
		p.asking.Go(func() { // ends with ctx
			all[i].index, all[i].err = p.confirmHere(ctx, number)
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
func (p *prover) confirmHere(ctx context.Context, number uint32) (index uint64, err error) {
	g, fresh := p.registry.freshnessOf(number)
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
func (s *registry) freshnessOf(number uint32) (*replica.Replica, *freshness) {
	if number == catalogGroup {
		return s.meta, &s.metaFresh
	}
	if g := s.shardOf(number); g != nil {
		if r := g.replica.Load(); r != nil {
			return r.group, &r.fresh
		}
	}
	return nil, nil
}
