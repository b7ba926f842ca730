package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// This file has the orders by which keyspaces grow: see shard/GROWTH.md.

// GrowDefault is the factor of an order without one. It is odd, because ids that contain a time often
// end in zero bits.
const GrowDefault = 3

const (
	// skewWarned is the multiple of its even share from which a dry run warns of a new shard.
	skewWarned = 1.5
	// countShare is the part of an order's time in which a dry run counts rows.
	countShare = 0.7
)

// growFactors are the factors for which a dry run counts the rows of the new shards.
var growFactors = []int{2, 3, 5, 7}

// GrowOrder orders a growth of a keyspace, its dry run, or the withdrawal of a growth.
type GrowOrder struct {
	Keyspace string
	By       int // the factor; 0 for GrowDefault
	From     int // number of shards for which the order is meant; 0 for the present number
	DryRun   bool
	Withdraw bool
}

// Grow makes a keyspace grow, and returns once the growth has begun. If the keyspace grows to the wanted
// number of shards already, Grow returns its state. A dry run changes nothing: it returns all
// reasons for which the cluster would refuse the growth, and the rows that each new shard would hold.
func (a *Cluster) Grow(ctx context.Context, o GrowOrder) (*clientadmin.Growth, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	if err := n.CatchUp(ctx); err != nil {
		return nil, err
	}
	view := n.Catalog()
	k, exists := view.Keyspaces[o.Keyspace]
	switch {
	case !exists:
		return nil, errs.ErrUnknownKeyspace
	case o.From != 0 && o.From != len(k.Groups):
		return nil, refusedf("keyspace %s has %d shards, not %d", k.Name, len(k.Groups), o.From)
	case o.Withdraw:
		return a.grow(ctx, n, growCommand(&k, len(k.Groups)), "")
	case k.Growth != nil && (o.By == 0 || k.Growth.Shards == o.By*len(k.Groups)):
		return growthOf(&k), nil
	}
	by := cmp.Or(o.By, GrowDefault)
	if by < 2 || by > clientadmin.GrowMax {
		return nil, &errs.ArgumentError{Field: "by", Problem: fmt.Sprintf("%d is not from 2 to %d; a keyspace may grow again", by, clientadmin.GrowMax)}
	}
	w := a.wish(ctx, n, view, &k, by)
	why := w.refusals()
	switch {
	case o.DryRun:
		return w.dryRun(ctx, by, why)
	case len(why) > 0:
		return nil, refusedf("%s", strings.Join(why, "; "))
	}
	return a.grow(ctx, n, w.command(), "by an operator's order")
}

// grow proposes a growth, or its withdrawal if it is to the present number of shards.
func (a *Cluster) grow(ctx context.Context, n *shard.Node, command *catalog.Command, why string) (*clientadmin.Growth, error) {
	result, _, err := n.ChangeOnAll(ctx, command)
	switch {
	case err != nil:
		return nil, err
	case result.Missing:
		return nil, errs.ErrUnknownKeyspace
	case result.Refused != "":
		return nil, refusedf("%s", result.Refused)
	}
	if c := command.Grow; c.To == c.From {
		a.cfg.Logger.Info("the growth of a keyspace was withdrawn, if there was one", "keyspace", c.Keyspace, "shards", c.To)
	} else {
		a.cfg.Logger.Info("a keyspace begins to grow", "keyspace", c.Keyspace, "shards", c.From, "to", c.To, "why", why)
	}
	return growthOf(&result.Keyspace), nil
}

func growCommand(k *catalog.Keyspace, to int) *catalog.Command {
	return &catalog.Command{Grow: &catalog.GrowEntry{Keyspace: k.Name, FirstGroup: k.FirstGroup(), From: len(k.Groups), To: to}}
}

