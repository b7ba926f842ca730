package api

import (
	"errors"
	"fmt"
	"math"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// counterRoutes are the calls about counts, the most frequent ones first.
func counterRoutes() []route {
	const (
		many  = takesBody | takesRead | takesKeyspace
		write = takesBody | takesWrite | takesKeyspace
	)
	read, add, put := auth.Read.InPath(), auth.Ingest.InPath(), auth.Write.InPath()
	return []route{
		{"POST /v1/counters/{keyspace}/get", "counters_mget", does{many, read, getMany}},
		{"POST /v1/counters/{keyspace}/incr", "counters_incr", does{write, add, incr}},
		{"POST /v1/counters/{keyspace}/set", "counters_set", does{write, put, set}},
		{"POST /v1/counters/{keyspace}/scan", "counters_scan", does{many, read, scan}},
		{"POST /v1/counters/{keyspace}/correct", "counters_correct", does{write, put, correct}},
		{"GET /v1/counters/{keyspace}/{id}", "counters_get", does{takesRead | takesKeyspace | takesID, read, getRow}},
		{"PUT /v1/counters/{keyspace}/{id}", "counters_put", does{write | takesID, put, putRow}},
		{"DELETE /v1/counters/{keyspace}/{id}", "counters_delete", does{takesWrite | takesKeyspace | takesID | removes, put, deleteRow}},
		{"POST /v1/ops", "ops", does{takesBody | takesWrite | takesOps | removes, auth.Ingest.InBody(), ops}},
	}
}

const (
	idsMax      = 1_000  // ids of one read: about 100 KB of answer
	scanMax     = 10_000 // rows of a page: about 1 MB of answer
	scanDefault = 1_000
)

// opsMax bounds the ops of one write. A larger request would delay other requests to its shards;
// the client can split it.
const opsMax = 10_000

func getRow(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	r.ids = append(r.ids, r.id)
	if err := s.readRows(r, len(r.keyspace.Columns)); err != nil {
		return err
	}
	answer(ctx, func(dst []byte) []byte {
		return append(appendRow(dst, &r.texts, r.id, r.keyspace, r.rows.Rows), '}')
	})
	return nil
}

func getMany(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeGet(ctx.Request.Body()); err != nil {
		return err
	}
	if err := s.readRows(r, len(r.keyspace.Columns)); err != nil {
		return err
	}
	size := rowsBytes(len(r.ids), len(r.columns))
	if r.sets.asked {
		if err := s.readSets(r, r.columns); err != nil {
			return err
		}
		size *= 2
	}
	answerLong(ctx, size, func(dst []byte) []byte {
		return append(appendRows(dst, &listed{ids: r.ids, sent: &r.texts}, r.keyspace, r.columns, r.rows.Rows, r.sets.in), '}')
	})
	return nil
}

// readRows fills r.rows with the first width columns of the rows of r.ids.
func (s *Server) readRows(r *request, width int) error {
	if err := named(&r.texts); err != nil {
		return err
	}
	r.rows = rows.Query{Width: width, Rows: resized(r.rows.Rows, len(r.ids)*width)}
	if err := s.node().Read(r.keyspace, &r.rows, r.ids, &r.read); err != nil {
		return fmt.Errorf("cannot read rows: %w", err)
	}
	return nil
}

func scan(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	p, err := r.decodeScan(ctx.Request.Body())
	if err != nil {
		return err
	}
	found := rows.Scan{Width: len(r.keyspace.Columns), Limit: p.limit, After: p.after, HasAfter: p.hasAfter, Dropped: r.keyspace.Dropped, SkipUnreadable: p.skip}
	if err := s.node().Read(r.keyspace, &found, nil, &r.read); err != nil {
		return fmt.Errorf("cannot scan rows: %w", err)
	}
	texts, err := rowTexts(r, found.IDs)
	if err != nil {
		return err
	}
	answerLong(ctx, rowsBytes(len(found.IDs), len(r.columns)), func(dst []byte) []byte {
		dst = appendRows(dst, &listed{ids: found.IDs, texts: texts}, r.keyspace, r.columns, found.Rows, nil)
		dst = appendUnreadable(dst, found.Unreadable)
		dst = append(dst, `,"next":`...)
		if !found.More || len(found.IDs) == 0 {
			return append(dst, `null}`...)
		}
		last := found.IDs[len(found.IDs)-1]
		dst = append(strictjson.AppendID(dst, last), `,"cursor":`...)
		return append(strictjson.AppendID(dst, last), '}')
	})
	return nil
}

// appendUnreadable appends the shards that a scan has skipped, if there are any.
func appendUnreadable(dst []byte, shards []int) []byte {
	if len(shards) == 0 {
		return dst
	}
	return appendInts(append(dst, `,"unreadable_shards":`...), shards)
}

func incr(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.change(ctx, r, changeAdd)
}

func set(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	return s.change(ctx, r, changeSet)
}

// correct serves POST /v1/counters/{keyspace}/correct. It works like incr, but counts the ops as
// corrections in the metrics.
func correct(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := s.change(ctx, r, changeAdd); err != nil {
		return err
	}
	if !r.write.Duplicate {
		s.countCorrected(r)
	}
	return nil
}

// countCorrected adds the size of all applied corrections to the metric of the keyspace's drift.
func (s *Server) countCorrected(r *request) {
	drift, refused := 0.0, r.write.Overflows
	for i := range r.ops {
		if len(refused) > 0 && refused[0].Op == i {
			refused = refused[1:]
			continue
		}
		for n := range r.ops[i].Cells {
			if c := &r.ops[i].Cells[n]; !c.IsBound() {
				drift += math.Abs(float64(c.Value))
			}
		}
	}
	s.metrics.Drift.WithLabelValues(r.keyspace.Name).Add(drift)
}

// change serves a batch of ops.
func (s *Server) change(ctx *fasthttp.RequestCtx, r *request, ch change) error {
	if err := r.decodeOps(ctx.Request.Body(), ch); err != nil {
		return err
	}
	width := len(r.keyspace.Columns)
	return s.writeBatch(ctx, r, width, rowsBytes(1, width))
}

// writeBatch writes the ops of r. Unless the request wants none, it answers with the first width counts
// of each row, of about rowBytes.
func (s *Server) writeBatch(ctx *fasthttp.RequestCtx, r *request, width, rowBytes int) error {
	if r.wantNone {
		width = 0
	}
	if err := s.writeOps(r, width); err != nil {
		return err
	}
	w := &r.write
	if r.wantNone {
		answer(ctx, func(dst []byte) []byte { return appendApplied(dst, w, r.ops, &r.texts, r.keyspace) })
		return nil
	}
	answerLong(ctx, rowBytes*len(r.ops), func(dst []byte) []byte { return appendResults(dst, w, r.ops, &r.texts, r.keyspace) })
	return nil
}

func putRow(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeRowSet(ctx.Request.Body(), r.id); err != nil {
		return err
	}
	return s.writeRow(ctx, r)
}

func deleteRow(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	r.addOp(engine.Op{ID: r.id, Kind: engine.OpDelete})
	return s.writeRow(ctx, r)
}

// writeRow writes the only op of r and answers with the new row.
func (s *Server) writeRow(ctx *fasthttp.RequestCtx, r *request) error {
	if err := s.writeOps(r, len(r.keyspace.Columns)); err != nil {
		return err
	}
	answer(ctx, func(dst []byte) []byte {
		return append(appendOutcome(appendRow(dst, &r.texts, r.id, r.keyspace, r.write.Rows), &r.write), '}')
	})
	return nil
}

// writeOps writes the ops of r, and sets the first width counts of each row in r.write.
func (s *Server) writeOps(r *request, width int) error {
	if err := named(&r.texts); err != nil {
		return err
	}
	r.countOps()
	w, ks := &r.write, r.keyspace
	if len(w.Spaces) > 0 {
		ks = w.Spaces[0]
	}
	w.Ops, w.Width = &r.ops, width
	w.Rows = resized(w.Rows, len(r.ops)*width)
	if err := s.node().Write(ks, w); err != nil {
		return fmt.Errorf("cannot write: %w", err)
	}
	if len(w.Overflows) > 0 && len(w.Overflows) == len(r.ops) {
		return overflowFault(r.ops, keyspaceOf(w, ks, w.Overflows[0].Op), w.Overflows[0])
	}
	return nil
}

// withOps adds ops to an error of a write: the first op that needs a new row, or all ops if the
// outcome is unknown. So every 504 of a write has the ids of its ops.
func (r *request) withOps(err error) error {
	w := &r.write
	var newRow *shard.NewRowError
	if errors.As(err, &newRow) {
		op := newRow.Op
		if r.takes&takesID != 0 {
			op = bodyOp
		}
		f, _ := faultOf(err)
		f.field = opPath(op, rowMember(keyspaceOf(w, r.keyspace, op)))
		why := "it has no row yet"
		if newRow.Wider {
			why = "it counts in a column that no row near it has yet"
		}
		f.message = f.field + ": " + why + ", and " + f.message
		return f
	}
	var partial *shard.PartialError
	if !errors.Is(err, errs.ErrOutcomeUnknown) || errors.As(err, &partial) {
		return err
	}
	partial = &shard.PartialError{Err: err}
	if r.takes&takesID != 0 {
		partial.Unknown = []uint64{r.id}
		return partial
	}
	for i, op := range r.ops {
		partial.Unknown, partial.UnknownOps = append(partial.Unknown, op.ID), append(partial.UnknownOps, i)
	}
	return partial
}

// decodeGet reads {"ids":[…],"columns":[…]?,"member":…?} into r.ids, r.columns and r.sets.
func (r *request) decodeGet(body []byte) error {
	s, err := r.members(body, []string{"ids", "columns", "member"}, func(_ *cursor, member int) {
		switch member {
		case 0:
			r.decodeIDs("ids", namesOf(r.keyspace), 1, idsMax)
		case 1:
			r.decodeColumns()
		case 2:
			r.readMember()
		}
	})
	if !s.has(1) {
		r.allColumns()
	}
	switch {
	case err == nil && !s.has(0):
		err = invalid("ids", strictjson.Missing)
	case err == nil && r.sets.asked && len(r.ids)*len(r.columns) > lookupsMax:
		err = invalid("member", fmt.Sprintf("%d ids of %d columns are more than %d sets: ask for fewer columns or ids", len(r.ids), len(r.columns), lookupsMax))
	}
	return err
}

// page selects the rows of a scan.
type page struct {
	after    uint64
	hasAfter bool
	limit    int
	skip     bool // skip shards without a replica on any living node
}

// decodeScan reads {"cursor":…?,"limit":n?,"columns":[…]?,"skip_unreadable":bool?}; columns go to
// r.columns. The cursor is the last id of the previous page; "after" is another name for it.
// Without a consistency in the request, skip_unreadable makes the read stale.
func (r *request) decodeScan(body []byte) (page, error) {
	p := page{limit: scanDefault}
	known := []string{"cursor", "limit", "columns", "skip_unreadable", "after"}
	s, err := r.members(body, known, func(c *cursor, member int) {
		switch name := known[member]; name {
		case "cursor", "after":
			if p.hasAfter {
				c.Fail(name, strictjson.GivenTwice)
			}
			if p.after, p.hasAfter = c.ID(); !p.hasAfter {
				c.Fail(name, map[string]string{"cursor": notCursor, "after": strictjson.NotUint64}[name])
			}
		case "limit":
			p.limit = c.countIn("limit", scanMax)
		case "columns":
			r.decodeColumns()
		case "skip_unreadable":
			p.skip = c.boolean("skip_unreadable")
			switch {
			case p.skip && !r.namesLevel:
				r.read.Consistency, r.read.MaxStaleness = shard.Stale, 0
			case p.skip && r.read.Consistency != shard.Stale:
				c.Fail("skip_unreadable", "only of a read with consistency stale")
			}
		}
	})
	if !s.has(2) {
		r.allColumns()
	}
	return p, err
}
