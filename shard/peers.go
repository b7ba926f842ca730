package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/propose"
	"github.com/hashicorp/raft"
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
	standings *lane[standingAsked, standing]
	confirm   *lane[uint32, confirmed]
	reads     *lane[*remoteRead, readAnswer]
	coldReads *lane[*remoteRead, readAnswer] // of rows that are to be read from disk there
}

// peer returns the lanes to a node, which are made when it is first asked.
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
		standings: newLane(laneConfig[standingAsked, standing]{
			Send: n.sendStandings(node), InFlight: askInFlightMax, Items: askQueueMax, CallItems: groupsMax,
		}),
		confirm: newLane(laneConfig[uint32, confirmed]{
			Send: n.sendConfirm(node), InFlight: askInFlightMax, Items: askQueueMax, CallItems: groupsMax,
		}),
		reads: newLane(laneConfig[*remoteRead, readAnswer]{
			Send: n.sendReads(node), InFlight: askInFlightMax, Items: askQueueMax, Bytes: readsQueueBytes,
			CallItems: readsInCallMax, CallBytes: readsInCallBytes,
			Size: (*remoteRead).size,
		}),
		coldReads: newLane(laneConfig[*remoteRead, readAnswer]{
			Send: n.sendReads(node), InFlight: coldAtOnce, Items: askQueueMax, Bytes: readsQueueBytes, CallItems: 1, CallBytes: readsInCallBytes,
			Size: (*remoteRead).size,
		}),
	}
}

// closePeers ends the lanes.
func (n *Node) closePeers() {
	n.peersMu.Lock()
	defer n.peersMu.Unlock()
	for _, p := range n.peers {
		p.standings.close()
		p.confirm.close()
		p.reads.close()
		p.coldReads.close()
	}
	table := n.groups.Load()
	for _, g := range slices.Concat(table.all, table.dropped) {
		g.forward.close()
	}
}

// serveCalls sets what other nodes may ask of this one.
func (n *Node) serveCalls() {
	for method, handle := range n.cfg.Handlers {
		n.calls.handle(method, handle)
	}
	n.calls.handle(methodStanding, n.serveStandings)
	n.calls.handle(methodProbe, n.serveProbes)
	n.calls.handle(methodConfirm, n.serveConfirm)
	n.calls.handle(methodRead, n.serveReads)
	n.calls.handle(methodScan, n.serveScan)
	n.calls.handle(methodPropose, n.serveParts)
	n.calls.handle(methodRelay, n.serveRelay)
	n.calls.handle(methodRelayRead, n.serveRelayRead)
	n.calls.handle(methodProgress, n.serveProgress)
	n.calls.handle(methodReplicas, n.serveReplicaProgress)
	n.calls.handle(methodChange, n.serveChange)
	n.calls.handle(methodTransfer, n.serveTransfer)
	n.calls.handle(methodKnow, n.serveKnow)
	n.calls.handle(methodFacts, n.serveFacts)
	n.calls.handle(methodReport, n.serveReport)
	n.calls.handle(methodColdReport, n.serveColdReport)
	n.calls.handle(methodColdOrder, n.serveColdOrder)
	n.calls.handle(methodRoom, n.serveRoom)
	n.calls.handle(methodMember, n.serveMember)
	n.calls.handle(methodKnown, n.serveKnown)
	n.calls.handle(methodBoard, n.serveBoard)
	n.calls.handleStream(methodSnapshot, n.serveSnapshot)
	n.calls.serve()
}

// behind returns how many entries another replica of a group lacks of what this
// node's log had before the call.
func (n *Node) behind(ctx context.Context, g *group, id raft.ServerID) (uint64, error) {
	last := g.raft.LastIndex()
	node, number := catalog.ParseReplicaID(string(id))
	theirs, err := n.progress(ctx, node, []groupReplica{{g.cfg.Group, number}})
	if err != nil {
		return 0, err
	}
	if inForce := g.configurationInForce(); inForce == nil || theirs[0] < inForce.index {
		return 0, fmt.Errorf("%w: replica %s of group %d", errNotMember, id, g.cfg.Group)
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
		if g != nil && g.cfg.Replica == r.number && !n.isDamaged(r.group) && contains(g.configuration().Servers, g.id()) {
			index = g.raft.AppliedIndex()
		}
		answer = binary.AppendUvarint(answer, index)
	}
	return answer, nil
}

// serveMember answers whether a replica is, or may become again, a member of a group
// that this node leads. A node that is told that its replica is not may delete it, so
// this node must lead the group now, and its answer must be committed.
func (n *Node) serveMember(ctx context.Context, request []byte) ([]byte, error) {
	r := wireReader{rest: request}
	number, id := uint32(r.uintTo(1<<32-1)), raft.ServerID(r.bytes())
	if err := r.end(); err != nil {
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
func (n *Node) provedGone(ctx context.Context, g *group, id raft.ServerID) (bool, error) {
	term := g.readyTerm.Load()
	if err := g.ready(); err != nil {
		return false, err
	}
	committed, latest := g.committedServers(), g.configuration().Servers
	if committed == nil || contains(committed, id) || contains(latest, id) {
		return false, nil
	}
	return true, n.proveTerm(ctx, g, term)
}

// serveTransfer hands the leadership of a group from this node to another.
func (n *Node) serveTransfer(_ context.Context, request []byte) ([]byte, error) {
	r := wireReader{rest: request}
	number, node := uint32(r.uintTo(1<<32-1)), string(r.bytes())
	if err := r.end(); err != nil {
		return nil, err
	}
	return nil, n.handOver(number, node)
}
