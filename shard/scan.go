package shard

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/shard/keyspace"
)

// scanPage returns a page of rows, as Node.Scan does.
func (rd *reader) scanPage(ks *Keyspace, after uint64, hasAfter bool, limit, width int, opt *ReadOptions) (*ScanResult, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return nil, err
	}
	s := scan{reader: rd, opt: opt, route: groups[0].route, dropped: ks.Dropped,
		query: readQuery{of: readCounts, width: width, chunk: min(limit, limit/len(groups)+scanSlack)}}
	runs := make([]run, len(groups))
	for i, g := range groups {
		from, found := firstKey(groups[0].route, after, hasAfter, i)
		runs[i] = run{group: g, from: from, ended: !found}
	}
	r := &ScanResult{}
	for len(r.IDs) < limit {
		least := -1
		for i := range runs {
			err := s.fill(&runs[i])
			switch {
			case (errors.Is(err, errNobodyHas) || errors.Is(err, ErrUnreadable)) && opt.SkipUnreadable:
				runs[i].ended = true
				r.Unreadable = append(r.Unreadable, i)
			case err != nil:
				return nil, err
			}
			if len(runs[i].rows) > 0 && (least < 0 || uint64(runs[i].rows[0]) < uint64(runs[least].rows[0])) {
				least = i
			}
		}
		if least < 0 {
			return r, nil
		}
		r.IDs = append(r.IDs, uint64(runs[least].rows[0]))
		r.Rows = append(r.Rows, runs[least].rows[1:1+width]...)
		runs[least].rows = runs[least].rows[1+width:]
	}
	for i := range runs {
		r.More = r.More || len(runs[i].rows) > 0 || !runs[i].ended
	}
	return r, nil
}

const (
	// scanSlack is how many rows above its even share of a page a shard is read
	// for at once. Reading a whole page of every shard would take shards times
	// the memory; ids that are spread evenly rarely need a second look.
	scanSlack = 64
)

// firstKey returns the least key of a shard whose id lies above after, and
// false when there is none.
func firstKey(r keyspace.Route, after uint64, hasAfter bool, shard int) (uint64, bool) {
	if !hasAfter {
		return 0, true
	}
	return r.FirstAbove(after, shard)
}

// scan is what all shards of one scan are asked alike.
type scan struct {
	reader *reader
	opt    *ReadOptions
	route  keyspace.Route
	query  readQuery

	dropped []int // columns, by number, whose counts make no row
}

// run is the next rows of one shard, those that are read and those behind.
type run struct {
	group *shardReplica
	from  uint64 // key that the next read begins at
	ended bool   // there is nothing from there on

	rows []int64 // of each row the id, then the counts
}

// fill reads up to a chunk of rows when there are none at hand: here, or where
// the shard is.
func (s *scan) fill(r *run) error {
	for len(r.rows) == 0 && !r.ended {
		if err := s.fillOnce(r); err != nil {
			return err
		}
	}
	return nil
}

func (s *scan) fillOnce(r *run) error {
	rep, err := s.reader.admitted(r.group, s.opt, time.Now())
	if err != nil {
		return err
	}
	rows, err := s.reader.fetch(r.group, rep, s.query, []uint64{r.from}, s.opt)
	if err != nil {
		return err
	}
	r.rows, r.ended = rows[1:], int(rows[0]) < s.query.chunk
	size := 1 + s.query.width
	if !r.ended {
		last := uint64(r.rows[len(r.rows)-size])
		r.from, r.ended = last+1, last == 1<<64-1
	}
	shown := r.rows[:0]
	for row := range slices.Chunk(r.rows, size) {
		row[0] = int64(s.route.IDOf(r.group.shard, uint64(row[0])))
		if s.shows(row[1:]) {
			shown = append(shown, row...)
		}
	}
	r.rows = shown
	return nil
}

// shows zeroes the counts of dropped columns, and reports whether the row has any other count.
func (s *scan) shows(counts []int64) bool {
	if len(s.dropped) == 0 {
		return true
	}
	for _, column := range s.dropped {
		if column < len(counts) {
			counts[column] = 0
		}
	}
	return slices.ContainsFunc(counts, func(count int64) bool { return count != 0 })
}
