package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/wire"
)

// tellMax bounds how long a change of the keyspaces waits for other nodes to know
// of it. One that is stopped or cut off learns of it when it is back.
const tellMax = time.Second

// CatchUp returns once this node knows every change of the keyspaces that was
// acknowledged before the call. It is for a name that this node does not know:
// another node may have made it just now. Calls at the same time share a question
// to the catalog's leader. ErrNoLeader or ErrNoQuorum is returned if none proves
// that it leads until ctx ends.
func (n *Node) CatchUp(ctx context.Context) error {
	var err error
	asked := tryUntil(ctx, func() bool {
		var index uint64
		if index, err = n.metaFresh.Confirm(ctx); err == nil {
			err = n.catalogClient.know(ctx, index)
		}
		return err == nil || errors.Is(err, ErrDraining)
	})
	if asked || errors.Is(err, ErrNoQuorum) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNoLeader, err)
}

// askCatalog is one round of metaFresh. The index that it returns is that of a
// command: the log's commit index may be that of a barrier, which no state machine
// sees.
func (c *catalogClient) askCatalog(ctx context.Context) (index uint64, err error) {
	term := c.registry.meta.ReadyTerm()
	if c.registry.meta.Ready() != nil {
		return c.prover.AskLeader(ctx, c.registry.meta)
	}
	if err := c.prover.ProveTerm(ctx, c.registry.meta, term); err != nil {
		return 0, err
	}
	// A change is acknowledged when the leader has applied it, and a new leader
	// is ready when it has applied all that was committed before.
	return c.catalog.Applied(), nil
}

// know returns once this node's keyspaces are those of the catalog's log up to
// index, or later ones.
func (c *catalogClient) know(ctx context.Context, index uint64) error {
	if err := c.awaitCatalog(ctx, index, errs.ErrBehind); err != nil {
		return err
	}
	return c.follow()
}

// tell returns once the other nodes that seem to be there know the catalog's log
// up to index, or after tellMax: whoever made a keyspace may ask any of them for
// it next.
func (c *catalogClient) tell(ctx context.Context, index uint64) {
	ctx, cancel := context.WithTimeout(ctx, tellMax)
	defer cancel()
	var told sync.WaitGroup
	for key := range c.catalog.View().Nodes {
		if key == c.cfg.NodeKey || c.cfg.Alive != nil && !c.cfg.Alive(key) {
			continue
		}
		told.Go(func() {
			// An error is of a node that asks for itself when it needs to.
			_, _ = c.calls.Call(ctx, key, methodKnow, binary.AppendUvarint(nil, index))
		})
	}
	told.Wait()
}

func (c *catalogClient) serveKnow(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	index := r.Uint()
	if err := r.End(); err != nil {
		return nil, err
	}
	return nil, c.know(ctx, index)
}
