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
	"github.com/countd/countd/shard/tiering"
)

// autoBounds decides when a keyspace grows by itself.
type autoBounds struct {
	// A shard is large if it has this many rows in memory, or if they take this many bytes. A snapshot
	// of either is written, and sent to another node, in about a minute.
	rows, bytes uint64
	// A shard is busy if its leader applies entries for this share of the time, for busyFor. One goroutine applies
	// the entries of a shard, so 1 is the most that a shard can do. The hottest post stays in one shard, so
	// load alone makes no more than busyShardsMax shards.
	busy          float64
	busyFor       time.Duration
	busyShardsMax int
	// after is how long a shard must be large or busy, while this node leads the catalog: rows that come and go
	// do not multiply shards for good, and the nodes of a cluster that starts find each other first.
	// Each withdrawal makes it autoPatience times longer, up to afterMax.
	after, afterMax time.Duration
	// withdraw is the time after which a growth without a split ends, because backups and restores wait.
	withdraw time.Duration
	// shardsMax bounds the shards of a keyspace that grows by itself, and replicasMax those of a node.
	shardsMax, replicasMax int
}

var autoBoundsDefault = autoBounds{rows: 50_000_000, bytes: 1 << 30, busy: 0.6, busyFor: 20 * time.Minute, busyShardsMax: 9, after: 10 * time.Minute, afterMax: 24 * time.Hour, withdraw: 15 * time.Minute, shardsMax: 27, replicasMax: 64}

const (
	autoEvery = time.Minute // interval of two looks at all shards
	// autoTimeout bounds one look. The order waits for a commit.
	autoTimeout = 30 * time.Second
	// autoCountTimeout bounds the reading of rows that shows whether a growth would divide them.
	autoCountTimeout = 5 * time.Second
	// autoPatience is the factor by which the next wait is longer after a withdrawal.
	autoPatience = 6
	// autoSkewMax is the multiple of its even share that the largest new shard may have.
	autoSkewMax = 2
	// autoSayEvery is how often the log repeats why a keyspace does not grow.
	autoSayEvery = time.Hour
)

// autoState is what this node has seen of a keyspace since it leads the catalog.
type autoState struct {
	large  time.Time     // when it first saw a large or busy shard; zero for none
	grows  time.Time     // when it first saw the present growth without an order; zero for none
	shards int           // number of shards when that growth began
	after  time.Duration // how long a shard must be large or busy
	said   time.Time     // when it last logged why the keyspace does not grow
}

// busyState is what this node has seen of the load of a shard's leader.
type busyState struct {
	node, life string  // the leader, and the run of its process
	seconds    float64 // ReplicaReport.ApplySeconds
	at         time.Time
	since      time.Time // since when it has been busy; zero if it is not
	share      float64   // of the time between the last two looks
}

