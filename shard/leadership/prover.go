package leadership

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// A leader proves its leadership by the terms of the other voters. A voter whose term is not above
// the leader's has not voted for a later leader. If a majority has such terms, no later leader was
// elected before the first question was sent. So the leader knows every acknowledged write.
// raft.VerifyLeader proves less: it counts answers to heartbeats that were sent before the call,
// and answers of non-voters.

// These are the methods of calls between nodes, with their requests → answers.
const (
	methodProbe   = "probe"   // []termProbe → a termAnswer for each
	methodConfirm = "confirm" // groups that the called node leads → index of each, proved by a majority
)

const (
	// askInFlightMax allows a second call while the other node still answers the first. Questions
	// that arrive during both share the next call.
	askInFlightMax = 2
	// askQueueMax bounds the questions that wait for one peer. A peer answers thousands of
	// questions per second, so it could not answer a longer queue before the deadlines.
	askQueueMax = 16_384
	// groupsMax bounds the groups in one call. A cluster cannot have more groups.
	groupsMax = catalog.GroupsMax + 1
)

// Local is this node's replica of a group.
type Local struct {
	Group *replica.Replica
	Fresh *Freshness
	// Applied returns the applied index of the state machine. It is nil for the catalog, for which
	// AskLeader always uses Confirm.
	Applied func() uint64
}

// ProverConfig configures a Prover. Every field must be set.
type ProverConfig struct {
	Key  string                           // key of this node
	Find func(group uint32) (Local, bool) // returns false if this node has no replica of the group
	// Call calls another node, like stream.Streams.Call.
	Call   func(ctx context.Context, node, method string, request []byte, answerBytes int) ([]byte, error)
	Asking *sync.WaitGroup // counts running questions to other nodes; the node waits for them when it closes
}

// Prover proves this node's leaderships, and asks leaders of other nodes for commit indexes. mu
// guards peers, and is never held during a call.
type Prover struct {
	cfg ProverConfig

	mu    sync.Mutex
	peers map[string]provingPeer // by node key; created at the first question
}

// provingPeer batches the questions to another node.
type provingPeer struct {
	probes  *rpc.Batcher[termProbe, termAnswer]
	confirm *rpc.Batcher[uint32, confirmed]
}

// NewProver returns the Prover of a node.
func NewProver(cfg ProverConfig) *Prover { return &Prover{cfg: cfg, peers: map[string]provingPeer{}} }

// Handle registers the handlers for calls of other nodes.
func (p *Prover) Handle(calls *rpc.Calls) {
	calls.Handle(methodProbe, p.serveProbes)
	calls.Handle(methodConfirm, p.serveConfirm)
}

// peer returns the batchers of a node, and creates them for the first question.
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

// If answers are missing after secondAskAfter, the leader asks the remaining voters too. A busy
// node answers in a fraction of that time. In its next round the leader asks those remaining voters
// first.
const secondAskAfter = 25 * time.Millisecond

// AskFresh runs one round of a replica's Freshness.
//
// It compares the term once more after it has read the index. The proof does not need that: raft's commit index never
// falls, so it covers each write from before the round, whoever leads now. But once another node leads, the index may
// be that of its first entry, a no-op, which never reaches a state machine. Then reads would wait for the next write.
// CommittedIndex may itself wait for a second, which is long enough for an election.
func (p *Prover) AskFresh(ctx context.Context, g *replica.Replica, applied func() uint64) (index uint64, err error) {
	term := g.ReadyTerm()
	if g.Ready() != nil {
		return p.AskLeader(ctx, g)
	}
	if err := p.ProveTerm(ctx, g, term); err != nil {
		return 0, err
	}
	index = g.CommittedIndex(applied)
	if g.ReadyTerm() != term || g.Ready() != nil {
		return 0, errs.ErrNoLeader
	}
	return index, nil
}

