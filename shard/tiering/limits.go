package tiering

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/errs"
)

// allowance is how much a shard may grow until the next check, by the limits of its keyspace. Rows that were
// admitted and not yet applied at the check are not in it, so a shard may exceed its share by those.
type allowance struct {
	keyspace string
	limit    uint64 // of the whole keyspace
	unit     string // of limit
	route    codec.Route
	has      uint64       // of unit, as of the check
	left     atomic.Int64 // rows that may be created; the rows of refused and repeated requests count until the next check
}

func newAllowance(keyspace string, limits catalog.Limits, route codec.Route, s engine.Stats) *allowance {
	a := &allowance{keyspace: keyspace, route: route}
	a.left.Store(math.MaxInt64)
	if limits.Rows > 0 {
		a.limit, a.unit, a.has = limits.Rows, "rows", s.Rows
		share := shareOf(limits.Rows, route)
		a.left.Store(int64(min(share-min(share, s.Rows), math.MaxInt64)))
	}
	if limits.Bytes > 0 && s.Bytes >= shareOf(limits.Bytes, route) && a.left.Load() > 0 {
		a.limit, a.unit, a.has = limits.Bytes, "bytes of memory", s.Bytes
		a.left.Store(0)
	}
	return a
}

// shareOf returns the share of a limit of one of the shards.
func shareOf(limit uint64, route codec.Route) uint64 {
	shards := uint64(max(route.Modulus, 1))
	return (limit-1)/shards + 1
}

// take reports whether another row may be created, and otherwise why not.
func (a *allowance) take() *errs.LimitError {
	if a.left.Add(-1) >= 0 {
		return nil
	}
	a.left.Add(1)
	share := shareOf(a.limit, a.route)
	text := fmt.Sprintf("keyspace %s is at its limit of %d %s", a.keyspace, a.limit, a.unit)
	if a.route.Modulus > 1 {
		text += fmt.Sprintf(": shard %d may have %d", a.route.Residue, share)
	}
	return &errs.LimitError{Text: fmt.Sprintf("%s, and has %d", text, max(a.has, share))}
}

// CheckLimits computes the allowance of a replica's shard. VotersDisks calls it each second, and the node calls it
// after each change of the catalog, so that a new limit and a new keyspace need not wait.
func (m *Machine) CheckLimits(view *catalog.View) {
	keyspace, limits := view.LimitsOf(m.Group)
	if limits == (catalog.Limits{}) {
		m.allowance.Store(nil)
		return
	}
	m.allowance.Store(newAllowance(keyspace, limits, m.Route(), m.State().Stats))
}

// limitUse exports how near the node's shards are to the limits of their keyspaces.
type limitUse struct{ tiering *Tiering }

var limitUseDesc = prometheus.NewDesc("countd_keyspace_limit_used_ratio",
	"The part of a limit of a keyspace that is used: of all the node's shards of the keyspace, that of the fullest.", []string{"keyspace", "limit"}, nil)

func (limitUse) Describe(to chan<- *prometheus.Desc) { to <- limitUseDesc }

func (c limitUse) Collect(to chan<- prometheus.Metric) {
	used := map[[2]string]float64{}
	for _, s := range c.tiering.cfg.Shards() {
		keyspace, limits := c.tiering.cfg.Catalog.View().LimitsOf(s.Group)
		if keyspace == "" {
			continue
		}
		stats, route := s.FSM.State().Stats, s.FSM.Route()
		for unit, of := range map[string][2]uint64{"rows": {stats.Rows, limits.Rows}, "bytes": {stats.Bytes, limits.Bytes}} {
			if of[1] > 0 {
				at := [2]string{keyspace, unit}
				used[at] = max(used[at], float64(of[0])/float64(shareOf(of[1], route)))
			}
		}
	}
	for at, ratio := range used {
		to <- prometheus.MustNewConstMetric(limitUseDesc, prometheus.GaugeValue, ratio, at[0], at[1])
	}
}
