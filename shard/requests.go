package shard

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm/board"
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

// Get fills rows with the rows of ids, in their order, width counts for each id. Each row is whole;
// rows of different ids may be of different moments. If only some shards could be read, Get returns
// a ReadError.
func (n *Node) Get(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	return n.router.orUnknown(ks, n.reader.get(ks, readCounts, ids, width, opt, rows))
}

// Cursors is Get for the cursors of an unread keyspace.
func (n *Node) Cursors(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	return n.router.orUnknown(ks, n.reader.get(ks, readCursors, ids, width, opt, rows))
}

// Feeds sets dst to the feeds of users. Each feed is whole; different feeds may be of different
// moments.
func (n *Node) Feeds(ks *Keyspace, users []uint64, opt *ReadOptions, dst *Feeds) error {
	return n.reader.feeds(ks, users, opt, dst)
}

// Board returns the board: the notices and dots that all users share.
func (n *Node) Board(ks *Keyspace, opt *ReadOptions) (*board.View, error) {
	return n.reader.boardView(ks, opt)
}

// Holds reports whether this node has a replica of each shard of the keyspace. Its replicas
// may still be too far behind to answer a read.
func (n *Node) Holds(ks *Keyspace) bool {
	return !slices.ContainsFunc(n.registry.groups.Load().byFirst[ks.FirstGroup], func(g *shardReplica) bool { return g.replica.Load() == nil })
}

// Scan returns up to limit rows, with width counts each, in ascending order of ids. It begins above
// afterID, or with the first id if hasAfter is false. Scan returns no row whose only counts are in
// dropped columns. Rows that are written during the scan may be of different moments. With
// opt.SkipUnreadable, Scan may leave out shards, and names them.
func (n *Node) Scan(ks *Keyspace, afterID uint64, hasAfter bool, limit, width int, opt *ReadOptions) (*ScanResult, error) {
	r, err := n.reader.scanPage(ks, afterID, hasAfter, limit, width, opt)
	return r, n.router.orUnknown(ks, err)
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

// Timelines returns the reads of timelines.
func (n *Node) Timelines() Timelines { return &n.reader }

// Members returns the reads of sets of members.
func (n *Node) Members() MemberReads { return &n.reader }
