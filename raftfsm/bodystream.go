package raftfsm

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// Bodies in a snapshot, in sections of about bodySectionBytes:
//
//	keys (4) | key (8), body … by the keys' hashes
//
// The hash is that of spill.Hash; it orders all keys of the stream.
const bodySectionBytes = 1 << 20

// writeBodies writes the bodies of a view in sections of a kind; none if there are none. form
// appends to dst what a section has of a body.
func writeBodies(w *codec.StreamWriter, kind byte, v *spill.View, form func(dst, body []byte) []byte) error {
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

// bodyReader decodes the sections of bodies of a stream, in order.
type bodyReader struct {
	hash   uint64 // of the previous key
	behind bool   // there is a previous key
}

// section calls parse with each key of a section and what follows it. parse returns what
// follows the body.
func (r *bodyReader) section(p []byte, parse func(key uint64, p []byte) (rest []byte, err error)) error {
	if len(p) < 4 {
		return fmt.Errorf("%w: section of %d bytes", codec.ErrSnapshot, len(p))
	}
	keys := binary.LittleEndian.Uint32(p)
	p = p[4:]
	for range keys {
		if len(p) < 8 {
			return fmt.Errorf("%w: key of %d bytes", codec.ErrSnapshot, len(p))
		}
		key := binary.LittleEndian.Uint64(p)
		hash := spill.Hash(key)
		if r.behind && hash <= r.hash {
			return fmt.Errorf("%w: key %d out of order", codec.ErrSnapshot, key)
		}
		var err error
		if p, err = parse(key, p[8:]); err != nil {
			return err
		}
		r.hash, r.behind = hash, true
	}
	if len(p) > 0 {
		return fmt.Errorf("%w: %d bytes behind the last key", codec.ErrSnapshot, len(p))
	}
	return nil
}
