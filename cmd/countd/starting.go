package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/countd/countd/api"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// starting is the Backend of the servers until the node is open. With it, /healthz succeeds,
// /readyz states why the node waits, and other requests are refused as if no shard had a leader.
type starting struct {
	api.Backend // nil: the servers call its methods only for a keyspace, and there is none yet
	waiting     atomic.Pointer[func() string]
	node        atomic.Pointer[shard.Node] // nil until the node is open
}

// theStart names what the node waits for during the steps that need no other node.
func theStart() string { return "the start" }

// waitFor sets the function that names what the node waits for.
func (s *starting) waitFor(what func() string) { s.waiting.Store(&what) }

// opened returns the node, or an error until it is open.
func (s *starting) opened() (*shard.Node, error) {
	if n := s.node.Load(); n != nil {
		return n, nil
	}
	return nil, s.Ready()
}

func (s *starting) Ready() error {
	return fmt.Errorf("%w: this node waits for %s", errs.ErrNoLeader, (*s.waiting.Load())())
}

func (s *starting) Status() shard.Status {
	return shard.Status{Nodes: []shard.NodeStatus{}, Groups: []shard.GroupStatus{}}
}

func (s *starting) Keyspaces() []*shard.Keyspace { return nil }

func (s *starting) Keyspace(string) *shard.Keyspace { return nil }

func (s *starting) CatchUp(context.Context) error { return s.Ready() }

// Catalog returns nil: there is no catalog yet.
func (s *starting) Catalog() *catalog.View { return nil }

func (s *starting) ChangeOnAll(context.Context, *catalog.Command) (*catalog.Result, []string, error) {
	return nil, nil, s.Ready()
}

func (s *starting) CreateKeyspace(context.Context, shard.Keyspace) (*shard.Keyspace, error) {
	return nil, s.Ready()
}

func (s *starting) AddColumns(context.Context, string, []column.Column) (*shard.Keyspace, error) {
	return nil, s.Ready()
}

func (s *starting) ChangeSetting(context.Context, string, string, *catalog.Command) (*shard.Keyspace, error) {
	return nil, s.Ready()
}

func (s *starting) DropKeyspace(context.Context, string) (*shard.Keyspace, error) {
	return nil, s.Ready()
}

func (s *starting) DropColumn(context.Context, string, string) (*shard.Keyspace, error) {
	return nil, s.Ready()
}