// growthOf returns the state of a keyspace's growth.
func growthOf(k *catalog.Keyspace) *clientadmin.Growth {
	g := &clientadmin.Growth{Keyspace: k.Name, Shards: len(k.Groups), To: len(k.Groups), State: clientadmin.NotGrowing}
	if p := k.Progress(); p != nil {
		g.State, g.To = clientadmin.Growing, p.To
		g.Growing = &client.Growing{To: p.To, Split: p.Split, Since: p.Since}
		for _, s := range p.Shards {
			g.Growing.Shards = append(g.Growing.Shards, client.GrowingShard{Shard: s.Shard, State: string(s.State), Since: s.Since})
		}
	}
	return g
}

// wish is a growth that may be ordered, and what the nodes report about it.
type wish struct {
	node    *shard.Node
	alive   func(key string) bool
	catalog *catalog.View
	k       *catalog.Keyspace
	to      int
	auto    bool                        // no operator asked for it
	reports map[string]shard.NodeReport // by node key
	groups  []*groupView                // of all keyspaces, ascending
}

func (a *Cluster) wish(ctx context.Context, n *shard.Node, view *catalog.View, k *catalog.Keyspace, by int) *wish {
	w := &wish{node: n, alive: a.cfg.Alive, catalog: view, k: k, to: by * len(k.Groups), reports: n.GrowthReports(ctx, k.Name, by)}
	w.groups = groupViews(view, w.reports)
	return w
}

func (w *wish) command() *catalog.Command {
	c := growCommand(w.k, w.to)
	c.Grow.Auto = w.auto
	return c
}

// refusals returns all reasons for which the keyspace must not grow now. The catalog checks some of them
// itself. It knows neither dead nodes nor restores, nor what the replicas hold.
func (w *wish) refusals() (why []string) {
	if _, r := w.catalog.After(w.command()); r.Refused != "" {
		why = append(why, Names(w.catalog).replaceKeys(r.Refused))
	}
	if w.to > shard.ShardsMax {
		why = append(why, fmt.Sprintf("keyspace %s would have %d shards, and the most are %d", w.k.Name, w.to, shard.ShardsMax))
	}
	why = append(why, w.restores()...)
	for s, number := range w.k.Groups {
		if g := groupOf(w.groups, number); g != nil {
			why = append(why, w.refusalsOf(s, g)...)
		}
	}
	return why
}

// restores returns a reason for each node that restores a keyspace, or may do so. The reason holds for all keyspaces,
// because one run of countctl restores them one after the other.
func (w *wish) restores() (why []string) {
	name := Names(w.catalog)
	for _, key := range slices.Sorted(maps.Keys(w.catalog.Nodes)) {
		report, answers := w.reports[key]
		switch {
		case report.Restoring != "":
			why = append(why, fmt.Sprintf("node %s restores keyspace %s: wait for the end of the restore", name[key], report.Restoring))
		case !answers && w.alive(key):
			why = append(why, fmt.Sprintf("node %s did not answer within a second, so it may be restoring: try again", name[key]))
		}
	}
	return why
}

// groupOf returns the view of a group, or nil if the catalog has not placed it. The groups are ascending.
func groupOf(groups []*groupView, number uint32) *groupView {
	i, found := slices.BinarySearchFunc(groups, number, func(g *groupView, number uint32) int { return cmp.Compare(g.number, number) })
	if !found {
		return nil
	}
	return groups[i]
}

// leaderOf returns the report of a group's leader, or nil.
func leaderOf(groups []*groupView, number uint32) *shard.ReplicaReport {
	g := groupOf(groups, number)
	if g == nil {
		return nil
	}
	return g.replicas[g.leader]
}

