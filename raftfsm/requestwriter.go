package raftfsm

import (
	"encoding/binary"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// RequestWriter writes one request section into a buffer. It owns the buffer until Section returns
// it. Each kind has its own functions to append ops. They panic on an op that the format cannot
// express, because an entry that cannot be applied would stop every replica.
type RequestWriter struct {
	buf      []byte
	opsAt    int // where the ops begin
	ops      int
	settings *Settings
	clocked  bool
}

// Reset starts a section for the shard with the given route. It overwrites buf. It panics on an
// identity or a route that the format cannot express.
func (w *RequestWriter) Reset(buf []byte, route codec.Route, id *dedup.RequestID) {
	w.buf = id.AppendTo(route.AppendTo(append(buf[:0], id.Section(), 0, 0, 0, 0)))
	w.opsAt, w.ops = len(w.buf), 0
	w.settings, w.clocked = nil, id.Exists()
}

// SetSettings sets the settings of the columns for the ops that follow; nil means none. Each op
// carries the settings that it needs, because Apply depends on the log alone.
func (w *RequestWriter) SetSettings(s *Settings) { w.settings = s }

// Setting returns the value of a setting of a column, and whether the column has one.
func (w *RequestWriter) Setting(which column.Setting, number uint8) (int64, bool) {
	return w.settings.Of(which, number)
}

// Buffer returns the section so far, for a kind to append an op to it.
func (w *RequestWriter) Buffer() []byte { return w.buf }

// Put sets the section to Buffer with one more op after it. clocked means that the op needs the
// leader's time before the section.
func (w *RequestWriter) Put(section []byte, clocked bool) {
	w.buf, w.clocked = section, w.clocked || clocked
	w.ops++
}

// Clocked reports whether the section needs the leader's time before it in an entry.
func (w *RequestWriter) Clocked() bool { return w.clocked }

// SetUse writes the use of the key into a section whose identity RequestID.JudgedBy returned.
func (w *RequestWriter) SetUse(use dedup.Use) { dedup.SetUse(w.buf[:w.opsAt], use) }

// Ops returns the number of ops.
func (w *RequestWriter) Ops() int { return w.ops }

// Section returns the finished section, which may be appended to an entry.
func (w *RequestWriter) Section() []byte {
	binary.LittleEndian.PutUint32(w.buf[1:], uint32(len(w.buf)-codec.SectionHeadSize))
	return w.buf
}
