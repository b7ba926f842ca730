package shard

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/shard/keyspace"
)

// scanPage returns a page of rows, as Node.Scan does.
func (rd *reader) scanPage(ks *Keyspace, afterID uint64, hasAfter bool, limit, width int, opt *ReadOptions) (*ScanResult, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return nil, err
	}
	s := scan{reader: rd, opt: opt, route: groups[0].route, dropped: ks.Dropped,
		query: readQuery{of: readCounts, width: width, chunk: min(limit, limit/len(groups)+scanSlack)}}
	runs := make([]run, len(groups))
	for i, g := range groups {
		runs[i] = run{group: g}
		if hasAfter {
			from, found := s.route.FirstAbove(afterID, i)
			runs[i].from, runs[i].ended = from, !found
		}
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

// A scan reads scanSlack rows more from each shard than the shard's even share of a page. Reading a
// whole page from each shard would multiply the memory by the number of shards. Ids that are spread
// evenly rarely need a second read.
const scanSlack = 64

// scan is the part of a scan that is the same for all shards.
type scan struct {
	reader *reader
	opt    *ReadOptions
	route  keyspace.Route
	query  readQuery

	dropped []int // numbers of the dropped columns: their counts are not shown
}

// run is the position of a scan in one shard.
type run struct {
	group *shardReplica
	from  uint64 // the key at which the next read begins
	ended bool   // the shard has no rows from there on

	rows []int64 // read but not merged: of each row the id, then the counts
}

// fill reads rows in chunks, here or on another node, until it has some or the shard ends.
func (s *scan) fill(r *run) error {
	for len(r.rows) == 0 && !r.ended {
		rep, err := s.reader.admitted(r.group, s.opt, time.Now())
		if err != nil {
			return err
		}
		rows, err := s.reader.fetch(r.group, rep, s.query, []uint64{r.from}, s.opt)
		if err != nil {
			return err
		}
		size, ended := 1+s.query.width, int(rows[0]) < s.query.chunk
		if rows = rows[1:]; !ended {
			last := uint64(rows[len(rows)-size])
			r.from, ended = last+1, last == 1<<64-1
		}
		r.rows, r.ended = rows[:0], ended
		for row := range slices.Chunk(rows, size) {
			row[0] = int64(s.route.IDOf(r.group.shard, uint64(row[0])))
			if s.shows(row[1:]) {
				r.rows = append(r.rows, row...)
			}
		}
	}
	return nil
}

// shows sets the counts of dropped columns to 0. It reports whether the row has a count other than
// 0 in another column. If no column is dropped, it reports true for every row.
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
