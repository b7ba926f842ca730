package leadership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// These are the methods of calls between nodes, with their requests → answers.
const (
	methodChange = "change" // catalog.Command → changeAnswer
	methodKnow   = "know"   // index of the catalog's log → nothing; answered once the node has applied it
)

// CatalogConfig configures a CatalogClient. Every field must be set, except those that may be nil.
type CatalogConfig struct {
	Key     string // key of this node
	Catalog *catalog.Catalog
	Group   func() *replica.Replica // this node's replica of the catalog's group
	Calls   *rpc.Calls
	Prover  *Prover
	Fresh   *Freshness // freshness of the catalog's replica; NewCatalogClient sets its Ask
	// Handlers has the methods that only the catalog's leader answers, by name.
	Handlers map[string]rpc.Handler
	// Place chooses the nodes of a new keyspace's shards; nil places them on this node alone.
	Place     func(view *catalog.View, shards int) [][]string
	Alive     func(node string) bool // reports whether a node is alive, according to gossip; nil if all are
	DiskError func() error           // returns an error while the disk is full
	Follow    func() error           // brings the node's keyspaces and groups up to date with the catalog
	Draining  *atomic.Bool           // the node is stopping
}

// CatalogClient reads and changes the catalog through its leader, for one node.
type CatalogClient struct{ cfg CatalogConfig }

// NewCatalogClient returns the CatalogClient of a node.
func NewCatalogClient(cfg CatalogConfig) *CatalogClient {
	c := &CatalogClient{cfg: cfg}
	cfg.Fresh.Ask = c.askCatalog
	return c
}

// Handle registers the handlers for calls of other nodes.
func (c *CatalogClient) Handle() {
	c.cfg.Calls.Handle(methodChange, rpc.JSON(func(ctx context.Context, command catalog.Command) (*changeAnswer, error) {
		return c.changeHere(ctx, &command)
	}))
	c.cfg.Calls.Handle(methodKnow, rpc.JSON(c.know))
}

// changeAnswer is the leader's answer to a command.
type changeAnswer struct {
	Index  uint64
	Result catalog.Result
}

// Change makes the catalog's leader propose a command. When this node has applied the command,
// Change returns the result and the command's index in the catalog's log. Change waits for a leader
// until ctx ends. If the result's Refused is set, the command changed nothing.
func (c *CatalogClient) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, uint64, error) {
	var answer *changeAnswer
	var err error
	errs.RetryUntil(ctx, func() bool {
		answer, err = c.changeOnce(ctx, command)
		mayTryAgain := (errors.Is(err, errs.ErrNoLeader) || errors.Is(err, errs.ErrDraining)) && !errors.Is(err, errs.ErrOutcomeUnknown)
		return err == nil || !mayTryAgain || c.cfg.Draining.Load()
	})
	if err != nil {
		return nil, 0, err
	}
	return &answer.Result, answer.Index, c.awaitCatalog(ctx, answer.Index, errNotSeen)
}

func (c *CatalogClient) changeOnce(ctx context.Context, command *catalog.Command) (*changeAnswer, error) {
	leader, err := c.leader()
	if err != nil {
		return nil, err
	}
	if leader == c.cfg.Key {
		return c.changeHere(ctx, command)
	}
	answer, err := rpc.CallJSON[changeAnswer](ctx, c.cfg.Calls, leader, methodChange, command)
	if err != nil {
		return nil, fateOfChange(err)
	}
	return &answer, nil
}

// fateOfChange returns the error of Change for a failed call. The error shows whether the command
// was not applied, for example because of a full disk, or has an unknown outcome.
func fateOfChange(err error) error {
	if errors.Is(err, errs.ErrDiskFull) {
		return err
	}
	return rpc.Fate(err)
}

// errNotSeen is returned if a change was applied, but this node did not apply it in time. It wraps
// ErrOutcomeUnknown, so that the change does not count as failed.
var errNotSeen = fmt.Errorf("%w: it is not applied here yet", errs.ErrOutcomeUnknown)

// awaitCatalog blocks until this node's catalog has applied its log up to index. If ctx ends first,
// it returns ctx's error joined with the argument errBehind.
func (c *CatalogClient) awaitCatalog(ctx context.Context, index uint64, errBehind error) error {
	return errs.WaitFor(ctx, func() error {
		if c.cfg.Catalog.Applied() < index {
			return errBehind
		}
		return nil
	})
}

// changeHere proposes a command to the catalog, which this node must lead.
func (c *CatalogClient) changeHere(ctx context.Context, command *catalog.Command) (*changeAnswer, error) {
	if c.cfg.Draining.Load() {
		return nil, errs.ErrDraining
	}
	if err := c.cfg.DiskError(); err != nil {
		return nil, err
	}
	if err := c.cfg.Group().Ready(); err != nil {
		return nil, err
	}
	if k := command.Create; k != nil && k.Replicas == nil {
		k.Replicas = c.place(k.Shards())
	}
	switch at := time.Now().Unix(); {
	case command.Grow != nil:
		command.Grow.At = at
	case command.CommitSplit != nil:
		command.CommitSplit.At = at
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
	go func() { // ends when the future is answered; if the group has failed, that may be never
		future := c.cfg.Group().Apply(entry)
		if err := future.Error(); err != nil {
			settled <- outcome{err: err}
			return
		}
		result := future.Response().(*catalog.Result)
		settled <- outcome{answer: &changeAnswer{Index: future.Index(), Result: *result}}
		c.cfg.Group().AnnounceCommit()
	}()
	select {
	case o := <-settled:
		switch {
		case o.err == nil:
			return o.answer, nil
		case errs.NeverProposed(o.err):
			return nil, fmt.Errorf("%w: %w", errs.ErrNoLeader, o.err)
		}
		return nil, fmt.Errorf("%w: %w", errs.ErrOutcomeUnknown, o.err)
	case <-c.cfg.Group().Failed():
		return nil, errs.ErrOutcomeUnknown
	case <-ctx.Done():
		return nil, errs.ErrOutcomeUnknown
	}
}

// place chooses the nodes of a new keyspace's shards.
func (c *CatalogClient) place(shards int) [][]string {
	if c.cfg.Place == nil {
		return slices.Repeat([][]string{{c.cfg.Key}}, shards)
	}
	return c.cfg.Place(c.cfg.Catalog.View(), shards)
}

// MarkExec marks a keyspace before an EXEC of several ids, unless it is marked already. In a cluster
// version without growth it does nothing. Its errors promise only that the caller has not written yet.
func (c *CatalogClient) MarkExec(keyspace string, first uint32, deadline time.Time) error {
	if view := c.cfg.Catalog.View(); !view.TakesGrowth() || view.Keyspaces[keyspace].Exec {
		return nil
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := c.MustChange(ctx, &catalog.Command{MarkExec: &catalog.MarkExecEntry{Keyspace: keyspace, FirstGroup: first}})
	if err != nil {
		return fmt.Errorf("%w: keyspace %s is not marked for EXEC: %v", errs.ErrNoLeader, keyspace, err.Error())
	}
	return nil
}

// MustChange calls Change. It returns ErrRefused if the catalog refused the command.
func (c *CatalogClient) MustChange(ctx context.Context, command *catalog.Command) error {
	result, _, err := c.Change(ctx, command)
	if err == nil && result.Refused != "" {
		err = fmt.Errorf("%w: %s", errs.ErrRefused, result.Refused)
	}
	return err
}
