package api

import (
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/client"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard"
)

// The functions below append JSON to dst and allocate only to grow it. Names of columns need no
// escaping, because they have only lower-case letters, digits and underscores.

// appendRow appends {"id":"…","counts":{… for the id in the path. It omits the closing brace, so
// that a caller may append more.
func appendRow(dst []byte, texts *names.Slots, id uint64, ks *shard.Keyspace, row []int64) []byte {
	dst = texts.Append(appendRowMember(dst, ks), pathSlot, id)
	return appendWholeRow(append(dst, `,"counts":`...), ks, row)
}

// appendRowMember appends {"id": or {"user": for a user.
func appendRowMember(dst []byte, ks *shard.Keyspace) []byte {
	return append(append(append(dst, `{"`...), rowMember(ks)...), `":`...)
}

// appendColumns appends {"column":count,…}.
func appendColumns(dst []byte, ks *shard.Keyspace, columns []uint8, row []int64) []byte {
	dst = append(dst, '{')
	for i, column := range columns {
		dst = appendNumber(comma(dst, i), ks.Columns[column], row[column])
	}
	return append(dst, '}')
}

// appendWholeRow appends {"column":count,…} of all columns that were not dropped.
func appendWholeRow(dst []byte, ks *shard.Keyspace, row []int64) []byte {
	dst = append(dst, '{')
	n := 0
	for i, name := range ks.Columns {
		if name != "" {
			dst = appendNumber(comma(dst, n), name, row[i])
			n++
		}
	}
	return append(dst, '}')
}

// listed are the ids of an answer with rows. Their texts are those of the request's list, or else
// a result of Slots.Shown.
type listed struct {
	ids   []uint64
	sent  *names.Slots
	texts names.Shown
}

func (l *listed) append(dst []byte, i int) []byte {
	if l.sent != nil {
		return l.sent.Append(dst, listSlot+i, l.ids[i])
	}
	return l.texts.AppendJSON(dst, i, l.ids[i])
}

