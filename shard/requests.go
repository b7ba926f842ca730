package shard

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/rpc"
)

// This file has the requests that Node answers for all shards, on whichever node they are.

// Write applies a request and fills the answer in w. It applies each shard's part whole or not at
// all, on the node that leads the shard, and waits for a leader until the deadline. See the
// errors of this package. A PartialError has the outcome of each op if the shards differ. If
// the only keyspace of the write was dropped, Write returns ErrUnknownKeyspace, whatever the shards
// answered.
func (n *Node) Write(ks *Keyspace, w *Write) error {
	err := n.writer.apply(ks, w)
	if err != nil && len(w.Spaces) == 0 {
		return n.router.orUnknown(ks, err)
	}
	return err
}

// Read answers a query of some ids, or of none if the query needs none. All of a shard's answer is of one
// moment, unless the query says otherwise; the answers of different shards may be of different moments. If
// only some shards could be read, Read returns a ReadError, or nil if the query names the others itself.
func (n *Node) Read(ks *Keyspace, q raftfsm.Query, ids []uint64, opt *ReadOptions) error {
	return n.router.orUnknown(ks, n.reader.read(ks, q, ids, opt))
}

// Holds reports whether this node has a replica of each shard of the keyspace. Its replicas
// may still be too far behind to answer a read.
func (n *Node) Holds(ks *Keyspace) bool {
	return !slices.ContainsFunc(n.registry.groups.Load().byFirst[ks.FirstGroup], func(g *shardReplica) bool { return g.replica.Load() == nil })
}

// Change sends a command to the catalog's leader; see catalogclient.Client.Change.
func (n *Node) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error) {
	result, _, err := n.catalogClient.Change(ctx, command)
	return result, err
}

// ChangeOnAll calls Change and then waits until the other nodes have applied the command. It returns
// the names of the nodes that did not confirm in time.
func (n *Node) ChangeOnAll(ctx context.Context, command *catalog.Command) (result *catalog.Result, behind []string, err error) {
	return n.catalogClient.ChangeOnAll(ctx, command)
}

// CatchUp blocks until this node knows every change of the keyspaces that was acknowledged before the
// call; see catalogclient.Client.CatchUp.
func (n *Node) CatchUp(ctx context.Context) error { return n.catalogClient.CatchUp(ctx) }

// AskCatalogLeader calls a method of Config.Handlers on the node that leads the catalog; see
// catalogclient.Client.AskLeader.
func (n *Node) AskCatalogLeader(ctx context.Context, method string, request []byte) ([]byte, error) {
	return n.catalogClient.AskLeader(ctx, method, request)
}

// AskAll calls a method of Config.Handlers on every node. It returns, by node key, the answers that
// arrive within rpc.AskTimeout. The cluster version must ensure that all nodes know the method.
func (n *Node) AskAll(ctx context.Context, method string, request []byte) map[string][]byte {
	return rpc.AskAll(ctx, maps.Keys(n.catalog.View().Nodes), func(ctx context.Context, node string) ([]byte, error) {
		if node != n.cfg.NodeKey {
			return n.calls.Call(ctx, node, method, request)
		}
		if handle := n.cfg.Handlers[method]; handle != nil {
			return handle(ctx, request)
		}
		return nil, fmt.Errorf("%w: %s", rpc.ErrNoMethod, method)
	})
}
