package shard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm"
)

// Config configures Open. Every field but those that say otherwise must be set.
type Config struct {
	Dir         string // of this node's groups alone
	NodeID      string
	ClusterID   string // 32 hex digits
	Version     string
	ClusterAddr string // where groups listen for each other
	// Listener is of ClusterAddr; nil has Open listen there. Close closes it, and
	// whoever made it when Open fails.
	Listener    net.Listener
	HTTPAddr    string // these two are told in Status
	GossipAddr  string
	Shards      map[string]int // of built-in keyspaces, read when they are first made; may be nil
	Limits      Limits         // zero for LimitsDefault
	MemoryLimit uint64         // bytes past which no new rows are taken; 0 for none
	DiskReserve uint64         // bytes of disk that writes leave free; 0 for none
	Logger      *slog.Logger
	Metrics     prometheus.Registerer
	// Fatal is told, once, why the node may serve no more. It is called in the
	// goroutine that failed, must not call Close, and should end the process.
	Fatal func(error)
}

// LimitsDefault remembers a key for ten minutes, and a producer until it has
// been idle for a day. A key takes some 90 B and a producer some 160 B, for each
// shard that saw it, and a producer that went 50 B.
var LimitsDefault = Limits{
	KeyHorizon:   10 * time.Minute,
	KeysMax:      raftfsm.KeysMaxMax,
	ProducerIdle: 24 * time.Hour,
	ProducersMax: 100_000,
}

// builtin are the keyspaces that every cluster begins with.
var builtin = []raftfsm.Keyspace{
	{Name: "posts", Kind: KindCounters, Columns: []string{"repost", "comment", "like", "view"}, Shards: ShardsDefault},
	{Name: "users", Kind: KindCounters, Columns: []string{"posts", "followers", "following"}, Shards: ShardsDefault},
}

// IsBuiltin reports whether every cluster begins with a keyspace of this name.
func IsBuiltin(name string) bool {
	return slices.ContainsFunc(builtin, func(k raftfsm.Keyspace) bool { return k.Name == name })
}

const (
	catalogGroup = 0 // the number of the group that holds the catalog
	catalogName  = "meta"

	// startTimeout bounds the first election and the making of the built-in
	// keyspaces when a node is opened.
	startTimeout = 30 * time.Second
	// readyPoll is how often WaitReady looks.
	readyPoll = 5 * time.Millisecond
)

// Node is all groups of one process: the catalog and the shards of every
// keyspace.
type Node struct {
	cfg     Config
	mux     *Mux
	meta    *group
	catalog *raftfsm.Catalog
	metrics *stageMetrics

	headroom headroom

	// keyspaces and groups are replaced whole, under changing.
	keyspaces atomic.Pointer[keyspaceTable]
	groups    atomic.Pointer[groupTable]
	changing  sync.Mutex

	draining  atomic.Bool
	fatalOnce sync.Once
}

// groupTable is the node's counter groups.
type groupTable struct {
	all     []*counterGroup
	byFirst map[uint32][]*counterGroup // of one keyspace, by its first group; position is the shard
}

// Open opens the node's groups, making a cluster of one node in an empty
// directory, and returns when the catalog can be read. The groups may not be
// ready to serve: see WaitReady.
func Open(cfg Config) (*Node, error) {
	id, err := hex.DecodeString(cfg.ClusterID)
	if err != nil || len(id) != 16 {
		return nil, fmt.Errorf("cluster id %q is not 32 hex digits", cfg.ClusterID)
	}
	for name, shards := range cfg.Shards {
		if shards < 1 || shards > ShardsMax {
			return nil, fmt.Errorf("shards of keyspace %s: %d is not in 1…%d", name, shards, ShardsMax)
		}
	}
	if cfg.Limits == (Limits{}) {
		cfg.Limits = LimitsDefault
	}
	if err := cfg.Limits.Check(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg}
	n.keyspaces.Store(&keyspaceTable{})
	n.groups.Store(&groupTable{byFirst: map[uint32][]*counterGroup{}})
	if n.metrics, err = newStageMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
	if err := n.registerGauges(); err != nil {
		return nil, err
	}
	n.mux, err = ListenMux(MuxConfig{Addr: cfg.ClusterAddr, Listener: cfg.Listener, ClusterID: [16]byte(id), Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make the groups' directory: %w", err), n.mux.Close())
	}
	if err := n.headroom.watch(&n.cfg); err != nil {
		return nil, errors.Join(err, n.mux.Close())
	}
	if err := n.start(); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		return nil, errors.Join(err, n.Close(ctx))
	}
	return n, nil
}

