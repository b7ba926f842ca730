package catalogclient

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/retry"
)

// TellMax bounds how long a change of the keyspaces waits until other nodes know it. A node that
// is down or cut off learns of it when it returns.
const TellMax = time.Second

// CatchUp blocks until this node has applied every acknowledged change of the keyspaces. Call it
// for a name that this node does not know: another node may just have created it. Concurrent calls
// share one question to the catalog's leader. If no leader proves itself until ctx ends, CatchUp
// returns ErrNoLeader or errs.ErrNoQuorum.
func (c *Client) CatchUp(ctx context.Context) error {
	var err error
	asked := retry.Until(ctx, func() bool {
		var index uint64
		if index, err = c.cfg.Fresh.Confirm(ctx); err == nil {
			err = c.know(ctx, index)
		}
		return err == nil || errors.Is(err, errs.ErrDraining)
	})
	if asked || errors.Is(err, errs.ErrNoQuorum) {
		return err
	}
	return fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
}

// askCatalog is one round of Config.Fresh. It returns the index of a command, not the log's commit
// index: that may belong to a barrier, which no state machine applies.
func (c *Client) askCatalog(ctx context.Context) (index uint64, err error) {
	meta := c.cfg.Group()
	term := meta.ReadyTerm()
	if meta.Ready() != nil {
		return c.cfg.Prover.AskLeader(ctx, meta)
	}
	if err := c.cfg.Prover.ProveTerm(ctx, meta, term); err != nil {
		return 0, err
	}
	// The leader acknowledges a change after it applied it. A new leader is ready after it applied
	// everything committed before. So Applied covers every acknowledged change.
	return c.cfg.Catalog.Applied(), nil
}

// know blocks until this node has followed the catalog's log at least up to index.
func (c *Client) know(ctx context.Context, index uint64) error {
	if err := c.awaitCatalog(ctx, index, errs.ErrBehind); err != nil {
		return err
	}
	return c.cfg.Follow()
}

// Tell waits until the other living nodes know the catalog's log up to index, for at most TellMax.
// A client that created a keyspace may send its next request to any of them. Tell returns the
// names of the nodes that did not confirm; they catch up when they need to.
func (c *Client) Tell(ctx context.Context, index uint64) (behind []string) {
	ctx, cancel := context.WithTimeout(ctx, TellMax)
	defer cancel()
	var told sync.WaitGroup
	var mu sync.Mutex // guards behind
	for key, node := range c.cfg.Catalog.View().Nodes {
		if key == c.cfg.Key {
			continue
		}
		told.Go(func() {
			confirmed := c.cfg.Alive == nil || c.cfg.Alive(key)
			if confirmed {
				_, err := c.cfg.Calls.Call(ctx, key, methodKnow, binary.AppendUvarint(nil, index))
				confirmed = err == nil
			}
			if !confirmed {
				mu.Lock()
				behind = append(behind, node.Name)
				mu.Unlock()
			}
		})
	}
	told.Wait()
	slices.Sort(behind)
	return behind
}

// ChangeOnAll calls Change and then Tell.
func (c *Client) ChangeOnAll(ctx context.Context, command *catalog.Command) (result *catalog.Result, behind []string, err error) {
	result, index, err := c.Change(ctx, command)
	if err != nil {
		return nil, nil, err
	}
	return result, c.Tell(ctx, index), nil
}

func (c *Client) serveKnow(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	index := r.Uint()
	if err := r.End(); err != nil {
		return nil, err
	}
	return nil, c.know(ctx, index)
}
