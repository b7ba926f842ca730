package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// backend is the node as the HTTP server sees it, which starts before the node does. Until
// there is a node, it answers /healthz, reports at /readyz what the node waits for, and
// refuses other requests like a shard without a leader.
type backend struct {
	node    atomic.Pointer[shard.Node]
	waiting atomic.Pointer[func() string] // what the node waits for, while node is nil
}

// waitFor sets what the node waits for.
func (b *backend) waitFor(what string) { b.waitForWhat(func() string { return what }) }

func (b *backend) waitForWhat(what func() string) { b.waiting.Store(&what) }

func (b *backend) notYet() error {
	return fmt.Errorf("%w: this node waits for %s", shard.ErrNoLeader, (*b.waiting.Load())())
}

// opened returns the node, or an error while there is none.
func (b *backend) opened() (*shard.Node, error) {
	if n := b.node.Load(); n != nil {
		return n, nil
	}
	return nil, b.notYet()
}

func (b *backend) Ready() error {
	if n := b.node.Load(); n != nil {
		return n.Ready()
	}
	return b.notYet()
}

func (b *backend) Status() shard.Status {
	if n := b.node.Load(); n != nil {
		return n.Status()
	}
	return shard.Status{Nodes: []shard.NodeStatus{}, Groups: []shard.GroupStatus{}}
}

func (b *backend) Keyspaces() []*shard.Keyspace {
	if n := b.node.Load(); n != nil {
		return n.Keyspaces()
	}
	return nil
}

func (b *backend) Keyspace(name string) *shard.Keyspace {
	if n := b.node.Load(); n != nil {
		return n.Keyspace(name)
	}
	return nil
}

func (b *backend) CatchUp(ctx context.Context) error {
	if n := b.node.Load(); n != nil {
		return n.CatchUp(ctx)
	}
	return b.notYet()
}

func (b *backend) CreateKeyspace(ctx context.Context, k shard.Keyspace) (*shard.Keyspace, error) {
	if n := b.node.Load(); n != nil {
		return n.CreateKeyspace(ctx, k)
	}
	return nil, b.notYet()
}

func (b *backend) AddColumns(ctx context.Context, name string, columns []string, floors map[string]*int64) (*shard.Keyspace, error) {
	if n := b.node.Load(); n != nil {
		return n.AddColumns(ctx, name, columns, floors)
	}
	return nil, b.notYet()
}

func (b *backend) SetEverywhere(ctx context.Context, name string, everywhere bool) (*shard.Keyspace, error) {
	if n := b.node.Load(); n != nil {
		return n.SetEverywhere(ctx, name, everywhere)
	}
	return nil, b.notYet()
}

func (b *backend) DropKeyspace(ctx context.Context, name string) (*shard.Keyspace, error) {
	if n := b.node.Load(); n != nil {
		return n.DropKeyspace(ctx, name)
	}
	return nil, b.notYet()
}

func (b *backend) DropColumn(ctx context.Context, name, column string) (*shard.Keyspace, error) {
	if n := b.node.Load(); n != nil {
		return n.DropColumn(ctx, name, column)
	}
	return nil, b.notYet()
}

// The calls below have a keyspace, so there is a node.

func (b *backend) Get(ks *shard.Keyspace, ids []uint64, width int, opt *shard.ReadOptions, rows []int64) error {
	return b.node.Load().Get(ks, ids, width, opt, rows)
}

func (b *backend) Write(ks *shard.Keyspace, w *shard.Write) error { return b.node.Load().Write(ks, w) }

func (b *backend) Scan(ks *shard.Keyspace, after uint64, hasAfter bool, limit, width int, opt *shard.ReadOptions) (*shard.ScanResult, error) {
	return b.node.Load().Scan(ks, after, hasAfter, limit, width, opt)
}

func (b *backend) Cursors(ks *shard.Keyspace, users []uint64, width int, opt *shard.ReadOptions, rows []int64) error {
	return b.node.Load().Cursors(ks, users, width, opt, rows)
}

func (b *backend) Feeds(ks *shard.Keyspace, users []uint64, opt *shard.ReadOptions, into *shard.Feeds) error {
	return b.node.Load().Feeds(ks, users, opt, into)
}

func (b *backend) Board(ks *shard.Keyspace, opt *shard.ReadOptions) (*raftfsm.BoardView, error) {
	return b.node.Load().Board(ks, opt)
}
