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

// VisitSnapshot reads a snapshot of counters to its end, verifies its checksums
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
		if last = kind; kind == streamRows {
			if err := v.section(payload); err != nil {
				return facts, err
			}
		}
	}
}

// visitor goes through the rows of a snapshot.
type visitor struct {
	visit func(*engine.Page) error
	page  engine.Page
	rows  uint64
	last  uint64 // key of the row before
}

func (v *visitor) section(payload []byte) error {
	if err := parseRows(payload, &v.page); err != nil {
		return err
	}
	if first := v.page.IDs[0]; v.rows > 0 && first <= v.last {
		return fmt.Errorf("%w: key %d behind %d", errSnapshot, first, v.last)
	}
	v.rows += uint64(len(v.page.IDs))
	v.last = v.page.IDs[len(v.page.IDs)-1]
	if v.visit == nil {
		return nil
	}
	return v.visit(&v.page)
}
