// Package prover proves that this node leads a group, and asks leaders for the commit index
// up to which a replica must apply the log before it may answer a read.
//
// It never answers a read, and never judges by heartbeats or time.
//
// Invariant: the leader reads an index after the call for it began, and every write
// acknowledged before that call is in the group's log at or below the index.
package prover

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
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

// The methods of calls between nodes.
const (
	methodStanding = "standing" // groups → the place of each replica, at once
	methodProbe    = "probe"    // groups and numbers → the same, of these replicas alone
	methodConfirm  = "confirm"  // groups led there → how far they are, proved by a majority
)

const (
	// askInFlightMax lets one question travel while the answer before it is
	// made; what comes meanwhile shares the next.
	askInFlightMax = 2
	// askQueueMax bounds what waits for one peer: an idle one answers thousands of times
	// a second, so this many waiting will not be answered in time.
	askQueueMax = 16_384
	// groupsMax bounds the groups that one call names: all that a cluster can have.
	groupsMax = catalog.GroupsMax + 1
)

// Local is this node's replica of a group.
type Local struct {
	Group *replica.Replica
	Fresh *Freshness
	// Applied returns the index of the last entry that its state machine applied. It is nil
	// for the catalog, whose followers ask for a round of the leader's own.
	Applied func() uint64
}

// Config configures a Prover. Every field must be set.
type Config struct {
	Key  string                           // of this node
	Find func(group uint32) (Local, bool) // false if this node has no replica of the group
	// Call asks another node, as stream.Streams.Call does.
	Call   func(ctx context.Context, node, method string, request []byte, answerBytes int) ([]byte, error)
	Asking *sync.WaitGroup // questions to other nodes, for which the node waits when it closes
}

// Prover proves that this node leads a group, and learns how far groups are that other
// nodes lead. mu guards peers; no call to another node is made under it.
type Prover struct {
	cfg Config

	mu    sync.Mutex
	peers map[string]provingPeer // by node key; made when first asked
}

// provingPeer is what waits to be asked of another node.
type provingPeer struct {
	probes  *rpc.Batcher[termProbe, termAnswer]
	confirm *rpc.Batcher[uint32, confirmed]
}

// New returns the prover of a node.
func New(cfg Config) *Prover { return &Prover{cfg: cfg, peers: map[string]provingPeer{}} }

// Handle answers the calls of other nodes.
func (p *Prover) Handle(calls *rpc.Calls) {
	calls.Handle(methodStanding, p.serveUnnumberedProbes)
	calls.Handle(methodProbe, p.serveProbes)
	calls.Handle(methodConfirm, p.serveConfirm)
}

// peer returns the batchers of questions to a node; it makes them for the first question.
func (p *Prover) peer(node string) provingPeer {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer, known := p.peers[node]
	if !known {
		peer = provingPeer{
			probes: rpc.NewBatcher(rpc.BatcherConfig[termProbe, termAnswer]{
				Send: p.sendProbes(node), InFlight: askInFlightMax, Items: askQueueMax, CallItems: groupsMax,
			}),
			confirm: rpc.NewBatcher(rpc.BatcherConfig[uint32, confirmed]{
				Send: p.sendConfirm(node), InFlight: askInFlightMax, Items: askQueueMax, CallItems: groupsMax,
			}),
		}
		p.peers[node] = peer
	}
	return peer
}

// Close closes the batchers.
func (p *Prover) Close() {
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

// AskFresh is one round of a replica's freshness.
func (p *Prover) AskFresh(ctx context.Context, g *replica.Replica, applied func() uint64) (index uint64, err error) {
	term := g.ReadyTerm()
	if g.Ready() != nil {
		return p.AskLeader(ctx, g)
	}
	if err := p.ProveTerm(ctx, g, term); err != nil {
		return 0, err
	}
	return g.CommittedIndex(applied), nil
}

// AskLeader asks the group's leader, which another node is, how far the group is.
// In a group of three the term of this node proves with the leader's own that it
// leads; where more are needed the leader is asked for a round of its own.
func (p *Prover) AskLeader(ctx context.Context, g *replica.Replica) (index uint64, err error) {
	leader, number := catalog.ParseReplicaID(string(g.LeaderID()))
	if leader == "" || leader == p.cfg.Key {
		return 0, errs.ErrNoLeader
	}
	theirs, err := p.peer(leader).probes.Do(ctx, termProbe{g.Group(), g.Term(), g.Number(), number})
	if err != nil || theirs.index > 0 {
		return theirs.index, err
	}
	return p.Confirm(ctx, leader, g.Group())
}

// Confirm has a node prove that it leads a group, and returns how far the group is.
func (p *Prover) Confirm(ctx context.Context, node string, group uint32) (index uint64, err error) {
	answer, err := p.peer(node).confirm.Do(ctx, group)
	if err == nil {
		err = answer.err
	}
	return answer.index, err
}

// ProveTerm returns nil once a majority of the group's voters, this node
// included, was in no later term at some moment after the call. It asks as many as
// it needs, and the others only when one of these does not agree soon.
func (p *Prover) ProveTerm(ctx context.Context, g *replica.Replica, term uint64) error {
	others := g.Voters()
	need := len(others)/2 + 1
	if self := slices.Index(others, g.ID()); self >= 0 {
		others = slices.Delete(others, self, self+1)
		need--
	}
	switch agreed := p.agreeing(ctx, g, term, others, need); {
	case agreed < need:
		return fmt.Errorf("%w: %d of the other %d voters agreed, %d must", errs.ErrNoQuorum, agreed, len(others), need)
	case g.ReadyTerm() != term || g.Ready() != nil:
		return errs.ErrNoLeader
	}
	return nil
}

// agreeing asks voters on other nodes, at least need of them, for their terms. It returns how
// many are in no later term, and stops asking once need of them are.
func (p *Prover) agreeing(ctx context.Context, g *replica.Replica, term uint64, voters []raft.ServerID, need int) int {
	if need == 0 {
		return 0
	}
	answers := make(chan bool, len(voters))
	first, asked := int(g.AskFirst.Load()), 0
	askUpTo := func(count int) {
		for ; asked < count; asked++ {
			node, number := catalog.ParseReplicaID(string(voters[(first+asked)%len(voters)]))
			peer := p.peer(node)
			p.cfg.Asking.Go(func() { // ends with ctx
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
func (p *Prover) sendConfirm(node string) func(context.Context, []uint32) ([]confirmed, error) {
	return func(ctx context.Context, groups []uint32) ([]confirmed, error) {
		answer, err := p.cfg.Call(ctx, node, methodConfirm, wire.AppendGroups(nil, groups), len(groups)*confirmedBytesMax)
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

func (p *Prover) serveConfirm(ctx context.Context, request []byte) ([]byte, error) {
	groups, err := wire.ParseGroups(request, groupsMax)
	if err != nil {
		return nil, err
	}
	all := make([]confirmed, len(groups))
	done := make(chan struct{}, len(groups))
	for i, number := range groups {
		p.cfg.Asking.Go(func() { // ends with ctx
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
func (p *Prover) confirmHere(ctx context.Context, number uint32) (index uint64, err error) {
	r, here := p.cfg.Find(number)
	if !here {
		return 0, fmt.Errorf("%w: group %d is not here", errs.ErrNoLeader, number)
	}
	if err := r.Group.Ready(); err != nil {
		return 0, fmt.Errorf("%w: %w", err, rpc.ErrLedBy(r.Group.Leader()))
	}
	return r.Fresh.Confirm(ctx)
}