// start opens the catalog, completes it, and opens the groups that it names.
func (n *Node) start() error {
	n.catalog = raftfsm.NewCatalog()
	var err error
	if n.meta, err = openGroup(n.groupConfig(catalogGroup, catalogName, n.catalog)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := n.waitUntil(ctx, n.meta.ready); err != nil {
		return fmt.Errorf("cannot open the catalog: %w", err)
	}
	if err := n.createBuiltin(ctx); err != nil {
		return err
	}
	return n.follow()
}

// createBuiltin makes the built-in keyspaces that are not there: all of them
// when a cluster is new, the rest when it was stopped on the way.
func (n *Node) createBuiltin(ctx context.Context) error {
	present := map[string]bool{}
	for _, k := range n.catalog.Keyspaces() {
		present[k.Name] = true
	}
	for _, k := range builtin {
		if present[k.Name] {
			continue
		}
		if shards, ok := n.cfg.Shards[k.Name]; ok {
			k.Shards = shards
		}
		if _, err := n.change(ctx, &raftfsm.CatalogCommand{Create: &k}); err != nil {
			return fmt.Errorf("cannot create keyspace %s: %w", k.Name, err)
		}
	}
	return nil
}

func (n *Node) groupConfig(number uint32, keyspace string, fsm groupFSM) groupConfig {
	return groupConfig{
		Dir:       filepath.Join(n.cfg.Dir, fmt.Sprintf("%05d", number)),
		Group:     number,
		NodeID:    n.cfg.NodeID,
		FSM:       fsm,
		Mux:       n.mux,
		Logger:    n.cfg.Logger.With("keyspace", keyspace),
		Fatal:     n.fatal,
		Bootstrap: true,
	}
}

func (n *Node) fatal(err error) { n.fatalOnce.Do(func() { n.cfg.Fatal(err) }) }

// openKeyspace opens the groups of a keyspace, all at once: each waits for its
// disk.
func (n *Node) openKeyspace(k *raftfsm.Keyspace) ([]*counterGroup, error) {
	groups, errs := make([]*counterGroup, k.Shards), make([]error, k.Shards)
	var wg sync.WaitGroup
	for s := range groups {
		wg.Go(func() { groups[s], errs[s] = n.openShard(k, s) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, g := range groups {
			if g != nil {
				errs = append(errs, g.close(context.Background(), false))
			}
		}
		return nil, errors.Join(errs...)
	}
	return groups, nil
}

func (n *Node) openShard(k *raftfsm.Keyspace, shard int) (*counterGroup, error) {
	c := &counterGroup{number: k.FirstGroup + uint32(shard), shard: shard, keyspace: k.Name, fsm: raftfsm.NewCounters()}
	cfg := n.groupConfig(c.number, k.Name, timedFSM{c.fsm, n.metrics})
	var err error
	if c.group, err = openGroup(cfg); err != nil {
		return nil, fmt.Errorf("shard %d of keyspace %s: %w", shard, k.Name, err)
	}
	c.proposer = newProposer(c.group, newLogClock(c.fsm.LogTime, cfg.Logger), n.cfg.Limits, n.metrics, cfg.Logger)
	return c, nil
}

// close answers what waits, then stops the group.
func (g *counterGroup) close(ctx context.Context, snapshot bool) error {
	drained := make(chan struct{})
	go func() { g.proposer.close(); close(drained) }() // ends with the entries in flight
	select {
	case <-drained:
	case <-ctx.Done():
	}
	return g.group.close(ctx, snapshot)
}

// Ready returns nil when every group of this node can serve, and which cannot
// otherwise.
func (n *Node) Ready() error {
	if n.draining.Load() {
		return ErrDraining
	}
	if err := n.meta.ready(); err != nil {
		return fmt.Errorf("group %d (%s): %w", catalogGroup, catalogName, err)
	}
	for _, g := range n.groups.Load().all {
		if err := g.group.ready(); err != nil {
			return fmt.Errorf("group %d (%s): %w", g.number, g.keyspace, err)
		}
	}
	return nil
}

// WaitReady returns nil once Ready does, or the context's error.
func (n *Node) WaitReady(ctx context.Context) error { return n.waitUntil(ctx, n.Ready) }

func (n *Node) waitUntil(ctx context.Context, condition func() error) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil || errors.Is(err, ErrDraining) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// Close refuses further requests, answers those that wait, writes the snapshots
// that are worth it and closes everything. It does not wait past ctx.
func (n *Node) Close(ctx context.Context) error {
	if n.draining.Swap(true) {
		return nil
	}
	n.changing.Lock()
	defer n.changing.Unlock()
	groups := n.groups.Load().all
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = g.close(ctx, true) })
	}
	wg.Wait()
	if n.meta != nil {
		errs = append(errs, n.meta.close(ctx, true))
	}
	n.headroom.close()
	return errors.Join(append(errs, n.mux.Close())...)
}