// appendRows appends {"results":[…] with a row for each id, without the closing brace. If inSets,
// a result of readSets, is not empty, each row also states which sets have the member.
func appendRows(dst []byte, of *listed, ks *shard.Keyspace, columns []uint8, rows []int64, inSets []bool) []byte {
	width := len(ks.Columns)
	dst = append(dst, `{"results":[`...)
	for i := range of.ids {
		dst = append(of.append(appendRowMember(comma(dst, i), ks), i), `,"counts":`...)
		dst = appendColumns(dst, ks, columns, rows[i*width:(i+1)*width])
		if len(inSets) > 0 {
			dst = appendIn(dst, ks, columns, inSets, i, len(of.ids))
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// appendIn appends ,"member":{column:bool,…}: whether the member is in each column's set of row i
// of n. inSets is a result of readSets.
func appendIn(dst []byte, ks *shard.Keyspace, columns []uint8, inSets []bool, i, n int) []byte {
	dst = append(dst, `,"member":{`...)
	for j, column := range columns {
		dst = appendBool(comma(dst, j), ks.Columns[column], inSets[j*n+i])
	}
	return append(dst, '}')
}

// appendResults appends the answer of a write that returns rows. A write to several keyspaces ignores
// ks.
func appendResults(dst []byte, w *shard.Write, ops counters.Ops, texts *names.Slots, ks *shard.Keyspace) []byte {
	dst = append(dst, `{"results":[`...)
	refused, cuts, changed := w.Overflows, w.Cuts, w.Changed
	for i := range ops {
		dst = comma(dst, i)
		if len(refused) > 0 && refused[0].Op == i {
			dst = appendRefused(dst, w, ops, texts, ks, refused[0])
			refused = refused[1:]
			continue
		}
		of, row := keyspaceOf(w, ks, i), w.Rows[i*w.Width:(i+1)*w.Width]
		dst = appendOp(dst, ops, texts, of, i)
		if op := &ops[i]; op.OfMember() {
			_, cuts = cutsOf(i, cuts) // skip the op's cuts, because the answer has the resulting count
			did := len(changed) > 0 && changed[0] == i
			if did {
				changed = changed[1:]
			}
			dst = appendBool(append(dst, ','), "changed", did)
			dst = append(appendNumber(append(dst, ','), "count", row[op.Cells[0].Column]), '}')
			continue
		}
		dst, cuts = appendAdded(appendWholeRow(append(dst, `,"counts":`...), of, row), of, i, cuts)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if len(w.Overflows) > 0 {
		dst = appendNumber(append(dst, ','), "failed", int64(len(w.Overflows)))
	}
	return append(appendOutcome(appendUnknown(dst, w, texts), w), '}')
}

// appendOp appends {"id":"…" of the ith op, with "user" instead of "id" for a user, and with
// ,"member":"…" for an op with a member.
func appendOp(dst []byte, ops counters.Ops, texts *names.Slots, ks *shard.Keyspace, i int) []byte {
	op := &ops[i]
	dst = texts.Append(appendRowMember(dst, ks), opSlot+2*i, op.ID)
	if op.OfMember() {
		dst = texts.Append(append(dst, `,"member":`...), memberSlot+2*i, uint64(op.Cells[0].Value))
	}
	return dst
}

// cutsOf splits cuts into the cuts of an op, which come first, and those of later ops.
func cutsOf(op int, cuts []engine.Cut) (own, later []engine.Cut) {
	n := 0
	for n < len(cuts) && cuts[n].Op == op {
		n++
	}
	return cuts[:n], cuts[n:]
}

// appendAdded appends ,"added":{column:delta,…} if bounds changed deltas of an op. cuts begins with
// the cuts of this op; appendAdded returns the cuts of later ops.
func appendAdded(dst []byte, ks *shard.Keyspace, op int, cuts []engine.Cut) ([]byte, []engine.Cut) {
	cuts, later := cutsOf(op, cuts)
	if len(cuts) == 0 {
		return dst, later
	}
	dst = append(dst, `,"added":{`...)
	for n, cut := range cuts {
		dst = appendNumber(comma(dst, n), ks.Columns[cut.Column], cut.Added)
	}
	return append(dst, '}'), later
}

// appendApplied appends the answer of a write that returns no rows. It still lists refused ops,
// because the client could not identify them otherwise. Ops of unknown outcome do not count as
// applied.
func appendApplied(dst []byte, w *shard.Write, ops counters.Ops, texts *names.Slots, ks *shard.Keyspace) []byte {
	dst = appendNumber(append(dst, '{'), "applied", int64(len(ops)-len(w.Overflows)-len(w.Unknown)))
	if len(w.Overflows) > 0 {
		dst = append(appendNumber(append(dst, ','), "failed", int64(len(w.Overflows))), `,"errors":[`...)
		for i, overflow := range w.Overflows {
			dst = appendRefused(comma(dst, i), w, ops, texts, ks, overflow)
		}
		dst = append(dst, ']')
	}
	return append(appendOutcome(appendUnknown(dst, w, texts), w), '}')
}

// appendUnknown appends the ids of those ops of a repeated request whose outcome the shard no
// longer remembers.
func appendUnknown(dst []byte, w *shard.Write, texts *names.Slots) []byte {
	if len(w.Unknown) == 0 {
		return dst
	}
	dst = append(dst, `,"unknown":[`...)
	for i, op := range w.Unknown {
		dst = texts.Append(comma(dst, i), opSlot+2*op, w.Ops.ID(op))
	}
	return append(dst, ']')
}

// appendOutcome appends the JSON members that the answer of every write has.
func appendOutcome(dst []byte, w *shard.Write) []byte {
	dst = append(appendBool(append(dst, ','), "duplicate", w.Duplicate), `,"token":"`...)
	return append(w.Token.AppendText(dst), '"')
}

// appendRefused appends {"id":"…","error":{…}} for an op that its shard refused.
func appendRefused(dst []byte, w *shard.Write, ops counters.Ops, texts *names.Slots, ks *shard.Keyspace, overflow engine.Overflow) []byte {
	ks = keyspaceOf(w, ks, overflow.Op)
	f := overflowFault(ops, ks, overflow)
	dst = appendOp(dst, ops, texts, ks, overflow.Op)
	return append(appendError(append(dst, `,"error":`...), f.code, f.message, f.field), '}')
}

// answerWrite answers a write. The function members appends the JSON members of this call. The
// members of every write's answer follow.
func answerWrite(ctx *fasthttp.RequestCtx, w *shard.Write, members func(dst []byte) []byte) {
	answer(ctx, func(dst []byte) []byte { return append(appendOutcome(members(append(dst, '{')), w), '}') })
}

// written returns the fields that the answer of every write has.
func (r *request) written() client.Written {
	return client.Written{Duplicate: r.write.Duplicate, Token: string(r.write.Token.AppendText(nil))}
}

// resized returns a slice of n values with any content. It reuses the memory of values if
// possible.
func resized(values []int64, n int) []int64 {
	return slices.Grow(values[:0], n)[:n]
}

// rowsBytes estimates the bytes of rows of small counts in an answer.
func rowsBytes(rows, columns int) int { return rows * (40 + 12*columns) }
