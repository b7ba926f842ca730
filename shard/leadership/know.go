package leadership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// CatchUp blocks until this node has applied every acknowledged change of the keyspaces. Call it if
// this node does not know the name of a keyspace, because another node may have just created that
// keyspace. Concurrent calls share one question to the catalog's leader. If no node proves its
// leadership until ctx ends, CatchUp returns ErrNoLeader or errs.ErrNoQuorum.
func (c *CatalogClient) CatchUp(ctx context.Context) error { return c.catchUp(ctx, c.know) }

// CatchUpView is CatchUp for the catalog alone. It takes no lock and opens no replica, so ctx bounds it.
func (c *CatalogClient) CatchUpView(ctx context.Context) error {
	return c.catchUp(ctx, func(ctx context.Context, index uint64) (rpc.None, error) {
		return rpc.None{}, c.awaitCatalog(ctx, index, errs.ErrBehind)
	})
}

// catchUp calls know with an index of the catalog's log that covers every acknowledged change.
func (c *CatalogClient) catchUp(ctx context.Context, know func(context.Context, uint64) (rpc.None, error)) error {
	var err error
	asked := errs.RetryUntil(ctx, func() bool {
		var index uint64
		if index, err = c.cfg.Fresh.Confirm(ctx); err == nil {
			_, err = know(ctx, index)
		}
		return err == nil || errors.Is(err, errs.ErrDraining)
	})
	if asked || errors.Is(err, errs.ErrNoQuorum) {
		return err
	}
	return fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
}

// askCatalog runs one round of CatalogConfig.Fresh. On the leader it returns the applied index, not
// the commit index: the entry at the commit index may be a barrier, which no state machine applies.
func (c *CatalogClient) askCatalog(ctx context.Context) (index uint64, err error) {
	meta := c.cfg.Group()
	term := meta.ReadyTerm()
	if meta.Ready() != nil {
		return c.cfg.Prover.AskLeader(ctx, meta)
	}
	if err := c.cfg.Prover.ProveTerm(ctx, meta, term); err != nil {
		return 0, err
	}
	// The leader applies a change before it acknowledges the change. A new leader becomes ready
	// only after it has applied everything committed. So Applied covers every acknowledged change.
	return c.cfg.Catalog.Applied(), nil
}

// know answers methodKnow.
func (c *CatalogClient) know(ctx context.Context, index uint64) (rpc.None, error) {
	if err := c.awaitCatalog(ctx, index, errs.ErrBehind); err != nil {
		return rpc.None{}, err
	}
	return rpc.None{}, c.cfg.Follow()
}

// Tell waits, at most for rpc.AskTimeout, until the other living nodes have applied the catalog's
// log up to index. A client that created a keyspace, for example, may send its next request to any
// node. Tell returns the names of the nodes that did not confirm in time and will apply the change
// later.
func (c *CatalogClient) Tell(ctx context.Context, index uint64) (behind []string) {
	nodes := maps.Clone(c.cfg.Catalog.View().Nodes)
	delete(nodes, c.cfg.Key)
	confirmed := rpc.AskAll(ctx, maps.Keys(nodes), func(ctx context.Context, node string) (rpc.None, error) {
		if c.cfg.Alive != nil && !c.cfg.Alive(node) {
			return rpc.None{}, rpc.ErrNotSent
		}
		return rpc.CallJSON[rpc.None](ctx, c.cfg.Calls, node, methodKnow, index)
	})
	for key, node := range nodes {
		if _, ok := confirmed[key]; !ok {
			behind = append(behind, node.Name)
		}
	}
	slices.Sort(behind)
	return behind
}

// ChangeOnAll calls Change and then Tell.
func (c *CatalogClient) ChangeOnAll(ctx context.Context, command *catalog.Command) (result *catalog.Result, behind []string, err error) {
	result, index, err := c.Change(ctx, command)
	if err != nil {
		return nil, nil, err
	}
	return result, c.Tell(ctx, index), nil
}
