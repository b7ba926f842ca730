package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/wire"
)

// catalogClient has the catalog's leader, this node or another, change the catalog, and
// waits until nodes know of a change.
type catalogClient struct {
	cfg       *Config
	registry  *registry
	catalog   *catalog.Catalog
	calls     *rpc.Calls
	prover    *prover.Prover
	diskError func() error // not nil while the disk is full
	follow    func() error // makes the registry that of the catalog
	draining  *atomic.Bool
}

// changeAnswer is what the leader of the catalog answers a command.
type changeAnswer struct {
	Index  uint64
	Result catalog.Result
}

// Change has the catalog's leader, whichever node it is, propose a command, and
// returns its result once it is applied here. It waits for a leader until ctx
// ends. A command whose Refused is set changed nothing.
func (n *Node) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error) {
	result, _, err := n.catalogClient.change(ctx, command)
	return result, err
}

// change is Change, with the command's index in the catalog's log.
func (c *catalogClient) change(ctx context.Context, command *catalog.Command) (*catalog.Result, uint64, error) {
	var answer *changeAnswer
	var err error
	tryUntil(ctx, func() bool {
		answer, err = c.changeOnce(ctx, command)
		return err == nil || !mayTryAgain(err, false) || c.draining.Load()
	})
	if err != nil {
		return nil, 0, err
	}
	return &answer.Result, answer.Index, c.awaitCatalog(ctx, answer.Index, errNotSeen)
}

func (c *catalogClient) changeOnce(ctx context.Context, command *catalog.Command) (*changeAnswer, error) {
	if c.draining.Load() {
		return nil, ErrDraining
	}
	if c.registry.meta.Ready() == nil {
		return c.changeHere(ctx, command)
	}
	leader := c.registry.meta.Leader()
	if leader == "" || leader == c.cfg.NodeKey {
		return nil, ErrNoLeader
	}
	body, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("cannot encode catalog command: %w", err)
	}
	raw, err := c.calls.Call(ctx, leader, methodChange, body)
	if err != nil {
		return nil, fateOfChange(err)
	}
	answer := &changeAnswer{}
	if err := json.Unmarshal(raw, answer); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrBadMessage, err)
	}
	return answer, nil
}

// fateOfChange says of a command whose call failed with err what is known of it.
func fateOfChange(err error) error {
	if errors.Is(err, ErrDiskFull) {
		return err
	}
	return fateOf(err)
}

func (c *catalogClient) serveChange(ctx context.Context, body []byte) ([]byte, error) {
	command := &catalog.Command{}
	if err := json.Unmarshal(body, command); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrBadMessage, err)
	}
	answer, err := c.changeHere(ctx, command)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

// errNotSeen is of a change that has happened: that this node does not see it in
// time must not read as if nothing had been done.
var errNotSeen = fmt.Errorf("%w: it is not applied here yet", ErrOutcomeUnknown)

// awaitCatalog returns once this node's catalog has applied its log up to index,
// or behind, with ctx's error, if it does not until ctx ends.
func (c *catalogClient) awaitCatalog(ctx context.Context, index uint64, behind error) error {
	return waitUntil(ctx, func() error {
		if c.catalog.Applied() < index {
			return behind
		}
		return nil
	})
}

// changeHere proposes a command to the catalog, which this node must lead.
func (c *catalogClient) changeHere(ctx context.Context, command *catalog.Command) (*changeAnswer, error) {
	if c.draining.Load() {
		return nil, ErrDraining
	}
	if err := c.diskError(); err != nil {
		return nil, err
	}
	if err := c.registry.meta.Ready(); err != nil {
		return nil, err
	}
	if k := command.Create; k != nil && k.Replicas == nil {
		k.Replicas = c.place(k.Shards)
	}
	entry, err := catalog.AppendEntry(nil, command)
	if err != nil {
		return nil, err
	}
	type outcome struct {
		answer *changeAnswer
		err    error
	}
	settled := make(chan outcome, 1)
	go func() { // ends with the future, or with the process of a failed group
		future := c.registry.meta.Apply(entry)
		if err := future.Error(); err != nil {
			settled <- outcome{err: err}
			return
		}
		result := future.Response().(*catalog.Result)
		settled <- outcome{answer: &changeAnswer{Index: future.Index(), Result: *result}}
		c.registry.meta.AnnounceCommit()
	}()
	select {
	case o := <-settled:
		switch {
		case o.err == nil:
			return o.answer, nil
		case errs.NeverProposed(o.err):
			return nil, fmt.Errorf("%w: %w", ErrNoLeader, o.err)
		}
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, o.err)
	case <-c.registry.meta.Failed():
		return nil, ErrOutcomeUnknown
	case <-ctx.Done():
		return nil, ErrOutcomeUnknown
	}
}

// place chooses the nodes of a new keyspace's shards.
func (c *catalogClient) place(shards int) [][]string {
	if c.cfg.Place == nil {
		return slices.Repeat([][]string{{c.cfg.NodeKey}}, shards)
	}
	return c.cfg.Place(c.catalog.View(), shards)
}

func (c *catalogClient) mustChange(ctx context.Context, command *catalog.Command) error {
	result, _, err := c.change(ctx, command)
	if err == nil && result.Refused != "" {
		err = fmt.Errorf("%w: %s", errRefused, result.Refused)
	}
	return err
}
