// Package catalogclient owns a node's access to the catalog. It sends changes to the catalog's
// leader, waits until nodes have applied a change, and keeps the catalog's record of this node and
// the built-in keyspaces up to date.
//
// It never decides what a command means (package catalog does) or where replicas are placed.
//
// Invariant: the client never reports a change that may have happened as one that did not.
package catalogclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// The methods of calls between nodes.
const (
	methodChange = "change" // catalog.Command → changeAnswer
	methodKnow   = "know"   // an index of the catalog's log → nothing, once the node has applied it
)

// ErrRefused is returned if the catalog, as it was when the command was applied, did not allow it.
var ErrRefused = errors.New("the catalog refused the command")

// Config configures a Client. Every field must be set but those that may be nil.
type Config struct {
	Key     string // of this node
	Catalog *catalog.Catalog
	Group   func() *replica.Replica // this node's replica of the catalog's group
	Calls   *rpc.Calls
	Prover  *prover.Prover
	Fresh   *prover.Freshness // of the catalog's replica; New sets its Ask
	// Handlers are the methods that only the catalog's leader answers, by name.
	Handlers map[string]rpc.Handler
	// Place chooses the nodes of a new keyspace's shards; nil places them on this node alone.
	Place     func(view *catalog.View, shards int) [][]string
	Alive     func(node string) bool // whether gossip sees the node; nil for all
	DiskError func() error           // returns an error while the disk is full
	Follow    func() error           // brings the node's keyspaces and groups up to date with the catalog
	Draining  *atomic.Bool           // the node is stopping
}

// Client sends changes to the catalog's leader, this node or another, and waits until nodes have
// applied them.
type Client struct{ cfg Config }

// New returns the client of a node.
func New(cfg Config) *Client {
	c := &Client{cfg: cfg}
	cfg.Fresh.Ask = c.askCatalog
	return c
}

// Handle registers the handlers for calls of other nodes.
func (c *Client) Handle() {
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

// Change makes the catalog's leader propose a command. Once this node has applied it, Change
// returns the result and the index in the catalog's log. It waits for a leader until ctx ends. If
// the result's Refused is set, the command changed nothing.
func (c *Client) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, uint64, error) {
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

func (c *Client) changeOnce(ctx context.Context, command *catalog.Command) (*changeAnswer, error) {
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

// fateOfChange returns the error that tells whether the command of a failed call may have
// happened. A full disk means that it did not.
func fateOfChange(err error) error {
	if errors.Is(err, errs.ErrDiskFull) {
		return err
	}
	return rpc.Fate(err)
}

// errNotSeen is returned if a change happened but this node did not apply it in time. It must not
// read as if nothing had been done.
var errNotSeen = fmt.Errorf("%w: it is not applied here yet", errs.ErrOutcomeUnknown)

// awaitCatalog blocks until this node's catalog has applied its log up to index. If ctx ends first,
// it returns errBehind joined with ctx's error.
func (c *Client) awaitCatalog(ctx context.Context, index uint64, errBehind error) error {
	return errs.WaitFor(ctx, func() error {
		if c.cfg.Catalog.Applied() < index {
			return errBehind
		}
		return nil
	})
}

// changeHere proposes a command to the catalog. This node must lead it.
func (c *Client) changeHere(ctx context.Context, command *catalog.Command) (*changeAnswer, error) {
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
	go func() { // ends with the future; if the group failed, with the process
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
func (c *Client) place(shards int) [][]string {
	if c.cfg.Place == nil {
		return slices.Repeat([][]string{{c.cfg.Key}}, shards)
	}
	return c.cfg.Place(c.cfg.Catalog.View(), shards)
}

// MustChange is Change, but returns ErrRefused if the catalog refused the command.
func (c *Client) MustChange(ctx context.Context, command *catalog.Command) error {
	result, _, err := c.Change(ctx, command)
	if err == nil && result.Refused != "" {
		err = fmt.Errorf("%w: %s", ErrRefused, result.Refused)
	}
	return err
}