// refusalsOf returns the reasons that lie in one shard.
func (w *wish) refusalsOf(s int, g *groupView) (why []string) {
	refuse := func(format string, args ...any) {
		why = append(why, fmt.Sprintf("shard %d: ", s)+fmt.Sprintf(format, args...))
	}
	if g.replicas[g.leader] == nil {
		refuse("no leader answers: wait until it has one")
		return why
	}
	var voters []string
	for _, m := range g.members {
		if !m.Voter {
			continue
		}
		voters = append(voters, m.Key)
		name, r := cmp.Or(g.name[m.Key], m.Key), g.replicas[m.Key]
		switch {
		case r == nil && !w.alive(m.Key):
			refuse("node %s, which has a vote, is dead: start it again, or remove it so that another one replaces it", name)
		case r == nil:
			refuse("node %s, which has a vote, did not answer within a second: try again", name)
		case r.Unsettled != "":
			refuse("the replica on %s has not finished the last growth: %s; wait for its next snapshot", name, r.Unsettled)
		case r.NoSplit != "":
			refuse("the replica on %s: %s", name, r.NoSplit)
		}
	}
	if target := g.catalog.Groups[g.number].Target; !slices.Equal(slices.Sorted(slices.Values(voters)), slices.Sorted(slices.Values(target))) {
		refuse("its replicas move from %s to %s: wait for the end of the move", strings.Join(g.name.all(voters), ", "), strings.Join(g.name.all(target), ", "))
	}
	return why
}

// dryRun returns what a growth would do.
func (w *wish) dryRun(ctx context.Context, by int, refusals []string) (*clientadmin.Growth, error) {
	g := growthOf(w.k)
	g.To, g.Refused = w.to, refusals
	if w.k.Exec {
		g.Warnings = append(g.Warnings, fmt.Sprintf("clients of keyspace %s send EXECs of several ids: those whose ids lie on different shards will fail with CROSSSLOT", w.k.Name))
	}
	ks := w.node.Keyspace(w.k.Name)
	if ks == nil || !ks.Same(&shard.Keyspace{Name: w.k.Name, FirstGroup: w.k.FirstGroup()}) {
		return nil, errs.ErrUnknownKeyspace
	}
	if !kinds.All.Traits(ks.Kind).Columns {
		g.Warnings = append(g.Warnings, fmt.Sprintf("rows of keyspace %s, of kind %s, were not counted", ks.Name, ks.Kind))
		return g, nil
	}
	c := newPartCount(ks, by)
	if err := c.count(ctx, w.node); err != nil {
		return nil, fmt.Errorf("cannot count the rows of keyspace %s: %w", ks.Name, err)
	}
	for s := range c.shards {
		if leader := leaderOf(w.groups, w.k.Groups[s]); leader != nil {
			c.shards[s].rows = leader.Rows
		}
	}
	g.Factors, g.Estimated = c.factors()
	for _, f := range g.Factors {
		if f.By != by {
			continue
		}
		g.Rows = f.Rows
		if f.Largest >= skewWarned {
			g.Warnings = append(g.Warnings, fmt.Sprintf("by %d, the largest shard would hold %.2f times its even share of the rows", by, f.Largest))
		}
	}
	after := *ks
	after.Shards = w.to
	if skew := w.node.SkewWarning(&after); skew != "" {
		g.Warnings = append(g.Warnings, skew)
	}
	return g, nil
}

// partCount counts the rows that the shards of a keyspace would have after growths.
type partCount struct {
	ks     *shard.Keyspace
	by     []int           // factors
	routes []raftfsm.Route // by factor
	shards []shardCount    // present shards
}

// shardCount has the rows of one present shard.
type shardCount struct {
	rows    uint64     // that the leader reports
	counted uint64     // that were read
	parts   [][]uint64 // by factor: the rows read of each part
	from    uint64     // key of the next row to read
	ended   bool       // all rows were read
}

func newPartCount(ks *shard.Keyspace, by int) *partCount {
	c := &partCount{ks: ks, shards: make([]shardCount, ks.Shards)}
	for _, factor := range slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(growFactors), by)))) {
		if factor*ks.Shards <= shard.ShardsMax {
			c.by = append(c.by, factor)
			c.routes = append(c.routes, raftfsm.NewRoute(cmp.Or(ks.Divisor, ks.Shards), factor*ks.Shards, ks.Sharding == shard.ShardingHash))
		}
	}
	for s := range c.shards {
		for _, factor := range c.by {
			c.shards[s].parts = append(c.shards[s].parts, make([]uint64, factor))
		}
	}
	return c
}

