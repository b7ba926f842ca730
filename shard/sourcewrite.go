package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/shard/wire"
	"github.com/countd/countd/source/sink"
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

// ofSource reports whether the part is a section of a source, whose answer has a position.
func (f *forwarded) ofSource() bool {
	return len(f.section) > 0 && f.section[0] == codec.SectionSource
}

// positionAnswerMax bounds the bytes of a position in an answer.
const positionAnswerMax = 4 * binary.MaxVarintLen64

// appendPositionAnswer appends the position of the partition of a section: flags, and the
// checkpoint if there is one.
func appendPositionAnswer(dst []byte, q *propose.Proposal) []byte {
	at, _ := q.Position()
	flags := uint64(0)
	for bit, set := range [...]bool{at.Known, at.Closed, at.Deleted, at.Full} {
		if set {
			flags |= 1 << bit
		}
	}
	dst = binary.AppendUvarint(dst, flags)
	if at.Known {
		dst = binary.AppendUvarint(dst, uint64(at.Epoch))
		dst = binary.AppendUvarint(dst, at.At.Hi)
		dst = binary.AppendUvarint(dst, at.At.Lo)
	}
	return dst
}

func parsePositionAnswer(r *wire.Reader) (at dedup.PositionAnswer) {
	flags := r.UintTo(15)
	at.Known, at.Closed, at.Deleted, at.Full = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	if at.Known {
		at.Epoch = uint32(r.UintTo(1<<32 - 1))
		at.At = sink.Position{Hi: r.Uint(), Lo: r.Uint()}
	}
	return at
}

// sourceWriteTimeout bounds one write of a source if its caller does not.
const sourceWriteTimeout = 10 * time.Second

// nodeSources is the sourcesink.World of a node.
type nodeSources struct{ node *Node }

func (n nodeSources) View() *catalog.View               { return n.node.catalog.View() }
func (n nodeSources) Keyspaces() []*Keyspace            { return n.node.Keyspaces() }
func (n nodeSources) CatchUp(ctx context.Context) error { return n.node.CatchUp(ctx) }

func (n nodeSources) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error) {
	return n.node.Change(ctx, command)
}

func (n nodeSources) Send(ctx context.Context, s *sourcesink.Write) {
	w := &Write{Ops: s.Ops, Spaces: s.Spaces, In: s.In, sections: make([]*RequestID, len(s.Sections))}
	for slot, section := range s.Sections {
		if section != nil {
			id := dedup.BySource(*section)
			w.sections[slot], w.ID = &id, id
		}
	}
	w.Deadline = time.Now().Add(sourceWriteTimeout)
	if until, ok := ctx.Deadline(); ok {
		w.Deadline = until
	}
	var err error
	if err = ctx.Err(); err == nil {
		err = n.node.Write(s.Spaces[0], w)
	}
	if s.Answers = w.answers; s.Answers == nil { // nothing was proposed
		s.Answers = make([]sourcesink.Answer, len(s.Sections))
		for i := range s.Answers {
			s.Answers[i].Err = errors.Join(err, errNothingProposed)
		}
	}
	for _, o := range w.Overflows {
		s.Overflows = append(s.Overflows, o.Op)
	}
}

// errNothingProposed stands beside the error of a write that was refused as a whole.
var errNothingProposed = errors.New("nothing was written")
