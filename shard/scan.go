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
		from, found := firstKey(after, hasAfter, s, len(groups))
		runs[s] = run{group: g, shards: len(groups), from: from, ended: !found}
	}
	chunk := min(limit, limit/len(groups)+scanSlack)
	r := &ScanResult{}
	for len(r.IDs) < limit {
		least := -1
		for s := range runs {
			runs[s].fill(chunk, width)
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
		r.More = r.More || len(runs[s].ids) > 0 || !runs[s].ended
	}
	return r, nil
}

// scanSlack is how many rows above its even share of a page a shard is read for
// at once. Reading a whole page of every shard would take shards times the
// memory; ids that are spread evenly rarely need a second look.
const scanSlack = 64

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

// run is the next rows of one shard, those that are read and those behind.
type run struct {
	group  *counterGroup
	shards int
	from   uint64 // key that the next read begins at
	ended  bool   // there is nothing from there on

	ids  []uint64
	rows []int64
}

// fill reads up to chunk rows when there are none at hand.
func (r *run) fill(chunk, width int) {
	if len(r.ids) > 0 || r.ended {
		return
	}
	r.ids, r.rows, r.ended = r.ids[:0], r.rows[:0], true
	r.group.fsm.Table().Scan(r.from, width, func(p *engine.Page) bool {
		take := min(len(p.IDs), chunk-len(r.ids))
		for _, key := range p.IDs[:take] {
			r.ids = append(r.ids, idOf(r.group.shard, key, r.shards))
		}
		r.rows = append(r.rows, p.Counts[:take*width]...)
		if len(r.ids) < chunk {
			return true
		}
		last := p.IDs[take-1]
		r.from, r.ended = last+1, last == 1<<64-1
		return false
	})
}
