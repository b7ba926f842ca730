package shard

import (
	"cmp"
	"errors"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
)

// This file joins the answers of a write's shards.

// gather fills the answer of the write from the results of the shards that answered. It returns
// the error of the write.
func (ps *parts) gather(w *Write) error {
	ps.overflows(w)
	ps.answerSections(w)
	err := ps.failure(w)
	w.Duplicate, w.Repeated = err == nil && ps.repeated(w), err == nil
	for s := range ps.byShard {
		p := &ps.byShard[s]
		if !p.answered() {
			continue
		}
		w.Repeated = w.Repeated && p.proposal.Outcome() != dedup.Applied
		w.Token.At = append(w.Token.At, GroupIndex{Group: p.group.number, Index: p.proposal.Result.Index})
		for i, op := range p.ops {
			if w.Width > 0 {
				copy(w.Rows[op*w.Width:(op+1)*w.Width], p.proposal.Row(i, w.Width))
			}
		}
		for _, op := range p.proposal.Changed() {
			w.Changed = append(w.Changed, p.ops[op-p.proposal.First])
		}
		for _, c := range p.proposal.Cuts() {
			c.Op = p.ops[c.Op-p.proposal.First]
			w.Cuts = append(w.Cuts, c)
		}
	}
	slices.Sort(w.Changed)
	slices.SortStableFunc(w.Cuts, func(a, b engine.Cut) int { return cmp.Compare(a.Op, b.Op) })
	return err
}

// repeated returns Write.Duplicate, whose comment has the rules.
func (ps *parts) repeated(w *Write) bool {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.answered() && p.unknown && p.proposal.Outcome() != dedup.Applied {
			return true
		}
	}
	if w.ID.Keyed() {
		return ps.byShard[ps.judge].proposal.Outcome() != dedup.Applied
	}
	for s := range ps.byShard {
		if p := &ps.byShard[s]; len(p.ops) > 0 && p.proposal.Outcome() == dedup.Applied {
			return false
		}
	}
	return true
}

// answered reports whether the part has ops and its shard has answered without an error.
func (p *part) answered() bool { return len(p.ops) > 0 && p.err == nil }

// wasRefused reports whether the part is a repeat, and all its ops overflowed the first time.
// wasPartlyRefused reports whether only some of them did. The group does not remember which ones.
func (p *part) wasRefused() bool       { return p.proposal.Outcome() == dedup.Refused }
func (p *part) wasPartlyRefused() bool { return p.proposal.Outcome() == dedup.PartlyRefused }

// overflows fills w.Overflows with the refused ops of the parts that answered, and w.Unknown with
// the ops that may have been refused. Both are in the order of the write.
func (ps *parts) overflows(w *Write) {
	for s := range ps.byShard {
		p := &ps.byShard[s]
		if !p.answered() || !p.wasRefused() && !p.wasPartlyRefused() && len(p.proposal.Result.Overflows) == 0 {
			continue
		}
		from := 0
		for at, i := range p.ops {
			refused, is := p.proposal.Overflow(at, &from)
			if p.wasRefused() || p.wasPartlyRefused() {
				refused, is = w.Ops.Refusable(i, p.proposal.Row(at, w.Width), ps.spaces[p.space].ks.ByNumber)
			}
			if refused.Op = i; is && p.wasPartlyRefused() {
				w.Unknown = append(w.Unknown, i)
			} else if is {
				w.Overflows = append(w.Overflows, refused)
			}
		}
	}
	slices.Sort(w.Unknown)
	slices.SortFunc(w.Overflows, func(a, b engine.Overflow) int { return cmp.Compare(a.Op, b.Op) })
}

// failure returns nil if every shard answered. If some op was applied, it returns a PartialError.
// It also returns one if several shards have ops and the outcome of some op is unknown. In all
// other cases it returns the worst error of the shards.
func (ps *parts) failure(w *Write) error {
	var worst error
	touched := 0
	for s := range ps.byShard {
		p := &ps.byShard[s]
		if len(p.ops) == 0 {
			continue
		}
		touched++
		if p.err != nil && (worst == nil || errors.Is(p.err, errs.ErrOutcomeUnknown)) {
			worst = p.err
		}
	}
	if worst == nil {
		return nil
	}
	partial := ps.partial(w, worst)
	if len(partial.Applied) == 0 && (len(partial.Unknown) == 0 || touched == 1) {
		return worst
	}
	return partial
}

// partial returns a PartialError with the applied ops and the ops of unknown outcome.
func (ps *parts) partial(w *Write, worst error) *PartialError {
	e, refused, unknown := &PartialError{Err: worst, ByOp: make([]error, w.len())}, w.Overflows, w.Unknown
	of := make([]*part, w.len())
	for s := range ps.byShard {
		p := &ps.byShard[s]
		for _, i := range p.ops {
			of[i], e.ByOp[i] = p, p.err
		}
	}
	for i, p := range of {
		switch {
		case len(refused) > 0 && refused[0].Op == i:
			refused = refused[1:]
		case len(unknown) > 0 && unknown[0] == i:
			unknown = unknown[1:]
			e.Unknown, e.UnknownOps = append(e.Unknown, w.Ops.ID(i)), append(e.UnknownOps, i)
		case p.err == nil && !p.wasRefused():
			e.Applied, e.AppliedOps = append(e.Applied, w.Ops.ID(i)), append(e.AppliedOps, i)
		case errors.Is(p.err, errs.ErrOutcomeUnknown):
			e.Unknown, e.UnknownOps = append(e.Unknown, w.Ops.ID(i)), append(e.UnknownOps, i)
		}
	}
	return e
}
