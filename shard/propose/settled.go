package propose

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// AppendCuts appends the cuts of a part. firstOp is the index of the part's first op in its entry.
func AppendCuts(dst []byte, cuts []engine.Cut, firstOp int) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(cuts)))
	for _, c := range cuts {
		dst = binary.AppendUvarint(dst, uint64(c.Op-firstOp))
		dst = binary.AppendUvarint(dst, uint64(c.Column))
		dst = binary.AppendVarint(dst, c.Added)
	}
	return dst
}

// ParseCuts parses the output of AppendCuts for a part with the given number of ops. The cuts must
// ascend by op.
func ParseCuts(r *wire.Reader, ops int) []engine.Cut {
	var cuts []engine.Cut
	for range r.Count(3) {
		c := engine.Cut{Op: int(r.UintTo(uint64(ops))), Column: uint8(r.UintTo(engine.ColumnsMax - 1)), Added: r.Int()}
		if c.Op == ops || len(cuts) > 0 && c.Op < cuts[len(cuts)-1].Op {
			r.Fail(fmt.Sprintf("a cut of op %d", c.Op))
			return nil
		}
		cuts = append(cuts, c)
	}
	return cuts
}

// AppendChanged appends the indexes of a part's ops that changed a set, each as the difference to
// the previous one.
func AppendChanged(dst []byte, changed []int, first int) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(changed)))
	next := first
	for _, op := range changed {
		dst = binary.AppendUvarint(dst, uint64(op-next))
		next = op + 1
	}
	return dst
}

// ParseChanged parses the output of AppendChanged for a part with the given number of ops.
func ParseChanged(r *wire.Reader, ops int) []int {
	changed, next := make([]int, r.Count(1)), 0
	for i := range changed {
		if next += int(r.UintTo(uint64(ops))); next >= ops {
			r.Fail(fmt.Sprintf("a change by op %d", next))
			return nil
		}
		changed[i] = next
		next++
	}
	return changed
}

// ParseOutcomes parses the outcomes of parts. If any outcome is invalid, ParseOutcomes returns an
// error and no outcome, because the other outcomes may be wrong too.
func ParseOutcomes(answer []byte, parts []*ForwardedPart) ([]*Proposal, error) {
	r := wire.Reader{Rest: answer}
	settled := make([]*Proposal, len(parts))
	for i, f := range parts {
		q := ParseOutcome(&r, f.Width)
		if f.Judges && q.Err == nil {
			q.Result.SetUse(ParseUse(&r))
		} else if f.OfSource() && q.Err == nil {
			q.Result.SetPosition(ParsePosition(&r))
		}
		if q.Err == nil && q.Outcome() == dedup.Moved && !f.OfSource() {
			r.Fail("the outcome of a source")
		}
		if q.Err == nil && q.Ops != f.Ops {
			r.Fail(fmt.Sprintf("%d rows for %d ops", q.Ops, f.Ops))
		}
		settled[i] = q
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	return settled, nil
}

// fateOfPart converts an error of CodeOther to ErrOutcomeUnknown.
func fateOfPart(err error) error {
	if rpc.CodeOf(err) == rpc.CodeOther {
		return fmt.Errorf("%w: %w", errs.ErrOutcomeUnknown, err)
	}
	return err
}

// ParseOutcome parses the output of AppendOutcome. The returned proposal has First 0.
func ParseOutcome(r *wire.Reader, width int) *Proposal {
	if err := rpc.ReadError(r); err != nil {
		return Settled(fateOfPart(err))
	}
	q := Settled(nil)
	q.Width = width
	index := r.Uint()
	outcome := dedup.Outcome(r.UintTo(uint64(dedup.Misrouted)))
	q.Ops = int(r.UintTo(QueueOpsMax))
	if q.Ops*width > len(r.Rest) {
		r.Fail(fmt.Sprintf("%d rows", q.Ops))
		q.Ops = 0
	}
	rows := make([]int64, q.Ops*width)
	for i := range rows {
		rows[i] = r.Int()
	}
	var refused []engine.Overflow
	for range r.Count(2) {
		op, why := r.UintTo(uint64(q.Ops)), r.UintTo(engine.ColumnsMax*uint64(column.Refusals)-1)
		refused = append(refused, engine.Overflow{Op: int(op), Column: uint8(why % engine.ColumnsMax), Why: column.Refusal(why / engine.ColumnsMax)})
	}
	q.Result = raftfsm.NewResult(index, width, rows, refused, outcome)
	q.Result.Cuts, q.Result.Changed = ParseCuts(r, q.Ops), ParseChanged(r, q.Ops)
	return q
}

// AppendOutcome appends the outcome of a part: an error, or
//
//	index | outcome | ops | rows (varints) | refused ops | cuts | ops that changed a set of members
//
// Each list follows its length, and other numbers are uvarints. The use of a key or the position
// of a source follows, if the part has one.
func AppendOutcome(dst []byte, q *Proposal, err error) []byte {
	if dst = rpc.AppendError(dst, err); err != nil {
		return dst
	}
	dst = binary.AppendUvarint(dst, q.Result.Index)
	dst = binary.AppendUvarint(dst, uint64(q.Outcome()))
	dst = binary.AppendUvarint(dst, uint64(q.Ops))
	if q.Width > 0 {
		for i := range q.Ops {
			for _, count := range q.Row(i, q.Width) {
				dst = binary.AppendVarint(dst, count)
			}
		}
	}
	refused := q.Refused()
	dst = binary.AppendUvarint(dst, uint64(len(refused)))
	for _, o := range refused {
		dst = binary.AppendUvarint(dst, uint64(o.Op-q.First))
		dst = binary.AppendUvarint(dst, uint64(o.Why)*engine.ColumnsMax+uint64(o.Column))
	}
	return AppendChanged(AppendCuts(dst, q.Cuts(), q.First), q.Changed(), q.First)
}
