package api

import (
	"errors"
	"fmt"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

func (s *Server) getRow(ctx *fasthttp.RequestCtx, r *request) error {
	r.ids = append(r.ids, r.id)
	r.allColumns()
	if err := s.readRows(r); err != nil {
		return err
	}
	answer(ctx, func(dst []byte) []byte {
		return append(appendRow(dst, r.id, r.keyspace, r.columns, r.rows), '}')
	})
	return nil
}

func (s *Server) getMany(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeGet(ctx.Request.Body()); err != nil {
		return err
	}
	if err := s.readRows(r); err != nil {
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
		return append(appendRows(dst, r.ids, r.keyspace, r.columns, r.rows, r.sets.in), '}')
	})
	return nil
}

// readRows fills r.rows with the rows of r.ids.
func (s *Server) readRows(r *request) error {
	width := len(r.keyspace.Columns)
	r.rows = resized(r.rows, len(r.ids)*width)
	r.rowsQuery = rows.Query{Width: width, Rows: r.rows}
	if err := s.node().Read(r.keyspace, &r.rowsQuery, r.ids, &r.read); err != nil {
		return fmt.Errorf("cannot read rows: %w", err)
	}
	return nil
}

// resized returns a slice of n values with any content. It reuses the array if that is large
// enough.
func resized(values []int64, n int) []int64 {
	return slices.Grow(values[:0], n)[:n]
}

func (s *Server) scan(ctx *fasthttp.RequestCtx, r *request) error {
	p, err := r.decodeScan(ctx.Request.Body())
	if err != nil {
		return err
	}
	found := rows.Scan{Width: len(r.keyspace.Columns), Limit: p.limit, After: p.after, HasAfter: p.hasAfter, Dropped: r.keyspace.Dropped, SkipUnreadable: p.skip}
	if err := s.node().Read(r.keyspace, &found, nil, &r.read); err != nil {
		return fmt.Errorf("cannot scan rows: %w", err)
	}
	answerLong(ctx, rowsBytes(len(found.IDs), len(r.columns)), func(dst []byte) []byte {
		dst = appendRows(dst, found.IDs, r.keyspace, r.columns, found.Rows, nil)
		dst = appendUnreadable(dst, found.Unreadable)
		dst = append(dst, `,"next":`...)
		if !found.More || len(found.IDs) == 0 {
			return append(dst, `null}`...)
		}
		last := found.IDs[len(found.IDs)-1]
		dst = append(appendID(dst, last), `,"cursor":`...)
		return append(appendID(dst, last), '}')
	})
	return nil
}

// appendUnreadable appends the shards that a scan has left out, if there are any.
func appendUnreadable(dst []byte, shards []int) []byte {
	if len(shards) == 0 {
		return dst
	}
	return appendInts(append(dst, `,"unreadable_shards":`...), shards)
}

func (s *Server) incr(ctx *fasthttp.RequestCtx, r *request) error {
	return s.change(ctx, r, changeAdd)
}

func (s *Server) set(ctx *fasthttp.RequestCtx, r *request) error {
	return s.change(ctx, r, changeSet)
}

// change serves a batch of ops.
func (s *Server) change(ctx *fasthttp.RequestCtx, r *request, ch change) error {
	if err := r.decodeOps(ctx.Request.Body(), ch); err != nil {
		return err
	}
	if err := s.writeOps(r, !r.wantNone); err != nil {
		return err
	}
	if r.wantNone {
		answer(ctx, func(dst []byte) []byte { return appendApplied(dst, &r.write, r.keyspace) })
		return nil
	}
	r.allColumns()
	answerLong(ctx, rowsBytes(len(r.write.Ops), len(r.columns)), func(dst []byte) []byte {
		return appendResults(dst, &r.write, r.keyspace, r.columns)
	})
	return nil
}

// rowsBytes estimates the bytes of rows of small counts in an answer.
func rowsBytes(rows, columns int) int { return rows * (40 + 12*columns) }

func (s *Server) putRow(ctx *fasthttp.RequestCtx, r *request) error {
	if err := r.decodeRowSet(ctx.Request.Body(), r.id); err != nil {
		return err
	}
	return s.writeRow(ctx, r)
}

func (s *Server) deleteRow(ctx *fasthttp.RequestCtx, r *request) error {
	r.addOp(engine.Op{ID: r.id, Kind: engine.OpDelete})
	return s.writeRow(ctx, r)
}

// writeRow writes the only op of r and answers its row.
func (s *Server) writeRow(ctx *fasthttp.RequestCtx, r *request) error {
	if err := s.writeOps(r, true); err != nil {
		return err
	}
	r.allColumns()
	answer(ctx, func(dst []byte) []byte {
		dst = appendRow(dst, r.id, r.keyspace, r.columns, r.write.Rows)
		return append(appendOutcome(dst, &r.write), '}')
	})
	return nil
}

// writeOps writes the ops of r.write.
func (s *Server) writeOps(r *request, wantRows bool) error {
	r.countOps()
	w := &r.write
	if wantRows {
		w.Width = len(r.keyspace.Columns)
	}
	w.Rows = resized(w.Rows, len(w.Ops)*w.Width)
	if err := s.node().Write(r.keyspace, w); err != nil {
		return fmt.Errorf("cannot write: %w", err)
	}
	if len(w.Overflows) > 0 && len(w.Overflows) == len(w.Ops) {
		return overflowFault(w, r.keyspace, w.Overflows[0])
	}
	return nil
}

// withOps adds to an error of a write the ops that it concerns: the first op that needs a new row,
// or all ops if the outcome is unknown. So every 504 of a write names its ids in one form.
func (r *request) withOps(err error) error {
	w := &r.write
	var newRow *shard.NewRowError
	if errors.As(err, &newRow) {
		op := newRow.Op
		if r.takes&takesID != 0 {
			op = bodyOp
		}
		f, _ := faultOf(err)
		ks := r.keyspace
		if r.takes&takesOps != 0 {
			ks = keyspaceOf(w, nil, op)
		}
		f.field = opPath(op, rowMember(ks))
		why := "it has no row yet"
		if newRow.Wider {
			why = "it counts in a column that no row near it has yet"
		}
		f.message = f.field + ": " + why + ", and " + f.message
		return f
	}
	var partial *shard.PartialError
	if !errors.Is(err, shard.ErrOutcomeUnknown) || errors.As(err, &partial) {
		return err
	}
	partial = &shard.PartialError{Err: err}
	if r.takes&takesID != 0 {
		partial.Unknown = []uint64{r.id}
		return partial
	}
	for i := range w.Ops {
		partial.Unknown, partial.UnknownOps = append(partial.Unknown, w.Ops[i].ID), append(partial.UnknownOps, i)
	}
	return partial
}
