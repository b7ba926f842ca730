package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/wire"
)

// Two nodes that do not reach each other may both reach a third, which then relays the
// parts of writes and reads of one to the other. It calls the other itself, so that a
// call is relayed once at most.

// relayFor returns the node that is to relay what is meant for the leader of a group,
// which this node does not reach, or "" for none. It is one that holds the group, each
// in its turn.
func (n *Node) relayFor(g *shardReplica, leader string) string {
	if g == nil || !n.catalog.View().Relays() || n.cfg.Alive != nil && !n.cfg.Alive(leader) {
		return ""
	}
	holders := n.holders(g.number)
	for range holders {
		node := holders[int(g.guesses.Add(1))%len(holders)]
		if node != n.cfg.NodeKey && node != leader && !n.calls.Doubtful(node) {
			return node
		}
	}
	return ""
}

// serveRelay hands parts of a node's writes to the node that leads their group.
func (n *Node) serveRelay(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	number := uint32(r.UintTo(1<<32 - 1))
	g := n.shardOf(number)
	switch {
	case r.Err != nil:
		return nil, r.Err
	case g == nil:
		return nil, orDropped(n.catalog.View(), number, fmt.Errorf("%w: the group is not known here", ErrNoLeader))
	}
	leader := g.leader()
	switch leader {
	case n.cfg.NodeKey:
		return n.serveParts(ctx, request)
	case "":
		return nil, ErrNoLeader
	}
	led, done := n.whileLed(ctx, g, leader)
	defer done()
	return n.relay(led, leader, methodPropose, request)
}

// sendReadsBy has another node ask for reads that certainly were not sent because of err.
func (n *Node) sendReadsBy(ctx context.Context, node string, reads []*remoteRead, request []byte, err error) ([]byte, error) {
	via := n.relayFor(n.shardOf(reads[0].group), node)
	if via == "" {
		return nil, err
	}
	relayed := wire.AppendBytes(make([]byte, 0, len(node)+len(request)+4), []byte(node))
	return n.calls.Call(ctx, via, methodRelayRead, append(relayed, request...))
}

// serveRelayRead asks a node for the reads of another.
func (n *Node) serveRelayRead(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	node := string(r.Bytes())
	if r.Err != nil {
		return nil, r.Err
	}
	return n.relay(ctx, node, methodRead, r.Rest)
}

// relay calls a node for another one. The error of a call that was not sent promises so
// to that one too; that of one whose answer was lost promises nothing on either way.
func (n *Node) relay(ctx context.Context, node, method string, request []byte) ([]byte, error) {
	answer, err := n.calls.Call(ctx, node, method, request)
	if errors.Is(err, rpc.ErrNotSent) {
		return nil, fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	return answer, err
}
