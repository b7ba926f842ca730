package names

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// A snapshot has a section with the next number (8) and the marks, and then the blocks, with the bodies of
// block.go.
func (c *contents) Capture() raftfsm.Captured {
	return &captured{view: c.bodies.Capture(), names: c.names.Load(), next: c.next, marks: c.marks.copy(), sum: c.Digest()}
}

// captured is a captured shard of names. A snapshot contains all blocks, including those on disk.
type captured struct {
	raftfsm.InMemory
	view        *spill.View
	names, next uint64
	marks       []mark
	sum         uint64
}

func (s *captured) Write(w *codec.StreamWriter) error {
	err := w.Section(codec.StreamNames, func(b []byte) []byte {
		return appendMarks(binary.LittleEndian.AppendUint64(b, s.next), s.marks)
	})
	if err != nil {
		return err
	}
	return raftfsm.WriteBodies(w, codec.StreamTexts, s.view, func(b, body []byte) []byte { return append(b, body...) })
}

func (s *captured) Rows() uint64   { return s.names }
func (s *captured) Digest() uint64 { return s.sum }
func (s *captured) Release()       { s.view.Close() }

func (c *contents) Load(_ *codec.StreamReader, kind byte, p []byte) error {
	err := c.loading.section(kind, p, func(key uint64, body []byte, pairs []pair) error {
		digest := uint64(0)
		for _, of := range pairs {
			digest += pairDigest(of.number, of.slot)
			c.index.add(c.index.hash(of.slot), of.number)
		}
		c.names.Add(uint64(len(pairs)))
		c.bodies.Set(key, body, digest)
		return nil
	})
	c.next = max(c.next, c.loading.next)
	c.given.Store(c.next)
	if err != nil || kind != codec.StreamTexts {
		c.marks.load(c.loading.marks)
		return err
	}
	return c.bodies.SpillLoaded(c.loading.Hash)
}

// reader decodes the sections of names of a stream, in order.
type reader struct {
	raftfsm.BodyReader
	next  uint64 // 0 before the first section
	marks []mark
	pairs []pair
}

// pair is a number and the slot of its text.
type pair struct {
	number uint64
	slot   []byte
}

// section calls visit with each block of a section, and with its pairs.
func (r *reader) section(kind byte, p []byte, visit func(key uint64, body []byte, pairs []pair) error) (err error) {
	switch {
	case kind == codec.StreamNames && r.next == 0 && len(p) >= 8:
		r.next = binary.LittleEndian.Uint64(p)
		if r.next < 1 || r.next > NumberMax+1 {
			return fmt.Errorf("%w: next number %d", codec.ErrSnapshot, r.next)
		}
		r.marks, err = parseMarks(p[8:], r.next)
		return err
	case kind != codec.StreamTexts || r.next == 0:
		return raftfsm.Misplaced(kind)
	}
	return r.Section(p, func(key uint64, p *wire.Reader) error {
		r.pairs = r.pairs[:0]
		body, err := checkBlock(p, key, r.next, func(number uint64, slot []byte) {
			r.pairs = append(r.pairs, pair{number, slot})
		})
		if err != nil {
			return err
		}
		return visit(key, body, r.pairs)
	})
}
