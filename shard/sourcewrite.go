package shard

import (
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/sourcesink"
)

// This file writes the sections of sources. Each section is a part of a Write, with an identity and
// an answer of its own.

// idOf returns the identity of the part for a shard.
func (w *Write) idOf(slot int) *RequestID {
	if w.sections != nil && w.sections[slot] != nil {
		return w.sections[slot]
	}
	return &w.ID
}

// addSections adds the parts of the shards that have a section but no op.
func (ps *parts) addSections(w *Write, groups []*shardReplica) {
	for s, id := range w.sections {
		if p := &ps.byShard[s]; id != nil && !p.used {
			p.writer.Reset(make([]byte, 0, 2*sectionSizeHint), groups[s].of(), id)
			p.used = true
		}
	}
}

// ofDeleted returns the answer to a section of a source that this node's catalog knows to be
// deleted, and nil for any other section. This node leads the shard, which may not have applied
// the deletion yet.
func (wr *writer) ofDeleted(section []byte, ops int) *propose.Proposal {
	if s := raftfsm.SourceOf(section); s == nil || s.Mode == dedup.SectionForget || !wr.catalog.View().SourceDeleted(wr.clusterHash, s.Source) {
		return nil
	}
	q := propose.Settled(nil)
	q.Ops, q.Result = ops, raftfsm.NewResult(0, 0, nil, nil, dedup.Moved)
	q.Result.SetPosition(dedup.PositionAnswer{Deleted: true})
	return q
}

// answerSections fills w.answers.
func (ps *parts) answerSections(w *Write) {
	if w.sections == nil {
		return
	}
	w.answers = make([]sourcesink.Answer, len(w.sections))
	for s, id := range w.sections {
		if id == nil {
			continue
		}
		p, a := &ps.byShard[s], &w.answers[s]
		if a.Err = p.err; a.Err != nil {
			continue
		}
		a.Outcome = p.proposal.Outcome()
		at, ok := p.proposal.Position()
		if a.At = at; !ok && id.IsSource() {
			a.Err = fmt.Errorf("%w: the answer has no position", wire.ErrBadMessage)
		}
	}
}
