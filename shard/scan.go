package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/wire"
)

// scanPage returns a page of rows, as Node.Scan does.
func (rd *reader) scanPage(ks *Keyspace, after uint64, hasAfter bool, limit, width int, opt *ReadOptions) (*ScanResult, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	s := scan{reader: rd, ctx: ctx, opt: opt, width: width, route: groups[0].route, dropped: ks.Dropped,
		chunk: min(limit, limit/len(groups)+scanSlack)}
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
			if len(runs[i].ids) > 0 && (least < 0 || runs[i].ids[0] < runs[least].ids[0]) {
				least = i
			}
		}
		if least < 0 {
			return r, nil
		}
		r.IDs = append(r.IDs, runs[least].ids[0])
		r.Rows = append(r.Rows, runs[least].rows[:width]...)
		runs[least].ids, runs[least].rows = runs[least].ids[1:], runs[least].rows[width:]
	}
	for i := range runs {
		r.More = r.More || len(runs[i].ids) > 0 || !runs[i].ended
	}
	return r, nil
}

const (
	// scanSlack is how many rows above its even share of a page a shard is read
	// for at once. Reading a whole page of every shard would take shards times
	// the memory; ids that are spread evenly rarely need a second look.
	scanSlack = 64
	// scanRowsMax bounds the rows that one call asks another node for.
	scanRowsMax = readKeysMax
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
	ctx    context.Context
	opt    *ReadOptions
	width  int
	route  keyspace.Route
	chunk  int
	table  raftfsm.Table

	dropped []int // columns, by number, whose counts make no row
}

// run is the next rows of one shard, those that are read and those behind.
type run struct {
	group *shardReplica
	from  uint64 // key that the next read begins at
	ended bool   // there is nothing from there on

	ids  []uint64
	rows []int64
}

// fill reads up to a chunk of rows when there are none at hand: here, or where
// the shard is.
func (s *scan) fill(r *run) error {
	for len(r.ids) == 0 && !r.ended {
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
	err = s.reader.ask(s.ctx, r.group, rep, s.opt, func(rep *localReplica) (err error) {
		r.ids, r.rows, err = rep.readRun(s.table, r.from, s.width, s.chunk, r.ids[:0], r.rows[:0])
		return err
	}, func(ctx context.Context, node string) error { return s.fillAt(ctx, node, r) })
	if err != nil {
		r.ids, r.rows = nil, nil // part of a chunk, as keys
		return err
	}
	r.ended = len(r.ids) < s.chunk
	if !r.ended {
		last := r.ids[len(r.ids)-1]
		r.from, r.ended = last+1, last == 1<<64-1
	}
	for i, key := range r.ids {
		r.ids[i] = s.route.IDOf(r.group.shard, key)
	}
	if len(s.dropped) > 0 {
		s.hideDropped(r)
	}
	return nil
}

// hideDropped removes the rows that have counts in dropped columns alone.
func (s *scan) hideDropped(r *run) {
	shown := 0
	for i := range r.ids {
		row := r.rows[i*s.width : (i+1)*s.width]
		for _, column := range s.dropped {
			if column < s.width {
				row[column] = 0
			}
		}
		if slices.ContainsFunc(row, func(count int64) bool { return count != 0 }) {
			r.ids[shown] = r.ids[i]
			copy(r.rows[shown*s.width:], row)
			shown++
		}
	}
	r.ids, r.rows = r.ids[:shown], r.rows[:shown*s.width]
}

// readRun appends up to chunk rows of a table from a key on to keys and rows. If cold
// rows cannot be read, what it returns means nothing and another replica may be asked.
func (r *localReplica) readRun(of raftfsm.Table, from uint64, width, chunk int, keys []uint64, rows []int64) ([]uint64, []int64, error) {
	table := r.fsm.TableOf(of)
	err := table.Scan(from, width, func(p *engine.Page) bool {
		take := min(len(p.IDs), chunk-len(keys))
		keys = append(keys, p.IDs[:take]...)
		rows = append(rows, p.Counts[:take*width]...)
		return len(keys) < chunk
	})
	return keys, rows, r.tableFailure(table, err)
}

// fillAt reads from one node.
func (s *scan) fillAt(ctx context.Context, node string, r *run) error {
	q := newRemoteRead(r.group, s.opt)
	q.of, q.width = readOf(s.table), s.width
	request := binary.AppendUvarint(appendRead(nil, q), r.from)
	answer, err := s.reader.calls.Call(ctx, node, methodScan, binary.AppendUvarint(request, uint64(s.chunk)))
	if err != nil {
		return err
	}
	return s.parse(r, answer)
}

func (s *scan) parse(r *run, answer []byte) error {
	w := wire.Reader{Rest: answer}
	n := w.Count(1)
	if n > s.chunk {
		w.Fail(fmt.Sprintf("%d rows", n))
		n = 0
	}
	r.ids = r.ids[:0]
	for range n {
		r.ids = append(r.ids, w.Fixed64())
	}
	r.rows = parseCounts(&w, n*s.width)
	return w.End()
}

// serveScan reads the next rows of a shard for another node.
func (rd *reader) serveScan(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	q := parseRead(&r)
	from, chunk := r.Uint(), int(r.UintTo(scanRowsMax))
	if err := r.End(); err != nil {
		return nil, err
	}
	if !q.of.isTable() {
		return nil, fmt.Errorf("%w: a scan of feeds", wire.ErrBadMessage)
	}
	deadline := time.Now().Add(readWaitMax)
	rep, err := rd.replicaFor(q, deadline)
	if err != nil {
		return nil, err
	}
	keys, rows, err := rep.readRun(q.of.table(), from, q.width, chunk, nil, nil)
	if err != nil {
		return nil, err
	}
	answer := binary.AppendUvarint(make([]byte, 0, 9*len(keys)+2*len(rows)+8), uint64(len(keys)))
	for _, key := range keys {
		answer = binary.LittleEndian.AppendUint64(answer, key)
	}
	for _, count := range rows {
		answer = binary.AppendVarint(answer, count)
	}
	return answer, errors.Join(ctx.Err())
}
