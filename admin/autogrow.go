package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
)

// autoBounds decides when a keyspace grows by itself.
type autoBounds struct {
	// A shard is large if it has this many rows in memory, or if they take this many bytes. A snapshot
	// of either is written, and sent to another node, in about a minute.
	rows, bytes uint64
	// after is how long a shard must be large, while this node leads the catalog: counts that come and go
	// do not multiply shards for good, and the nodes of a cluster that starts find each other first.
	after time.Duration
	// shardsMax bounds the shards of a keyspace that grows by itself, and replicasMax those of a node.
	shardsMax, replicasMax int
}

var autoBoundsDefault = autoBounds{rows: 50_000_000, bytes: 1 << 30, after: 10 * time.Minute, shardsMax: 27, replicasMax: 64}

const (
	autoEvery = time.Minute // interval of two looks at all shards
	// autoTimeout bounds one look. The order waits for a commit.
	autoTimeout = 30 * time.Second
)

// AutoGrowth makes keyspaces grow without an order while this node leads the catalog. Start starts its
// goroutine; Close stops it and waits for it.
type AutoGrowth struct {
	cluster *Cluster
	fixed   func(keyspace string) bool // whether the settings forbid it
	audit   func(clientadmin.AuditEvent)
	bounds  autoBounds
	large   map[string]time.Time // keyspace with a large shard → time at which this node first saw it so
	said    map[string]string    // keyspace → the last logged reason for which it does not grow
	growths prometheus.Counter
	refused prometheus.Gauge
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// NewAutoGrowth returns the growth without orders of a cluster. The function fixed reports whether the settings
// forbid it for a keyspace. The function audit gets an event for each growth.
func NewAutoGrowth(a *Cluster, fixed func(keyspace string) bool, audit func(clientadmin.AuditEvent), to prometheus.Registerer) (*AutoGrowth, error) {
	g := &AutoGrowth{
		cluster: a, fixed: fixed, audit: audit, bounds: autoBoundsDefault, large: map[string]time.Time{}, said: map[string]string{},
		growths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "countd_auto_growths_total", Help: "Growths of keyspaces that this node began without an order.",
		}),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countd_auto_growths_refused", Help: "Keyspaces that should grow by themselves and cannot, as seen by the node that leads the catalog; 0 on other nodes.",
		}),
	}
	for _, c := range []prometheus.Collector{g.growths, g.refused} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g, nil
}

// Start begins to look at the shards each minute.
func (g *AutoGrowth) Start() {
	g.running.Go(func() {
		for {
			select {
			case <-g.ctx.Done():
				return
			case <-time.After(autoEvery):
				g.look(time.Now())
			}
		}
	})
}

// Close ends a look that is under way. A growth that has begun goes on.
func (g *AutoGrowth) Close() {
	g.cancel()
	g.running.Wait()
}

// look begins at most one growth: they take turns, so that the cluster never settles several at once.
func (g *AutoGrowth) look(now time.Time) {
	n, err := g.cluster.cfg.Node()
	if err != nil || !n.LeadsCatalog() || !n.Catalog().TakesGrowth() {
		clear(g.large)
		clear(g.said)
		g.refused.Set(0)
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, autoTimeout)
	defer cancel()
	view := n.Catalog()
	wanted := g.wanted(view, n.Reports(ctx), now)
	refused := 0
	for _, k := range wanted {
		why, err := g.grow(ctx, n, k.keyspace, k.reason)
		switch {
		case err != nil:
			why = err.Error()
		case why == "":
			g.refused.Set(float64(refused))
			return
		}
		refused++
		if g.said[k.keyspace] != why {
			g.said[k.keyspace] = why
			g.cluster.cfg.Logger.Warn("a keyspace should grow by itself and cannot yet", "keyspace", k.keyspace, "reason", k.reason, "why", why)
		}
	}
	g.refused.Set(float64(refused))
}

// wantedGrowth is a keyspace that should grow.
type wantedGrowth struct{ keyspace, reason string }

// wanted returns the keyspaces with a shard that has been large for long enough, by name. It returns none while a
// keyspace grows.
func (g *AutoGrowth) wanted(view *catalog.View, reports map[string]shard.NodeReport, now time.Time) (all []wantedGrowth) {
	groups, growing := groupViews(view, reports), false
	for _, k := range view.KeyspacesByName() {
		growing = growing || k.Growth != nil
		reason, known := g.reason(&k, groups)
		since, was := g.large[k.Name]
		switch {
		case reason == "" && known:
			delete(g.large, k.Name)
			delete(g.said, k.Name)
		case reason != "" && !was:
			g.large[k.Name] = now
		case reason != "" && now.Sub(since) >= g.bounds.after:
			all = append(all, wantedGrowth{k.Name, reason})
		}
	}
	maps.DeleteFunc(g.large, func(name string, _ time.Time) bool { _, exists := view.Keyspaces[name]; return !exists })
	if growing {
		return nil
	}
	return all
}

