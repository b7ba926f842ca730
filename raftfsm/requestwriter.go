package raftfsm

import (
	"encoding/binary"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// RequestWriter writes one request section into a buffer. It owns the buffer until Section returns
// it. A kind appends its ops by functions of its own. These panic on an op that the format cannot
// express: an entry that cannot be applied stops every replica, so it must not be proposed.
type RequestWriter struct {
	buf     []byte
	opsAt   int // where the ops begin
	ops     int
	floors  *Floors
	clocked bool
}

// Reset starts a section for the shard of a route in buf, overwriting its contents. It
// panics on an identity or a route that the format cannot express.
func (w *RequestWriter) Reset(buf []byte, route codec.Route, id *dedup.RequestID) {
	w.buf = id.AppendTo(route.AppendTo(append(buf[:0], id.Section(), 0, 0, 0, 0)))
	w.opsAt, w.ops = len(w.buf), 0
	w.floors, w.clocked = nil, id.Exists()
}

// SetFloors sets the floors of the columns for the ops that follow; nil means none. Only ops with a
// delta below 0 carry a floor.
func (w *RequestWriter) SetFloors(f *Floors) { w.floors = f }

// Floor returns the floor of a column, and whether it has one.
func (w *RequestWriter) Floor(column uint8) (int64, bool) { return w.floors.Of(column) }

// Buffer returns the section so far, for a kind to append an op to it.
func (w *RequestWriter) Buffer() []byte { return w.buf }

// Put sets the section to Buffer with one more op behind it. clocked means that the op needs the
// leader's time before the section.
func (w *RequestWriter) Put(section []byte, clocked bool) {
	w.buf, w.clocked = section, w.clocked || clocked
	w.ops++
}

// Clocked reports whether the section needs the leader's time before it in an entry.
func (w *RequestWriter) Clocked() bool { return w.clocked }

// SetUse completes a section with an identity of RequestID.JudgedBy.
func (w *RequestWriter) SetUse(use dedup.Use) { dedup.SetUse(w.buf[:w.opsAt], use) }

// Ops returns the number of ops.
func (w *RequestWriter) Ops() int { return w.ops }

// Section returns the finished section, which may be appended to an entry.
func (w *RequestWriter) Section() []byte {
	binary.LittleEndian.PutUint32(w.buf[1:], uint32(len(w.buf)-codec.SectionHeadSize))
	return w.buf
}
