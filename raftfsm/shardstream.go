package raftfsm

import (
	"fmt"
	"io"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// writeShard streams a shard's contents and its request memory to w. It names cold rows
// and does not read them.
func writeShard(w io.Writer, kind codec.Kind, head codec.Head, held Captured, once *dedup.View) error {
	s := codec.NewStreamWriter(w)
	if err := s.Head(kind, head, held.Carried()); err != nil {
		return err
	}
	if err := held.Write(s); err != nil {
		return err
	}
	if err := once.Write(s); err != nil {
		return err
	}
	return s.End(held.Rows(), held.Digest()+once.PositionsDigest())
}

// readShard reads a stream of writeShard, with or without carried blocks, into empty contents. On
// an error, the caller disposes of the contents.
func readShard(r io.Reader, kind codec.Kind, route codec.Route, held Contents) (head codec.Head, once *dedup.Memory, err error) {
	s := codec.NewStreamReader(r)
	if head, err = s.Head(kind, route); err != nil {
		return head, nil, err
	}
	once = dedup.New()
	take := func(section byte, p []byte) error {
		if dedup.IsSection(section) {
			return once.Load(section, p)
		}
		return held.Load(s, section, p)
	}
	return head, once, readSections(s, take, func(told codec.Totals) (codec.Totals, error) {
		told.Digest -= once.PositionsDigest()
		err := held.Loaded(told)
		return codec.Totals{Rows: held.Stats().Rows, Digest: held.Digest() + once.PositionsDigest()}, err
	})
}

// readSections reads the rest of a stream after its head. It calls take with each section before
// the end section, and passes found to StreamReader.End.
func readSections(s *codec.StreamReader, take func(section byte, p []byte) error, found func(told codec.Totals) (codec.Totals, error)) error {
	for {
		section, p, err := s.Next()
		if err != nil {
			return err
		}
		if section == codec.StreamEnd {
			return s.End(p, found)
		}
		if err := take(section, p); err != nil {
			return err
		}
	}
}

// Misplaced returns the error for a section that snapshots of this kind do not contain, or for a
// block without a section before it.
func Misplaced(section byte) error {
	return fmt.Errorf("%w: section kind %d", codec.ErrSnapshot, section)
}
