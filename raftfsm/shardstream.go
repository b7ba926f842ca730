package raftfsm

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// writeShard streams a shard's contents and its request memory to w. It names cold rows
// and does not read them.
func writeShard(w io.Writer, kind codec.Kind, route codec.Route, index uint64, held captured, once *dedup.View) error {
	s := codec.NewStreamWriter(w)
	if err := s.Head(kind, route, index, held.carried()); err != nil {
		return err
	}
	if err := held.write(s); err != nil {
		return err
	}
	if err := once.Write(s); err != nil {
		return err
	}
	return s.End(held.rows(), held.digest()+once.PositionsDigest())
}

// writeRows writes the rows of a table as sections of a kind. None of them is cold.
func writeRows(s *codec.StreamWriter, kind byte, table *engine.Snapshot) error {
	rows := rowSections{s: s, kind: kind}
	if err := table.Pages(rows.add); err != nil {
		return err
	}
	return rows.flush()
}

// readShard reads what writeShard wrote, with or without carried blocks, into empty
// contents. On an error the caller disposes of them.
func readShard(r io.Reader, kind codec.Kind, route codec.Route, held contents) (index uint64, once *dedup.Memory, err error) {
	once = dedup.New()
	take := func(s *codec.StreamReader, section, last byte, p []byte) error {
		if dedup.IsSection(section) {
			return once.Load(section, p)
		}
		return held.load(s, section, last, p)
	}
	s := codec.NewStreamReader(r)
	if index, err = s.Head(kind, route); err != nil {
		return 0, nil, err
	}
	err = readSections(s, take, func(told streamTotals) (streamTotals, error) {
		told.digest -= once.PositionsDigest()
		err := held.loaded(told)
		return streamTotals{held.stats().Rows, held.digest() + once.PositionsDigest()}, err
	})
	return index, once, err
}

// streamTotals is what the end of a stream states.
type streamTotals struct{ rows, digest uint64 }

// readSections reads a stream behind its head to its end and calls take with each section
// before the end. The request memory must follow all other sections. A section of cold rows
// counts as one of rows for the order. found returns the totals that the end must
// state, given those that it does state.
func readSections(s *codec.StreamReader, take func(s *codec.StreamReader, section, last byte, p []byte) error,
	found func(told streamTotals) (streamTotals, error)) error {
	for last := byte(codec.StreamHead); ; {
		section, payload, err := s.Next()
		if err != nil {
			return err
		}
		if section == codec.StreamEnd && dedup.Ends(last) {
			told := streamTotals{}
			if len(payload) >= 16 {
				told = streamTotals{binary.LittleEndian.Uint64(payload), binary.LittleEndian.Uint64(payload[8:])}
			}
			totals, err := found(told)
			if err != nil {
				return err
			}
			return s.End(payload, totals.rows, totals.digest)
		}
		if !dedup.SectionFollows(section, last) {
			return misplaced(section, last)
		}
		if err := s.Allows(section); err != nil {
			return err
		}
		if err := take(s, section, last, payload); err != nil {
			return err
		}
		switch last = section; section {
		case codec.StreamCold, codec.StreamCarried:
			last = codec.StreamRows
		case codec.StreamMembers, codec.StreamCarriedMembers:
			last = codec.StreamHead
		}
	}
}

// misplaced returns the error for a section that must not follow another.
func misplaced(section, last byte) error {
	return fmt.Errorf("%w: section kind %d behind %d", codec.ErrSnapshot, section, last)
}