// AskLeader asks the group's leader on another node for the group's index. In a group of three
// voters, this node and the leader are a majority, so their terms prove the leadership. In a larger
// group, the leader must ask other voters too.
func (p *Prover) AskLeader(ctx context.Context, g *replica.Replica) (index uint64, err error) {
	leader, number := catalog.ParseReplicaID(string(g.LeaderID()))
	if leader == "" || leader == p.cfg.Key {
		return 0, errs.ErrNoLeader
	}
	theirs, err := p.peer(leader).probes.Do(ctx, termProbe{group: g.Group(), term: g.Term(), asker: g.Number(), asked: number})
	if err != nil || theirs.index > 0 {
		return theirs.index, err
	}
	return p.Confirm(ctx, leader, g.Group())
}

// Confirm makes another node prove that it leads a group, and returns the group's index.
func (p *Prover) Confirm(ctx context.Context, node string, group uint32) (index uint64, err error) {
	answer, err := p.peer(node).confirm.Do(ctx, group)
	if err == nil {
		err = answer.err
	}
	return answer.index, err
}

// ProveTerm returns nil if this node leads the group in the given term, and a majority of the
// voters was in no later term at some moment after the call began. It first asks only as many
// voters as it needs. If one of these does not agree within secondAskAfter, ProveTerm asks the
// other voters too.
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

// agreeing asks voters on other nodes for their terms, and counts the voters whose term is not
// later than the argument term. It returns when the count reaches quota, or when no answer is
// missing.
func (p *Prover) agreeing(ctx context.Context, g *replica.Replica, term uint64, voters []raft.ServerID, quota int) int {
	if quota == 0 {
		return 0
	}
	answers := make(chan bool, len(voters))
	first, asked := int(g.AskFirst.Load()), 0
	askUpTo := func(count int) {
		for ; asked < count; asked++ {
			node, number := catalog.ParseReplicaID(string(voters[(first+asked)%len(voters)]))
			peer := p.peer(node)
			p.cfg.Asking.Go(func() { // ends with ctx
				theirs, err := peer.probes.Do(ctx, termProbe{group: g.Group(), term: term, asker: g.Number(), asked: number})
				answers <- err == nil && theirs.term <= term
			})
		}
	}
	askUpTo(quota)
	late := time.NewTimer(secondAskAfter)
	defer late.Stop()
	agreed := 0
	for answered := 0; agreed < quota && answered < asked; {
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
			g.AskFirst.Store(uint32((first + quota) % len(voters)))
		}
	}
	return agreed
}

// confirmed is the answer of methodConfirm for one group.
type confirmed struct {
	index uint64
	err   error
}

// confirmedBytesMax bounds an encoded value of type confirmed.
const confirmedBytesMax = rpc.ErrorBytesMax + binary.MaxVarintLen64

// sendConfirm returns a function that sends the questions of Confirm to a node.
func (p *Prover) sendConfirm(node string) func(context.Context, []uint32) ([]confirmed, error) {
	return func(ctx context.Context, groups []uint32) ([]confirmed, error) {
		request := binary.AppendUvarint(nil, uint64(len(groups)))
		for _, g := range groups {
			request = binary.AppendUvarint(request, uint64(g))
		}
		answer, err := p.cfg.Call(ctx, node, methodConfirm, request, len(groups)*confirmedBytesMax)
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
	r := wire.Reader{Rest: request}
	groups := make([]uint32, r.CountTo(1, groupsMax))
	for i := range groups {
		groups[i] = uint32(r.UintTo(1<<32 - 1))
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	all := make([]confirmed, len(groups))
	var proving sync.WaitGroup
	for i, number := range groups {
		proving.Go(func() { all[i].index, all[i].err = p.confirmHere(ctx, number) }) // ends with ctx
	}
	proving.Wait()
	var answer []byte
	for _, c := range all {
		if answer = rpc.AppendError(answer, c.err); c.err == nil {
			answer = binary.AppendUvarint(answer, c.index)
		}
	}
	return answer, nil
}

// confirmHere proves that this node leads a group and returns the group's index.
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
