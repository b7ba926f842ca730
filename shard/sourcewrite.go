package shard

import (
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// This file writes the sections of sources. Each section is a part of a Write with its own
// identity and answer.

// fits returns an error for sections that were chosen by another layout than that of the parts.
func (ps *parts) fits(w *Write) error {
	if w.Sections != nil && len(w.Sections) != len(ps.byShard) {
		return fmt.Errorf("%w: %d sections for %d shards", errs.ErrOtherLayout, len(w.Sections), len(ps.byShard))
	}
	for i, route := range w.Routes {
		if !route.Equal(ps.spaces[i].route) {
			return fmt.Errorf("%w: keyspace %s", errs.ErrOtherLayout, ps.spaces[i].ks.Name)
		}
	}
	return nil
}

// sectionOf returns the identity of the section at slot, or nil.
func (w *Write) sectionOf(slot int) *dedup.RequestID {
	if slot < len(w.Sections) {
		return w.Sections[slot]
	}
	return nil
}

// ofDeleted returns the answer to a section if this node's catalog shows that the section's source
// was deleted, and nil otherwise. This node leads the shard, but the shard may not have applied the
// deletion yet.
func (wr *writer) ofDeleted(section []byte, ops int) *propose.Proposal {
	if s := raftfsm.SourceOf(section); s == nil || s.Mode == dedup.SectionForget || !wr.catalog.View().SourceDeleted(wr.clusterHash, s.Source) {
		return nil
	}
	q := propose.Settled(nil)
	q.Ops, q.Result = ops, raftfsm.NewResult(0, 0, nil, nil, dedup.Moved)
	q.Result.SetPosition(dedup.PositionAnswer{Deleted: true})
	return q
}

func (ps *parts) answerSections(w *Write) {
	if w.Sections == nil {
		return
	}
	w.Answers = make([]Answer, len(w.Sections))
	for s, id := range w.Sections {
		if id == nil {
			continue
		}
		p, a := &ps.byShard[s], &w.Answers[s]
		if a.Err = p.err; a.Err != nil {
			if p.modulus > 0 || p.abandoned {
				a.Err = fmt.Errorf("%w: %w", errs.ErrOtherLayout, a.Err)
			}
			continue
		}
		a.Outcome = p.proposal.Outcome()
		at, ok := p.proposal.Position()
		if a.At = at; !ok && id.IsSource() {
			a.Err = fmt.Errorf("%w: the answer has no position", wire.ErrBadMessage)
		}
	}
}