// reason returns why a keyspace should have more shards, or "". It returns known if each leader has reported, or
// if the keyspace must not grow by itself.
func (g *AutoGrowth) reason(k *catalog.Keyspace, groups []*groupView) (reason string, known bool) {
	if g.fixed(k.Name) || k.Kind == kinds.Board || GrowDefault*len(k.Groups) > g.bounds.shardsMax {
		return "", true
	}
	known = true
	for s, number := range k.Groups {
		leader := leaderOf(groups, number)
		if leader == nil {
			known = false
			continue
		}
		switch rows := leader.Rows - min(leader.Rows, leader.ColdRows); {
		case rows >= g.bounds.rows:
			return fmt.Sprintf("shard %d has %d rows in memory, the bound is %d", s, rows, g.bounds.rows), true
		case leader.Bytes >= g.bounds.bytes:
			return fmt.Sprintf("the rows of shard %d take %d bytes of memory, the bound is %d", s, leader.Bytes, g.bounds.bytes), true
		}
	}
	return "", known
}

// leaderOf returns the report of a group's leader, or nil.
func leaderOf(groups []*groupView, number uint32) *shard.ReplicaReport {
	g := groupOf(groups, number)
	if g == nil {
		return nil
	}
	return g.replicas[g.leader]
}

// grow begins the growth of a keyspace, or returns why it must wait.
func (g *AutoGrowth) grow(ctx context.Context, n *shard.Node, keyspace, reason string) (why string, err error) {
	if err := n.CatchUp(ctx); err != nil {
		return "", err
	}
	view := n.Catalog()
	k, exists := view.Keyspaces[keyspace]
	if !exists {
		return "the keyspace was dropped", nil
	}
	w := g.cluster.wish(ctx, n, view, &k, GrowDefault)
	w.auto = true
	if all := append(w.refusals(), g.refusals(w)...); len(all) > 0 {
		return strings.Join(all, "; "), nil
	}
	if _, err := g.cluster.grow(ctx, n, w.command(), "without an order: "+reason); err != nil {
		return "", err
	}
	g.growths.Inc()
	delete(g.large, keyspace) // a growth that is withdrawn begins again after bounds.after only
	g.audit(clientadmin.AuditEvent{Time: time.Now(), What: "auto_grow", Target: fmt.Sprintf("%s to %d shards: %s", keyspace, w.to, reason), Outcome: "ok"})
	return "", nil
}

// refusals returns further reasons for which a keyspace must not grow by itself now.
func (g *AutoGrowth) refusals(w *wish) (why []string) {
	view, name := w.catalog, Names(w.catalog)
	if view.VersionHeld {
		why = append(why, "the cluster version is held: nodes are being upgraded")
	}
	versions, replicas, adds := map[string]bool{}, map[string]int{}, map[string]uint64{}
	for _, node := range view.Nodes {
		versions[node.Version] = true
	}
	if len(versions) > 1 {
		why = append(why, "the nodes run different programs: an upgrade is under way")
	}
	for number, p := range view.Groups {
		for _, node := range p.Target {
			replicas[node]++
			if slices.Contains(w.k.Groups, number) {
				replicas[node] += w.to/len(w.k.Groups) - 1
				if leader := leaderOf(w.groups, number); leader != nil {
					adds[node] = max(adds[node], leader.Bytes)
				}
			}
		}
	}
	for _, node := range slices.Sorted(maps.Keys(adds)) {
		if replicas[node] > g.bounds.replicasMax {
			why = append(why, fmt.Sprintf("node %s would have %d replicas, and the most are %d without an order", name[node], replicas[node], g.bounds.replicasMax))
		}
		// A replica that could not prepare copies its rows.
		if m := w.reports[node].Memory; m.HasBytes != 0 && m.NeededBytes+adds[node] > m.HasBytes {
			why = append(why, fmt.Sprintf("node %s needs %d bytes of memory for a copy of a shard, and has %d", name[node], adds[node], m.HasBytes-min(m.HasBytes, m.NeededBytes)))
		}
	}
	return why
}
