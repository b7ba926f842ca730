package counters

import (
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rankings"
	"github.com/countd/countd/raftfsm/rows"
)

// Kind implements raftfsm.Kind for counters.
type Kind struct{}

func (Kind) Number() codec.Kind                   { return codec.KindCounters }
func (Kind) New(p raftfsm.Places) raftfsm.Machine { return New(p) }
func (Kind) Traits() raftfsm.Traits {
	return raftfsm.Traits{Sources: true, ColdRows: true, Columns: true}
}

// Check implements raftfsm.Kind. It passes each *PostOp to the visitor's Body.
func (Kind) Check(_ *dedup.RequestID, p []byte, v raftfsm.Visitor) (ops int, clocked bool, err error) {
	var b batch
	if ops, err = raftfsm.ParseOps(p, b.op); err == nil && v != nil {
		err = b.visit(v)
	}
	return ops, len(b.members)+len(b.outbox) > 0, err
}

func (b *batch) visit(v raftfsm.Visitor) error {
	if err := b.Visit(v, func(int) raftfsm.Table { return rows.Counts }); err != nil {
		return err
	}
	for i := range b.outbox {
		o := &b.outbox[i]
		if o.Kind == ClearOutboxes {
			continue
		}
		if err := v.Body(b.Ops[o.op].ID, &o.PostOp); err != nil {
			return err
		}
	}
	for i := range b.members {
		if o := &b.members[i]; o.ofPair() {
			if err := v.Member(o.pair); err != nil {
				return err
			}
		}
	}
	return nil
}

// Walk implements raftfsm.Kind. It passes each *Outbox to SeeBody, with the author as the key.
func (Kind) Walk(see *raftfsm.SnapshotVisitor, facts *raftfsm.SnapshotFacts) raftfsm.Walk {
	return (&walk{Walk: rows.Walk{See: see, Facts: facts}}).section
}

type walk struct {
	rows.Walk
	base  engine.Page // cold rows of part
	part  coldPart
	boxes outboxReader
}

func (w *walk) section(s *codec.StreamReader, kind byte, p []byte) error {
	switch kind {
	case codec.StreamOutboxes:
		return w.boxes.section(p, func(key uint64, box *Outbox) error { return w.See.SeeBody(key, box) })
	case codec.StreamCarriedMembers:
		return w.members(s, p)
	case codec.StreamMembers:
		return fmt.Errorf("%w: it names members, which are on another disk", codec.ErrSnapshot)
	case codec.StreamRows:
		return w.Section(rows.Counts, p)
	case codec.StreamCold, codec.StreamShare:
		return fmt.Errorf("%w: it names cold rows, which are another file's", codec.ErrSnapshot)
	case codec.StreamCarried, codec.StreamCarriedShare:
		return w.cold(s, kind, p)
	case codec.StreamHot:
		return rankings.CheckHot(p)
	}
	return raftfsm.Misplaced(kind)
}

func (w *walk) members(s *codec.StreamReader, p []byte) error {
	at, found, blocks, err := parseCarriedSets(p)
	if err != nil {
		return err
	}
	w.Facts.Later = at != found
	sum, gone := members.State{Index: found.Index, Stamp: found.Stamp}, members.State{}
	dead := map[uint64]members.Stamp{}
	err = eachMemberBlock(s, blocks, func(b []byte) error {
		if err := members.EachDead(b, func(row uint64, to members.Stamp) { dead[row] = to }); err != nil {
			return err
		}
		return members.EachPair(b, func(p members.Pair, at members.Stamp) error {
			if sum.Add(p, at); at <= dead[p.Row] {
				gone.Add(p, at)
				return nil
			}
			if w.See.Members == nil {
				return nil
			}
			return w.See.Members(p, at)
		})
	})
	w.Facts.Gone = gone.Digest
	if err == nil && sum != found {
		err = fmt.Errorf("%w: %d members, digest %016x, want %d, %016x", codec.ErrSnapshot, sum.Pairs, sum.Digest, found.Pairs, found.Digest)
	}
	return err
}

// cold visits a part of cold rows with its blocks.
func (w *walk) cold(s *codec.StreamReader, kind byte, p []byte) error {
	if err := w.part.parse(kind, p); err != nil {
		return err
	}
	if err := w.part.readBlocks(s, &w.base); err != nil {
		return err
	}
	if w.Page.Merge(&w.part.hiding, &w.base); len(w.Page.IDs) == 0 {
		return nil
	}
	return w.Visit(rows.Counts)
}

// ParseQuery implements raftfsm.Kind.
func (Kind) ParseQuery(number byte, r *wire.Reader) raftfsm.Query {
	switch number {
	case 2:
		return parsePostsQuery(r)
	case 3:
		return parseContainsQuery(r)
	case 4:
		return parseMembersQuery(r)
	case 5:
		return parseRowsOfMemberQuery(r)
	case 6:
		return parseHotQuery(r)
	case 7:
		return parseTopQuery(r)
	}
	return rows.ParseQuery(number, r)
}
