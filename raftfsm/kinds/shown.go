package kinds

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
)

// Shown is the highest numbers of the catalog that the snapshot and the log of a shard show. A
// catalog that lacks its last entries must not give these numbers again.
type Shown struct {
	Columns int    // 1 more than the highest column of a row or op; columns of cold rows aside
	Attempt uint64 // the highest attempt to split the shard
	Split   uint64 // the highest attempt of an entry that splits the shard, if its term was current
	Epochs  map[dedup.PositionKey]uint32
}

// Snapshot adds what a stored snapshot of a shard of this kind shows. It verifies the checksums of
// all sections.
func (s *Shown) Snapshot(kind codec.Kind, state io.Reader) error {
	r := codec.NewStreamReader(state)
	head, err := r.Head(kind, codec.Whole)
	if err != nil && !errors.Is(err, codec.ErrRoute) {
		return err
	}
	s.Attempt = max(s.Attempt, head.Abandoned)
	var page engine.Page
	for {
		section, p, err := r.Next()
		if err != nil {
			return err
		}
		switch section {
		case codec.StreamRows:
			err = rows.ParseRows(p, &page, false)
			s.page(&page)
		case codec.StreamCold, codec.StreamShare:
			err = counters.ParseHiding(section, p, &page)
			s.page(&page)
		case codec.StreamPositions:
			var all []dedup.PositionRecord
			all, _, err = dedup.ParsePositions(p)
			for _, at := range all {
				s.epoch(at.PositionKey, at.Epoch)
			}
		case codec.StreamEnd:
			return r.AtEnd()
		}
		if err != nil {
			return err
		}
	}
}

func (s *Shown) page(p *engine.Page) {
	for i, v := range p.Counts {
		if v != 0 {
			s.Columns = max(s.Columns, i%p.Width+1)
		}
	}
}

func (s *Shown) epoch(of dedup.PositionKey, epoch uint32) {
	if s.Epochs == nil {
		s.Epochs = map[dedup.PositionKey]uint32{}
	}
	s.Epochs[of] = max(s.Epochs[of], epoch)
}

// Entry adds what a log entry of a term shows.
func (s *Shown) Entry(entry []byte, term uint64) error {
	kind, _, sections, err := codec.OpenEntry(entry)
	if err != nil {
		return err
	}
	for len(sections) > 0 {
		section, p, rest, err := codec.NextSection(sections)
		if err != nil {
			return err
		}
		whole := sections[:len(sections)-len(rest)]
		sections = rest
		switch section {
		case codec.SectionClock, codec.SectionAdopt:
			continue
		}
		route, p, ok := codec.ParseRoute(p)
		if !ok {
			return fmt.Errorf("%w: section kind %d without a route", codec.ErrEntry, section)
		}
		switch section {
		case codec.SectionSplit, codec.SectionAbandon:
			attempt, n := binary.Uvarint(p)
			of, _ := binary.Uvarint(p[max(n, 0):])
			s.Attempt = max(s.Attempt, attempt)
			if section == codec.SectionSplit && of == term {
				s.Split = max(s.Split, attempt)
			}
			continue
		}
		if at := raftfsm.SourceOf(whole); at != nil && at.Mode != dedup.SectionForget {
			s.epoch(at.PositionKey, at.Epoch)
		}
		if _, _, err := All.CheckSection(codec.Kind(kind), route, whole, (*shownOps)(s)); err != nil {
			return err
		}
	}
	return nil
}

// shownOps is a Shown as a raftfsm.Visitor.
type shownOps Shown

func (s *shownOps) Op(table raftfsm.Table, _ uint64, op *engine.Op) error {
	if table == rows.Counts {
		for i := range op.Cells {
			if c := &op.Cells[i]; !c.IsBound() {
				s.Columns = max(s.Columns, int(c.Column)+1)
			}
		}
	}
	return nil
}
func (s *shownOps) Body(uint64, any) error { return nil }

func (s *shownOps) Member(p members.Pair) error {
	s.Columns = max(s.Columns, int(p.Column)+1)
	return nil
}
