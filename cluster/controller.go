package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/leadership"
)

const (
	// controlEvery is the interval between two plans. A step that moves data takes many times as
	// long.
	controlEvery = time.Second
	// controlTimeout bounds one round. Each step of a round waits for a commit.
	controlTimeout = 15 * time.Second
)

// ControlledNode is the part of a node that a Controller needs; *shard.Node implements it.
type ControlledNode interface {
	LeadsCatalog() bool
	Catalog() *catalog.View
	LeaderViews(ctx context.Context) map[uint32]leadership.LeaderView
	Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error)
	Transfer(ctx context.Context, group uint32, from, to string) error
}

// Members is the part of gossip that a Controller needs; *Gossip implements it.
type Members interface {
	MemberView
	// Seeds adds addresses at which gossip may find other nodes.
	Seeds(addrs []string)
}

// Controller carries out the steps of Plan while its node leads the catalog. On other nodes it only
// passes the catalog's addresses to gossip, so that a restarted node finds the others. The
// Controller of another node can continue the work, because the steps follow from the catalog and
// the state of the nodes.
//
// StartController starts its goroutine; Close stops it and waits for it.
type Controller struct {
	node     ControlledNode
	view     Members
	settings PlanSettings
	logger   *slog.Logger
	limit    program.LogLimiter
	cancel   context.CancelFunc
	done     chan struct{}
	lost     atomic.Uint64
	seeded   *catalog.View // the catalog whose addresses the method seed passed to gossip; only run uses it

	mu struct { // never held during I/O
		sync.Mutex
		unheard map[string]time.Time // node that gossip has never named → time at which the method dead first missed it
	}
}

// StartController starts the controller of a node.
func StartController(node ControlledNode, view Members, settings PlanSettings, logger *slog.Logger) (*Controller, error) {
	if err := settings.Check(); err != nil {
		return nil, fmt.Errorf("cannot control the cluster: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Controller{
		node: node, view: view, settings: settings, logger: logger,
		cancel: cancel, done: make(chan struct{}),
	}
	c.mu.unheard = map[string]time.Time{}
	go c.run(ctx)
	return c, nil
}

// Close stops the controller. A later controller, here or on another node, continues unfinished
// steps.
func (c *Controller) Close() {
	c.cancel()
	<-c.done
}

func (c *Controller) run(ctx context.Context) {
	defer close(c.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.node.Catalog().Pace(controlEvery)):
		}
		c.seed()
		if !c.node.LeadsCatalog() {
			c.mu.Lock()
			clear(c.mu.unheard)
			c.mu.Unlock()
			continue
		}
		c.round(ctx)
	}
}

// seed passes the addresses of the catalog's nodes to gossip when the catalog has changed.
func (c *Controller) seed() {
	catalog := c.node.Catalog()
	if catalog == c.seeded {
		return
	}
	c.seeded = catalog
	addrs := make([]string, 0, len(catalog.Nodes))
	for _, node := range catalog.Nodes {
		addrs = append(addrs, node.GossipAddr)
	}
	c.view.Seeds(addrs)
}

// round makes a plan and carries out its steps.
func (c *Controller) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	for _, step := range Plan(c.Look(ctx)) {
		c.logger.Info("placement", "step", step.String())
		if err := c.carryOut(ctx, step); err != nil {
			c.limit.Logger(c.logger).Warn("a step of the placement failed and is planned again", "step", step.String(), "err", err)
			continue
		}
		c.noteLost(step)
	}
}

// noteLost counts the node and logs a warning if the step gives up a dead node. The warning is
// necessary because no operator requested the step, and a removed node cannot return.
func (c *Controller) noteLost(step Step) {
	lost, ok := step.(SetNodeState)
	if !ok || lost.State != catalog.NodeLeaving {
		return
	}
	c.lost.Add(1)
	c.logger.Warn("a node was gone for longer than --replace-after and is removed from the cluster for good: its replicas are rebuilt elsewhere, and it can come back only with a new data directory",
		"node", lost.Node, "step", step.String())
}

// Lost returns the number of nodes that this controller has given up because they were dead for
// too long.
func (c *Controller) Lost() uint64 { return c.lost.Load() }

// Look returns the input of the next plan. It is safe for concurrent use.
func (c *Controller) Look(ctx context.Context) View {
	view := View{Catalog: c.node.Catalog(), Settings: c.settings, Groups: c.node.LeaderViews(ctx)}
	view.Dead = c.dead(view.Catalog)
	return view
}

// dead returns, for each node of the catalog that gossip does not see alive, how long the node has
// been dead.
func (c *Controller) dead(known *catalog.View) map[string]time.Duration {
	seen := map[string]Member{}
	for _, m := range c.view.Members() {
		seen[m.Key] = m
	}
	dead := map[string]time.Duration{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range known.Nodes {
		m, heard := seen[key]
		if heard {
			delete(c.mu.unheard, key)
			if !m.Alive {
				dead[key] = time.Since(m.Since)
			}
			continue
		}
		if _, known := c.mu.unheard[key]; !known {
			c.mu.unheard[key] = time.Now()
		}
		dead[key] = time.Since(c.mu.unheard[key])
	}
	return dead
}

func (c *Controller) carryOut(ctx context.Context, step Step) error {
	switch s := step.(type) {
	case Place:
		return c.change(ctx, &catalog.Command{Place: &catalog.PlaceEntry{Group: s.Group, Was: s.Was, Target: s.Target}})
	case Transfer:
		return c.node.Transfer(ctx, s.Group, s.From, s.To)
	case SetNodeState:
		return c.change(ctx, &catalog.Command{SetNodeState: &catalog.SetNodeStateEntry{Key: s.Node, State: s.State}})
	case RemoveNode:
		return c.change(ctx, &catalog.Command{RemoveNode: &catalog.RemoveNodeEntry{Key: s.Node}})
	case RaiseVersion:
		return c.change(ctx, &catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: s.Version}})
	}
	return fmt.Errorf("no such step: %T", step)
}

func (c *Controller) change(ctx context.Context, command *catalog.Command) error {
	result, err := c.node.Change(ctx, command)
	if err == nil && result.Refused != "" {
		err = fmt.Errorf("the catalog refused it: %s", result.Refused)
	}
	return err
}