// AutoGrowth makes keyspaces grow without an order while this node leads the catalog. Start starts its
// goroutine; Close stops it and waits for it.
type AutoGrowth struct {
	cluster *Cluster
	fixed   func(keyspace string) bool // whether the settings forbid it
	audit   func(clientadmin.AuditEvent)
	bounds  autoBounds
	of      map[uint32]*autoState // by the first group of the keyspace, because names return
	load    map[uint32]busyState  // by group
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
		cluster: a, fixed: fixed, audit: audit, bounds: autoBoundsDefault, of: map[uint32]*autoState{}, load: map[uint32]busyState{},
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

// Close ends a look that is under way; it implements a step of a stop. A growth that has begun goes on. A look
// that waits for a hung state machine does not end.
func (g *AutoGrowth) Close(context.Context) error {
	g.cancel()
	g.running.Wait()
	return nil
}

// look begins at most one growth: they take turns, so that the cluster never settles several at once.
func (g *AutoGrowth) look(now time.Time) {
	n, err := g.cluster.cfg.Node()
	if err != nil || !n.LeadsCatalog() || !n.Catalog().TakesGrowth() {
		clear(g.of)
		clear(g.load)
		g.refused.Set(0)
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, autoTimeout)
	defer cancel()
	view, refused, began := n.Catalog(), 0, false
	for _, k := range g.wanted(view, n.Reports(ctx), now) {
		if k.withdraw {
			refused++
			g.say(k, now, g.withdraw(ctx, n, k))
			continue
		}
		if began {
			continue
		}
		why, err := g.grow(ctx, n, k)
		switch {
		case err != nil && g.ctx.Err() != nil:
			return
		case err != nil:
			why = err.Error()
		}
		if began = why == ""; !began {
			refused++
			g.say(k, now, why)
		}
	}
	g.refused.Set(float64(refused))
}

// say logs why a keyspace does not grow, unless it did so within autoSayEvery.
func (g *AutoGrowth) say(k wantedGrowth, now time.Time, why string) {
	if s := g.of[k.keyspace.FirstGroup()]; now.Sub(s.said) >= autoSayEvery {
		s.said = now
		g.cluster.cfg.Logger.Warn("a keyspace should grow by itself and cannot yet", "keyspace", k.keyspace.Name, "reason", k.reason, "why", why)
	}
}

// wantedGrowth is a keyspace that should grow, or whose growth should end before its first split.
type wantedGrowth struct {
	keyspace catalog.Keyspace
	reason   string
	withdraw bool
}

// wanted returns the keyspaces with a shard that has been large for long enough, by name. While a keyspace grows,
// it returns none of them, but that keyspace if its growth should be withdrawn.
func (g *AutoGrowth) wanted(view *catalog.View, reports map[string]shard.NodeReport, now time.Time) (all []wantedGrowth) {
	groups, growing := groupViews(view, reports), false
	g.weigh(groups, reports, now)
	known := map[uint32]bool{}
	for _, k := range view.KeyspacesByName() {
		s := g.of[k.FirstGroup()]
		if s == nil {
			s = &autoState{after: g.bounds.after}
			g.of[k.FirstGroup()] = s
		}
		known[k.FirstGroup()] = true
		if k.Growth != nil {
			growing, s.large = true, time.Time{}
			for _, number := range k.Groups { // each shard has another load afterwards
				delete(g.load, number)
			}
			if k.Growth.Auto && s.grows.IsZero() {
				s.grows, s.shards = now, len(k.Groups)
			}
			if k.Growth.Auto && len(k.Growth.Attempts) == 0 && now.Sub(s.grows) >= g.bounds.withdraw {
				all = append(all, wantedGrowth{k, "its growth did not split a shard in time", true})
			}
			continue
		}
		if !s.grows.IsZero() {
			after := g.bounds.after
			if s.shards == len(k.Groups) { // it was withdrawn, here or by an operator
				after = min(autoPatience*s.after, g.bounds.afterMax)
			}
			s.after, s.grows = after, time.Time{}
		}
		reason, sure := g.reason(&k, groups, now)
		switch {
		case reason == "" && sure:
			s.large, s.said = time.Time{}, time.Time{}
		case reason != "" && s.large.IsZero():
			s.large = now
		case reason != "" && now.Sub(s.large) >= s.after:
			all = append(all, wantedGrowth{keyspace: k, reason: reason})
		}
	}
	maps.DeleteFunc(g.of, func(first uint32, _ *autoState) bool { return !known[first] })
	if growing {
		all = slices.DeleteFunc(all, func(k wantedGrowth) bool { return !k.withdraw })
	}
	return all
}

// withdraw ends a growth, and returns what to log.
func (g *AutoGrowth) withdraw(ctx context.Context, n *shard.Node, k wantedGrowth) string {
	if _, err := g.cluster.grow(ctx, n, growCommand(&k.keyspace, len(k.keyspace.Groups)), ""); err != nil {
		return err.Error()
	}
	g.audit(clientadmin.AuditEvent{Time: time.Now(), What: "auto_grow_withdrawn", Target: k.keyspace.Name, Outcome: "ok"})
	return "the leaders of its shards log the reason; the growth was withdrawn"
}

// weigh notes for how much of the time since the last look the leader of each shard has applied entries. A leader
// that does not answer stays as it was.
func (g *AutoGrowth) weigh(groups []*groupView, reports map[string]shard.NodeReport, now time.Time) {
	for _, v := range groups {
		leader := v.replicas[v.leader]
		if leader == nil {
			continue
		}
		s := busyState{node: v.leader, life: reports[v.leader].Life, seconds: leader.ApplySeconds, at: now}
		if was, seen := g.load[v.number]; seen && was.node == s.node && was.life == s.life && was.seconds <= s.seconds && was.at.Before(now) {
			if s.share = (s.seconds - was.seconds) / now.Sub(was.at).Seconds(); s.share >= g.bounds.busy {
				if s.since = was.since; s.since.IsZero() {
					s.since = was.at
				}
			}
		}
		g.load[v.number] = s
	}
	maps.DeleteFunc(g.load, func(number uint32, _ busyState) bool {
		return !slices.ContainsFunc(groups, func(v *groupView) bool { return v.number == number })
	})
}

// reason returns why a keyspace should have more shards, or "". It returns known if each leader has reported, or
// if the keyspace must not grow by itself.
func (g *AutoGrowth) reason(k *catalog.Keyspace, groups []*groupView, now time.Time) (reason string, known bool) {
	if g.fixed(k.Name) || kinds.All.Traits(k.Kind).Undivided || GrowDefault*len(k.Groups) > g.bounds.shardsMax {
		return "", true
	}
	known = true
	for s, number := range k.Groups {
		leader := leaderOf(groups, number)
		if leader == nil {
			known = false
			continue
		}
		load, mayBusy := g.load[number], GrowDefault*len(k.Groups) <= g.bounds.busyShardsMax
		switch rows := leader.Rows - min(leader.Rows, leader.ColdRows); {
		case rows >= g.bounds.rows:
			return fmt.Sprintf("shard %d has %d rows in memory, the bound is %d", s, rows, g.bounds.rows), true
		case leader.Bytes >= g.bounds.bytes:
			return fmt.Sprintf("the rows of shard %d take %d bytes of memory, the bound is %d", s, leader.Bytes, g.bounds.bytes), true
		case mayBusy && !load.since.IsZero() && now.Sub(load.since) >= g.bounds.busyFor:
			return fmt.Sprintf("the leader of shard %d applied entries for %.0f %% of the time, the bound is %.0f %%", s, 100*load.share, 100*g.bounds.busy), true
		}
	}
	return "", known
}

// grow begins the growth of a keyspace, or returns why it must wait.
func (g *AutoGrowth) grow(ctx context.Context, n *shard.Node, of wantedGrowth) (why string, err error) {
	if err := n.CatchUp(ctx); err != nil {
		return "", err
	}
	view := n.Catalog()
	k, exists := view.Keyspaces[of.keyspace.Name]
	if !exists || k.FirstGroup() != of.keyspace.FirstGroup() {
		return "the keyspace was dropped", nil
	}
	w := g.cluster.wish(ctx, n, view, &k, GrowDefault)
	w.auto = true
	if all := append(w.refusals(), g.refusals(w)...); len(all) > 0 {
		return strings.Join(all, "; "), nil
	}
	counting, cancel := context.WithTimeout(ctx, autoCountTimeout)
	defer cancel()
	plan, err := w.dryRun(counting, GrowDefault, nil)
	if err != nil {
		return "", err
	}
	for _, f := range plan.Factors {
		if f.By == GrowDefault && f.Largest >= autoSkewMax {
			return fmt.Sprintf("by %d, the largest shard would hold %.2f times its even share of the rows", GrowDefault, f.Largest), nil
		}
	}
	if _, err := g.cluster.grow(ctx, n, w.command(), "without an order: "+of.reason); err != nil {
		return "", err
	}
	g.growths.Inc()
	g.audit(clientadmin.AuditEvent{Time: time.Now(), What: "auto_grow", Target: fmt.Sprintf("%s to %d shards: %s", k.Name, w.to, of.reason), Outcome: "ok"})
	return "", nil
}

// refusals returns further reasons for which a keyspace must not grow by itself now.
func (g *AutoGrowth) refusals(w *wish) (why []string) {
	view, name := w.catalog, Names(w.catalog)
	if view.VersionHeld {
		why = append(why, "the cluster version is held: nodes are being upgraded")
	}
	versions, replicas := map[string]bool{}, map[string]int{}
	largest, total := map[string]uint64{}, map[string]uint64{} // bytes of the shards of which a node has a replica
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
					largest[node] = max(largest[node], leader.Bytes)
					total[node] += leader.Bytes
				}
			}
		}
	}
	for _, node := range slices.Sorted(maps.Keys(total)) {
		if replicas[node] > g.bounds.replicasMax {
			why = append(why, fmt.Sprintf("node %s would have %d replicas, and the most are %d without an order", name[node], replicas[node], g.bounds.replicasMax))
		}
		short := func(of string, u tiering.Usage, adds uint64) {
			if u.HasBytes != 0 && u.NeededBytes+adds > u.HasBytes {
				why = append(why, fmt.Sprintf("node %s needs %d more bytes of %s, and has %d", name[node], adds, of, u.HasBytes-min(u.HasBytes, u.NeededBytes)))
			}
		}
		// A shard takes a quarter more memory while it is parted. The first snapshots of the parts are on the disk
		// beside those of the undivided shards.
		short("memory", w.reports[node].Memory, largest[node]/4)
		short("disk", w.reports[node].Disk, 2*total[node])
	}
	return why
}
