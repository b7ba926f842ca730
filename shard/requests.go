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

// This file has what Node answers for all shards, wherever they are.

// Write applies a request, each shard's part of it whole or not at all, and
// fills the answer in w. It goes to whatever node leads a shard, and waits for
// one that does until the deadline. See the errors of this package; a
// PartialError tells the shards apart when they did not fare alike. If the keyspace of a
// write to one was dropped, the error is ErrUnknownKeyspace, whatever its shards answered.
func (n *Node) Write(ks *Keyspace, w *Write) error {
	err := n.writer.apply(ks, w)
	if err != nil && len(w.Spaces) == 0 {
		return n.router.orUnknown(ks, err)
	}
	return err
}

// Get fills rows, width counts an id, with the rows of ids in their order. Rows
// of one shard that are asked for together are each whole; rows of different
// ids may be of different moments. If only some shards could be read, the error is
// a ReadError.
func (n *Node) Get(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	return n.router.orUnknown(ks, n.reader.get(ks, readCounts, ids, width, opt, rows))
}

// Cursors is Get for the cursors of an unread keyspace.
func (n *Node) Cursors(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, rows []int64) error {
	return n.router.orUnknown(ks, n.reader.get(ks, readCursors, ids, width, opt, rows))
}

// Feeds fills into with the feeds of users. Each is whole; they may be of different
// moments.
func (n *Node) Feeds(ks *Keyspace, users []uint64, opt *ReadOptions, into *Feeds) error {
	return n.reader.feeds(ks, users, opt, into)
}

// Board returns the notices and dots that all users share.
func (n *Node) Board(ks *Keyspace, opt *ReadOptions) (*raftfsm.BoardView, error) {
	return n.reader.boardView(ks, opt)
}

// Holds reports whether this node has a replica of each shard of the keyspace. Its replicas
// may still be too far behind to answer a read.
func (n *Node) Holds(ks *Keyspace) bool {
	return !slices.ContainsFunc(n.registry.groups.Load().byFirst[ks.FirstGroup], func(g *shardReplica) bool { return g.replica.Load() == nil })
}

// Scan returns up to limit rows, width counts each, of ids above after (from
// the first id on if hasAfter is false) in ascending order, those with a count
// in these columns only, dropped ones aside. Rows that are written meanwhile may be of different
// moments. With opt.SkipUnreadable it may leave out shards, which it names.
func (n *Node) Scan(ks *Keyspace, after uint64, hasAfter bool, limit, width int, opt *ReadOptions) (*ScanResult, error) {
	r, err := n.reader.scanPage(ks, after, hasAfter, limit, width, opt)
	return r, n.router.orUnknown(ks, err)
}

// Change has the catalog's leader, whichever node it is, propose a command; see
// catalogclient.Client.Change.
func (n *Node) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error) {
	result, _, err := n.catalogClient.Change(ctx, command)
	return result, err
}

// ChangeOnAll is Change that also has the other nodes apply the command, and returns the
// names of those that did not confirm it in time.
func (n *Node) ChangeOnAll(ctx context.Context, command *catalog.Command) (result *catalog.Result, behind []string, err error) {
	return n.catalogClient.ChangeOnAll(ctx, command)
}

// CatchUp returns once this node knows every change of the keyspaces that was acknowledged
// before the call; see catalogclient.Client.CatchUp.
func (n *Node) CatchUp(ctx context.Context) error { return n.catalogClient.CatchUp(ctx) }

// AskCatalogLeader has the node that leads the catalog answer a call of Config.Handlers; see
// catalogclient.Client.AskLeader.
func (n *Node) AskCatalogLeader(ctx context.Context, method string, request []byte) ([]byte, error) {
	return n.catalogClient.AskLeader(ctx, method, request)
}

// AskAll asks every node with a call of Config.Handlers, and returns the answers, by key, of
// those that answer within rpc.AskTimeout. A version of the cluster must promise that all
// nodes know the call.
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