// count reads the rows of all shards in pages, in turn, until countShare of the time that ctx leaves is
// over. The rows that it has read by then are those of the lowest ids. A page is an ordinary stale read, so
// it blocks no writes.
func (c *partCount) count(ctx context.Context, n RestoreNode) error {
	deadline, is := ctx.Deadline()
	if !is {
		deadline = time.Now().Add(restoreReadTimeout)
	}
	end := time.Now().Add(time.Duration(countShare * float64(time.Until(deadline))))
	for more := true; more && time.Now().Before(end); {
		more = false
		for s := range c.shards {
			if of := &c.shards[s]; !of.ended && time.Now().Before(end) {
				if err := c.page(n, s, deadline); err != nil {
					return err
				}
				more = more || !of.ended
			}
		}
	}
	return ctx.Err()
}

// page reads the next rows of a shard.
func (c *partCount) page(n RestoreNode, s int, deadline time.Time) error {
	of := &c.shards[s]
	q := rows.Scan{Width: len(c.ks.Columns), Limit: restoreScanRows, OneShard: true, Shard: s, From: of.from}
	if err := n.Read(c.ks, &q, nil, &shard.ReadOptions{Consistency: shard.Stale, Deadline: deadline}); err != nil {
		return err
	}
	for _, id := range q.IDs {
		for f := range c.by {
			shardAfter, key := c.routes[f].KeyOf(id)
			of.parts[f][shardAfter/len(c.shards)]++
			of.from = key + 1
		}
	}
	of.counted += uint64(len(q.IDs))
	of.ended = !q.More
	return nil
}

// factors returns the rows of the new shards for each factor. If not all rows were read, it assumes that
// the others are spread like those, and returns true.
func (c *partCount) factors() (all []clientadmin.GrowthFactor, estimated bool) {
	for f, by := range c.by {
		of := clientadmin.GrowthFactor{By: by, To: by * len(c.shards), Rows: make([]uint64, by*len(c.shards))}
		total := uint64(0)
		for s := range c.shards {
			from := &c.shards[s]
			for part, rows := range from.parts[f] {
				if !from.ended && from.counted > 0 {
					estimated = true
					rows = uint64(float64(rows) / float64(from.counted) * float64(max(from.rows, from.counted)))
				}
				of.Rows[s+part*len(c.shards)] = rows
				total += rows
			}
		}
		if total > 0 {
			of.Largest = math.Round(100*float64(slices.Max(of.Rows))*float64(of.To)/float64(total)) / 100
		}
		all = append(all, of)
	}
	return all, estimated
}

// restorePause is the time after the restore of a shard for which its node counts as restoring. It is much longer than
// countctl needs to begin with the next shard.
const restorePause = 10 * time.Second

// restores knows the restores of shards that run on this node.
type restores struct {
	sync.Mutex
	running  int
	keyspace string    // of the last restore that began
	ended    time.Time // when the last restore ended
}

// begin counts a restore until the returned function is called.
func (r *restores) begin(keyspace string) (end func()) {
	r.Lock()
	defer r.Unlock()
	r.running++
	r.keyspace = keyspace
	return func() {
		r.Lock()
		defer r.Unlock()
		r.running--
		r.ended = time.Now()
	}
}

// Restoring returns the keyspace that this node restores, or has restored within restorePause; "" for none.
func (a *Cluster) Restoring() string {
	a.restores.Lock()
	defer a.restores.Unlock()
	if a.restores.running == 0 && time.Since(a.restores.ended) > restorePause {
		return ""
	}
	return a.restores.keyspace
}
