package shard

import "github.com/countd/countd/engine"

// Scan returns up to limit rows, width counts each, of ids above after (from
// the first id on if hasAfter is false) in ascending order, those with a count
// in these columns only. Rows that are written meanwhile may be of different
// moments.
func (n *Node) Scan(ks *Keyspace, after uint64, hasAfter bool, limit, width int, opt *ReadOptions) (*ScanResult, error) {
	groups, err := n.groupsOf(ks)
	if err != nil {
		return nil, err
	}
	runs := make([]run, len(groups))
	for s, g := range groups {
		if err := g.admit(opt); err != nil {
			return nil, err
		}
		from, any := firstKey(after, hasAfter, s, len(groups))
		if any {
			runs[s].read(g, from, limit, width, len(groups))
		}
	}
	r := &ScanResult{}
	for len(r.IDs) < limit {
		least := -1
		for s := range runs {
			if len(runs[s].ids) > 0 && (least < 0 || runs[s].ids[0] < runs[least].ids[0]) {
				least = s
			}
		}
		if least < 0 {
			return r, nil
		}
		r.IDs = append(r.IDs, runs[least].ids[0])
		r.Rows = append(r.Rows, runs[least].rows[:width]...)
		runs[least].ids, runs[least].rows = runs[least].ids[1:], runs[least].rows[width:]
	}
	for s := range runs {
		r.More = r.More || len(runs[s].ids) > 0 || runs[s].more
	}
	return r, nil
}

// firstKey returns the least key of a shard whose id lies above after, and
// false when there is none.
func firstKey(after uint64, hasAfter bool, shard, shards int) (uint64, bool) {
	if !hasAfter {
		return 0, true
	}
	s, key := keyOf(after, shards)
	if shard > s {
		return key, idOf(shard, key, shards) > after // false past 2^64-1
	}
	next := idOf(shard, key+1, shards)
	return key + 1, next > after
}

// run is the next rows of one shard.
type run struct {
	ids  []uint64
	rows []int64
	more bool
}

func (r *run) read(g *counterGroup, from uint64, limit, width, shards int) {
	g.fsm.Table().Scan(from, width, func(p *engine.Page) bool {
		take := min(len(p.IDs), limit-len(r.ids))
		for _, key := range p.IDs[:take] {
			r.ids = append(r.ids, idOf(g.shard, key, shards))
		}
		r.rows = append(r.rows, p.Counts[:take*width]...)
		r.more = len(r.ids) == limit
		return !r.more
	})
}
