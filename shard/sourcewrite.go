package shard

import (
	"fmt"

	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/shard/wire"
)

// This file is how sections of sources travel: as parts of a write, each with an identity
// of its own and an answer of its own.

// idOf returns the identity of the part for a shard.
func (w *Write) idOf(slot int) *RequestID {
	if w.sections != nil && w.sections[slot] != nil {
		return w.sections[slot]
	}
	return &w.ID
}

// addSections gives the shards that have a section and no op a part.
func (ps *parts) addSections(w *Write) {
	for s, id := range w.sections {
		if p := &ps.byShard[s]; id != nil && !p.used {
			p.writer.Reset(make([]byte, 0, 2*sectionSizeHint), id)
			p.used = true
		}
	}
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
