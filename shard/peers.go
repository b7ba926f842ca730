package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/wire"
)

// The methods of calls between nodes.
const (
	methodStanding   = "standing"   // groups → the place of each replica, at once
	methodProbe      = "probe"      // groups and numbers → the same, of these replicas alone
	methodConfirm    = "confirm"    // groups led there → how far they are, proved by a majority
	methodRead       = "read"       // parts of reads → rows
	methodScan       = "scan"       // one shard's next rows
	methodPropose    = "propose"    // parts of writes for one group → what became of each
	methodRelay      = "relay"      // the same, to be handed to the node that leads the group
	methodRelayRead  = "relayread"  // a node and parts of reads for it → rows
	methodProgress   = "progress"   // groups → the index that each replica has applied
	methodReplicas   = "replicas"   // groups and numbers → the same, of these replicas alone
	methodChange     = "change"     // a command for the catalog → its result
	methodKnow       = "know"       // an index of the catalog's log → that the node knows it
	methodTransfer   = "transfer"   // a group and a node → its leadership handed over
	methodFacts      = "facts"      // → the groups led there, as JSON
	methodReport     = "report"     // → what the node says of itself, as JSON
	methodColdReport = "coldreport" // → what the node says of its rows on disk, as JSON
	methodColdOrder  = "coldorder"  // what is to become of them → what the node says to it, both as JSON
	methodRoom       = "room"       // → whether the node's disk is at its reserve
	methodBoard      = "board"      // the board's group, a read of it → the board, as JSON
	methodSnapshot   = "snapshot"   // a shard and an index → a snapshot of then or later, in pieces
	methodMember     = "member"     // a group and a node → whether it is in the configuration
	methodKnown      = "known"      // a node → whether it is in the catalog, which is led there
)

const (
	// askInFlightMax lets one question travel while the answer before it is
	// made; what comes meanwhile shares the next.
	askInFlightMax = 2
	// Bounds of what waits for one peer: an idle one answers thousands of times
	// a second, so this many waiting will not be answered in time.
	askQueueMax       = 16_384
	readsQueueBytes   = 16 << 20
	partsInFlightMax  = propose.EntriesInFlightMax
	readsInCallMax    = 1024
	readsInCallBytes  = 1 << 20
	groupsInCallBytes = 1 << 20
)

// peer is another node: what waits to be asked of it, by kind.
type peer struct {
	probes    *rpc.Batcher[termProbe, termAnswer]
	confirm   *rpc.Batcher[uint32, confirmed]
	reads     *rpc.Batcher[*remoteRead, readAnswer]
	coldReads *rpc.Batcher[*remoteRead, readAnswer] // of rows that are to be read from disk there
}

// peer returns the batchers of questions to a node; it makes them for the first question.
func (n *Node) peer(node string) *peer {
	n.peersMu.Lock()
	defer n.peersMu.Unlock()
	p := n.peers[node]
	if p == nil {
		p = n.newPeer(node)
		n.peers[node] = p
	}
	return p
}

func (n *Node) newPeer(node string) *peer {
	return &peer{
		probes: rpc.NewBatcher(rpc.BatcherConfig[termProbe, termAnswer]{
			Send: n.sendProbes(node), InFlight: askInFlightMax, Items: askQueueMax, CallItems: groupsMax,
		}),
		confirm: rpc.NewBatcher(rpc.BatcherConfig[uint32, confirmed]{
			Send: n.sendConfirm(node), InFlight: askInFlightMax, Items: askQueueMax, CallItems: groupsMax,
		}),
		reads: rpc.NewBatcher(rpc.BatcherConfig[*remoteRead, readAnswer]{
			Send: n.sendReads(node), InFlight: askInFlightMax, Items: askQueueMax, Bytes: readsQueueBytes,
			CallItems: readsInCallMax, CallBytes: readsInCallBytes,
			Size: (*remoteRead).size,
		}),
		coldReads: rpc.NewBatcher(rpc.BatcherConfig[*remoteRead, readAnswer]{
			Send: n.sendReads(node), InFlight: coldAtOnce, Items: askQueueMax, Bytes: readsQueueBytes, CallItems: 1, CallBytes: readsInCallBytes,
			Size: (*remoteRead).size,
		}),
	}
}

// closePeers closes the batchers.
func (n *Node) closePeers() {
	n.peersMu.Lock()
	defer n.peersMu.Unlock()
	for _, p := range n.peers {
		p.probes.Close()
		p.confirm.Close()
		p.reads.Close()
		p.coldReads.Close()
	}
	table := n.groups.Load()
	for _, g := range slices.Concat(table.all, table.dropped) {
		g.forward.Close()
	}
}

