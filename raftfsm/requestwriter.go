package raftfsm

import (
	"encoding/binary"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// RequestWriter writes one request section into a buffer. It owns the buffer until Section returns
// it. Each kind has its own functions to append ops. These panic on an op that the format cannot
// express, because an entry that cannot be applied would stop all replicas.
type RequestWriter struct {
	buf      []byte
	opsAt    int // offset in buf at which the ops begin
	ops      int
	modulus  uint32
	settings *Settings
	clocked  bool
}

// Reset starts a section for the shard with the given route. It overwrites buf. It panics on an
// identity or a route that the format cannot express.
func (w *RequestWriter) Reset(buf []byte, route codec.Route, id *dedup.RequestID) {
	w.buf = id.AppendTo(route.AppendTo(append(buf[:0], id.Section(), 0, 0, 0, 0)))
	w.opsAt, w.ops, w.modulus = len(w.buf), 0, route.Modulus
	w.settings, w.clocked = nil, id.Exists()
}

// SetSettings sets the settings of the columns for later ops; nil means no settings. Each op
// carries the settings that it needs, because Apply depends on the log alone.
func (w *RequestWriter) SetSettings(s *Settings) { w.settings = s }

// Setting returns the value of a setting of a column, and whether the column has one.
func (w *RequestWriter) Setting(which column.Setting, number uint8) (int64, bool) {
	return w.settings.Of(which, number)
}

// Buffer returns the section so far. A kind appends an op to it and passes the result to Put.
func (w *RequestWriter) Buffer() []byte { return w.buf }

// Put sets the section. The argument must be Buffer with one more op appended. clocked means that
// the op needs a clock section in the entry.
func (w *RequestWriter) Put(section []byte, clocked bool) {
	w.buf, w.clocked = section, w.clocked || clocked
	w.ops++
}

// Clocked reports whether an entry must have a clock section before this section.
func (w *RequestWriter) Clocked() bool { return w.clocked }

// SetUse writes the use of the key into the section. The identity of the section must be from
// RequestID.JudgedBy, and the use must have no names.
func (w *RequestWriter) SetUse(use dedup.Use) { dedup.SetUse(w.buf[:w.opsAt], use) }

// Modulus returns the modulus of the section's route.
func (w *RequestWriter) Modulus() uint32 { return w.modulus }

// Ops returns the number of ops.
func (w *RequestWriter) Ops() int { return w.ops }

// Section returns the finished section, which may be appended to an entry.
func (w *RequestWriter) Section() []byte {
	binary.LittleEndian.PutUint32(w.buf[1:], uint32(len(w.buf)-codec.SectionHeadSize))
	return w.buf
}
