package raftfsm

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// In a snapshot, bodies are in sections of about bodySectionBytes. A section has this layout, with
// the keys in the order of their hashes:
//
//	keys (4) | key (8), body … by the keys' hashes
//
// The order, by spill.Hash, continues across all sections of the stream.
const bodySectionBytes = 1 << 20

// WriteBodies writes the bodies of a view in sections of the given kind. Without bodies it writes
// nothing. The function form appends a body to dst in the form that snapshots use.
func WriteBodies(w *codec.StreamWriter, kind byte, v *spill.View, form func(dst, body []byte) []byte) error {
	for v.More() {
		var failed error
		err := w.Section(kind, func(b []byte) []byte {
			start, keys := len(b), uint32(0)
			b = append(b, 0, 0, 0, 0)
			for v.More() && len(b)-start < bodySectionBytes {
				var key uint64
				var body []byte
				if key, body, failed = v.Next(); failed != nil {
					break
				}
				b = form(binary.LittleEndian.AppendUint64(b, key), body)
				keys++
			}
			binary.LittleEndian.PutUint32(b[start:], keys)
			return b
		})
		if err = cmp.Or(err, failed); err != nil {
			return err
		}
	}
	return nil
}

// BodyReader decodes the sections of bodies of a stream, in order.
type BodyReader struct {
	Hash   uint64 // hash of the previous key
	behind bool   // there is a previous key
}

// Section calls parse with each key of a section. parse reads the body from p.
func (r *BodyReader) Section(section []byte, parse func(key uint64, p *wire.Reader) error) error {
	p := wire.Reader{Rest: section}
	for range p.Fixed32() {
		key := p.Fixed64()
		hash := spill.Hash(key)
		if p.Err != nil || r.behind && hash <= r.Hash {
			return fmt.Errorf("%w: key %d behind another of hash %016x in %d bytes", codec.ErrSnapshot, key, r.Hash, len(section))
		}
		if err := parse(key, &p); err != nil {
			return err
		}
		r.Hash, r.behind = hash, true
	}
	if err := p.End(); err != nil {
		return fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	return nil
}
