package raftfsm

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/countd/countd/engine"
)

// SnapshotFacts are what a snapshot of counters says of itself.
type SnapshotFacts struct {
	Index  uint64 // of the last entry in it
	Rows   uint64
	Digest uint64 // of the rows; a table that they make has it
}

// VisitSnapshot reads a snapshot of counters, one that names no cold rows or carries
// them, to its end, verifies its checksums
// and its shape, and calls visit, unless that is nil, with each page of rows in
// ascending order of keys. visit does not keep the page. The digest is the
// stream's word: only a table of the rows can tell whether it holds. An error of
// visit is returned as it is; any other refuses the stream.
func VisitSnapshot(r io.Reader, visit func(*engine.Page) error) (SnapshotFacts, error) {
	s := &streamReader{r: bufio.NewReaderSize(r, streamBufferSize)}
	var facts SnapshotFacts
	var err error
	if facts.Index, err = s.head(entryCounters); err != nil {
		return facts, err
	}
	v := visitor{visit: visit}
	for last := byte(streamRows); ; {
		kind, payload, err := s.next()
		if err != nil {
			return facts, err
		}
		if kind == streamEnd && last == streamKeys {
			if len(payload) < 16 {
				return facts, fmt.Errorf("%w: end of %d bytes", errSnapshot, len(payload))
			}
			facts.Rows, facts.Digest = v.rows, binary.LittleEndian.Uint64(payload[8:])
			return facts, s.end(payload, facts.Rows, facts.Digest)
		}
		if !follows(kind, last) {
			return facts, fmt.Errorf("%w: section kind %d behind %d", errSnapshot, kind, last)
		}
		if err := s.allows(kind); err != nil {
			return facts, err
		}
		switch last = kind; kind {
		case streamRows:
			err = v.section(payload)
		case streamCarried:
			last = streamRows
			err = v.carried(s, payload)
		case streamCold:
			err = fmt.Errorf("%w: it names cold rows, which are another file's", errSnapshot)
		}
		if err != nil {
			return facts, err
		}
	}
}

// visitor goes through the rows of a snapshot.
type visitor struct {
	visit func(*engine.Page) error
	page  engine.Page
	base  engine.Page
	part  coldPart
	rows  uint64
	last  uint64 // key of the row before
}

func (v *visitor) section(payload []byte) error {
	if err := parseRows(payload, &v.page, false); err != nil {
		return err
	}
	return v.rowsOf(&v.page)
}

// carried visits a part with its blocks.
func (v *visitor) carried(s *streamReader, payload []byte) error {
	if err := v.part.parse(payload); err != nil {
		return err
	}
	if err := v.part.readBlocks(s, &v.base); err != nil {
		return err
	}
	if v.page.Merge(&v.part.over, &v.base); len(v.page.IDs) == 0 {
		return nil
	}
	return v.rowsOf(&v.page)
}

func (v *visitor) rowsOf(p *engine.Page) error {
	if first := p.IDs[0]; v.rows > 0 && first <= v.last {
		return fmt.Errorf("%w: key %d behind %d", errSnapshot, first, v.last)
	}
	v.rows += uint64(len(p.IDs))
	v.last = p.IDs[len(p.IDs)-1]
	if v.visit == nil {
		return nil
	}
	return v.visit(p)
}