// serveCalls sets what other nodes may ask of this one.
func (n *Node) serveCalls() {
	for method, handle := range n.cfg.Handlers {
		n.calls.Handle(method, handle)
	}
	n.calls.Handle(methodStanding, n.serveUnnumberedProbes)
	n.calls.Handle(methodProbe, n.serveProbes)
	n.calls.Handle(methodConfirm, n.serveConfirm)
	n.calls.Handle(methodRead, n.serveReads)
	n.calls.Handle(methodScan, n.serveScan)
	n.calls.Handle(methodPropose, n.serveParts)
	n.calls.Handle(methodRelay, n.serveRelay)
	n.calls.Handle(methodRelayRead, n.serveRelayRead)
	n.calls.Handle(methodProgress, n.serveProgress)
	n.calls.Handle(methodReplicas, n.serveReplicaProgress)
	n.calls.Handle(methodChange, n.serveChange)
	n.calls.Handle(methodTransfer, n.serveTransfer)
	n.calls.Handle(methodKnow, n.serveKnow)
	n.calls.Handle(methodFacts, n.serveLeaderViews)
	n.calls.Handle(methodReport, n.serveReport)
	n.calls.Handle(methodColdReport, n.serveColdReport)
	n.calls.Handle(methodColdOrder, n.serveColdOrder)
	n.calls.Handle(methodRoom, n.votersRoom().serve)
	n.calls.Handle(methodMember, n.serveMember)
	n.calls.Handle(methodKnown, n.serveKnown)
	n.calls.Handle(methodBoard, n.serveBoard)
	n.calls.HandleStream(methodSnapshot, n.serveSnapshot)
	n.calls.Serve()
}

// behind returns how many entries another replica of a group lacks of what this
// node's log had before the call.
func (n *Node) behind(ctx context.Context, g *replica.Replica, id raft.ServerID) (uint64, error) {
	last := g.LastIndex()
	node, number := catalog.ParseReplicaID(string(id))
	theirs, err := n.progress(ctx, node, []groupReplica{{g.Group(), number}})
	if err != nil {
		return 0, err
	}
	if inForce := g.ConfigurationInForce(); inForce == nil || theirs[0] < inForce.Index {
		return 0, fmt.Errorf("%w: replica %s of group %d", errNotMember, id, g.Group())
	}
	return last - min(last, theirs[0]), nil
}

// errNotMember is returned for a replica that has not applied the configuration that is
// in force, or is not there. It may lack only a few entries, but if it does not know
// that it is a member it can neither lead nor vote.
var errNotMember = errors.New("it has not applied the configuration that is in force")

// serveProgress answers serveReplicaProgress for replicas of number 0.
func (n *Node) serveProgress(_ context.Context, request []byte) ([]byte, error) {
	groups, err := parseGroups(request)
	if err != nil {
		return nil, err
	}
	replicas := make([]groupReplica, len(groups))
	for i, number := range groups {
		replicas[i].group = number
	}
	return n.answerProgress(replicas)
}

// serveReplicaProgress answers the index up to which each replica has applied its log.
// It answers 0 for a replica that is not here, has cold rows that cannot be read, or is
// not in its own configuration. The log may reach further; a voter should be able to
// lead at once. A node that is stopping answers ErrDraining: nothing is to be handed to
// it.
func (n *Node) serveReplicaProgress(_ context.Context, request []byte) ([]byte, error) {
	replicas, err := parseReplicas(request)
	if err != nil {
		return nil, err
	}
	return n.answerProgress(replicas)
}

func (n *Node) answerProgress(replicas []groupReplica) ([]byte, error) {
	if n.handingOver.Load() {
		return nil, ErrDraining
	}
	var answer []byte
	for _, r := range replicas {
		var index uint64
		g := n.replicaOf(r.group)
		if g != nil && g.Number() == r.number && !n.isDamaged(r.group) && replica.Contains(g.Configuration().Servers, g.ID()) {
			index = g.AppliedIndex()
		}
		answer = binary.AppendUvarint(answer, index)
	}
	return answer, nil
}

// serveMember answers whether a replica is, or may become again, a member of a group
// that this node leads. A node that is told that its replica is not may delete it, so
// this node must lead the group now, and its answer must be committed.
func (n *Node) serveMember(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	number, id := uint32(r.UintTo(1<<32-1)), raft.ServerID(r.Bytes())
	if err := r.End(); err != nil {
		return nil, err
	}
	g := n.replicaOf(number)
	if g == nil {
		return nil, fmt.Errorf("%w: group %d is not here", ErrNoLeader, number)
	}
	if gone, err := n.provedGone(ctx, g, id); err != nil || gone {
		return []byte{0}, err
	}
	return []byte{1}, nil
}

// provedGone reports whether a replica is in no configuration, committed or not, of a
// group that this node leads. It proves that this node led the group at a moment after
// the call.
func (n *Node) provedGone(ctx context.Context, g *replica.Replica, id raft.ServerID) (bool, error) {
	term := g.ReadyTerm()
	if err := g.Ready(); err != nil {
		return false, err
	}
	committed, latest := g.CommittedServers(), g.Configuration().Servers
	if committed == nil || replica.Contains(committed, id) || replica.Contains(latest, id) {
		return false, nil
	}
	return true, n.proveTerm(ctx, g, term)
}

// serveTransfer hands the leadership of a group from this node to another.
func (n *Node) serveTransfer(_ context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	number, node := uint32(r.UintTo(1<<32-1)), string(r.Bytes())
	if err := r.End(); err != nil {
		return nil, err
	}
	return nil, n.handOver(number, node)
}
