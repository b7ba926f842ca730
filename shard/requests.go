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

// This file has the requests that Node answers for all shards, including shards that only other
// nodes hold.

// Write applies a request and fills the answer in w. Each shard's leader applies the shard's part
// completely or not at all; Write waits for a leader until the deadline. Package errs
// lists the errors. If the outcomes of shards differ, the error is a PartialError with the outcome
// of each op. If the write has only one keyspace and that was dropped, Write returns
// ErrUnknownKeyspace, even if shards have answered otherwise.
func (n *Node) Write(ks *Keyspace, w *Write) error {
	var err error
	if slices.ContainsFunc(w.Whole, w.severalIDs) {
		err = n.catalogClient.MarkExec(ks.Name, ks.FirstGroup, w.Deadline)
	}
	if err == nil {
		err = n.writer.apply(ks, w)
	}
	if err == nil && !w.Repeated {
		n.opsWritten.Add(uint64(w.len()))
	}
	if err != nil && len(w.Spaces) == 0 {
		return n.router.orUnknown(ks, err)
	}
	return err
}

// Read runs a query for ids; some queries need no ids. Unless the query documents otherwise, the
// answer of one shard shows one moment. Answers of different shards may show different moments. If
// some shards could not be read, Read returns a ReadError. It returns nil instead if the query
// itself reports unreadable shards.
func (n *Node) Read(ks *Keyspace, q raftfsm.Query, ids []uint64, opt *ReadOptions) error {
	err := n.reader.read(ks, q, ids, opt)
	if err == nil {
		n.idsRead.Add(uint64(max(len(ids), 1)))
	}
	return n.router.orUnknown(ks, err)
}

// Holds reports whether this node has a replica of each shard of the keyspace. These replicas may
// still be too far behind to answer a read.
func (n *Node) Holds(ks *Keyspace) bool {
	shards := n.registry.groups.Load().byFirst[ks.FirstGroup]
	return shards != nil && !slices.ContainsFunc(shards.all, func(g *shardReplica) bool { return g != nil && g.replica.Load() == nil })
}

// Change sends a command to the catalog's leader; see leadership.CatalogClient.Change.
func (n *Node) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error) {
	result, _, err := n.catalogClient.Change(ctx, command)
	return result, err
}

// ChangeOnAll calls Change, and then waits until the other living nodes have applied the command.
// It returns the names of the nodes that did not confirm in time.
func (n *Node) ChangeOnAll(ctx context.Context, command *catalog.Command) (result *catalog.Result, behind []string, err error) {
	return n.catalogClient.ChangeOnAll(ctx, command)
}

// Tell waits until the other living nodes have applied as much of the catalog's log as this node;
// see leadership.CatalogClient.Tell.
func (n *Node) Tell(ctx context.Context) { n.catalogClient.Tell(ctx, n.catalog.Applied()) }

// CatchUp blocks until this node knows every change of the keyspaces that was acknowledged before the
// call; see leadership.CatalogClient.CatchUp.
func (n *Node) CatchUp(ctx context.Context) error { return n.catalogClient.CatchUp(ctx) }

// AskCatalogLeader calls a method of Config.Handlers on the node that leads the catalog; see
// leadership.CatalogClient.AskLeader.
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

// Stream calls a method of Config.Streams on another node; see rpc.Calls.Stream.
func (n *Node) Stream(ctx context.Context, node, method string, request []byte) (*rpc.Stream, error) {
	return n.calls.Stream(ctx, node, method, request)
}

// ClusterHash returns the hash of the cluster's id, which is a part of the numbers of sources.
func (n *Node) ClusterHash() uint32 { return n.router.clusterHash }

// Stopping reports whether Close was called.
func (n *Node) Stopping() bool { return n.draining.Load() }
