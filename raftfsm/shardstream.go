package raftfsm

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/countd/countd/engine"
)

// writeShard streams what a shard holds to w, and what it remembers of requests. It
// names cold rows and reads none.
func writeShard(w io.Writer, kind Kind, index uint64, held captured, once *onceView) error {
	s := newStreamWriter(w)
	if err := s.head(kind, index, held.carried()); err != nil {
		return err
	}
	if err := held.write(s); err != nil {
		return err
	}
	if err := once.write(s); err != nil {
		return err
	}
	return s.end(held.rows(), held.digest())
}

// writeRows writes the rows of a table as sections of a kind. None is cold.
func writeRows(s *streamWriter, kind byte, table *engine.Snapshot) error {
	rows := rowSections{s: s, kind: kind}
	if err := table.Pages(rows.add); err != nil {
		return err
	}
	return rows.flush()
}

// readShard reads what writeShard wrote, carried or not, to the end of r, into empty
// contents. Of these its caller disposes on an error.
func readShard(r io.Reader, kind Kind, held contents) (index uint64, once *once, err error) {
	once = newOnce()
	take := func(s *streamReader, section, last byte, p []byte) error {
		if isOnce(section) {
			return once.load(section, p)
		}
		return held.load(s, section, last, p)
	}
	err = readSections(r, kind, &index, take, func(told streamTotals) (streamTotals, error) {
		err := held.loaded(told)
		return streamTotals{held.stats().Rows, held.digest()}, err
	})
	return index, once, err
}

// streamTotals are what the end of a stream says of it.
type streamTotals struct{ rows, digest uint64 }

// readSections reads a stream to its end and calls take with each section between
// head and end, the memory of requests in its order behind all others. Cold rows
// stand for rows as the section before. found returns what there should be at the
// end, given what is told there.
func readSections(r io.Reader, kind Kind, index *uint64, take func(s *streamReader, section, last byte, p []byte) error,
	found func(told streamTotals) (streamTotals, error)) (err error) {
	s := newStreamReader(r)
	if *index, err = s.head(kind); err != nil {
		return err
	}
	for last := byte(streamHead); ; {
		section, payload, err := s.next()
		if err != nil {
			return err
		}
		if section == streamEnd && last == streamKeys {
			told := streamTotals{}
			if len(payload) >= 16 {
				told = streamTotals{binary.LittleEndian.Uint64(payload), binary.LittleEndian.Uint64(payload[8:])}
			}
			totals, err := found(told)
			if err != nil {
				return err
			}
			return s.end(payload, totals.rows, totals.digest)
		}
		if !inPlace(section, last) {
			return misplaced(section, last)
		}
		if err := s.allows(section); err != nil {
			return err
		}
		if err := take(s, section, last, payload); err != nil {
			return err
		}
		if last = section; section == streamCold || section == streamCarried {
			last = streamRows
		}
	}
}

// misplaced refuses a section behind one that it does not follow.
func misplaced(section, last byte) error {
	return fmt.Errorf("%w: section kind %d behind %d", errSnapshot, section, last)
}
