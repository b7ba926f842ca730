// Package rafttest has helpers for tests of state machines and of their replicas: golden files,
// damaged snapshots, sinks that fail, a check of a table; nodes that answer calls, messages between
// replicas, and a store whose writes can be made to fail. It never interprets the contents of a
// frame, and never starts a replica.
//
// Invariant: only tests import it.
package rafttest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/*.bin anew, after a change of the formats that was meant")

// Golden compares bytes with the golden file of a format.
func Golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: the format has changed:\n% x\nwant\n% x", name, got, want)
	}
}

// Command returns a log entry with the given index and data.
func Command(index uint64, entry []byte) *raft.Log {
	return &raft.Log{Index: index, Type: raft.LogCommand, Data: entry}
}

// Next returns a log entry with the index after the last applied entry.
func Next(fsm interface{ Applied() uint64 }, entry []byte) *raft.Log {
	return Command(fsm.Applied()+1, entry)
}

// Sink is a raft.SnapshotSink in memory.
type Sink struct {
	bytes.Buffer
	closed bool
	// If Wrote is not nil, Write calls it before each write.
	Wrote func()
}

var _ raft.SnapshotSink = (*Sink)(nil)

func (s *Sink) Write(p []byte) (int, error) {
	if s.Wrote != nil {
		s.Wrote()
	}
	return s.Buffer.Write(p)
}

func (s *Sink) Close() error  { s.closed = true; return nil }
func (s *Sink) Cancel() error { return nil }
func (s *Sink) ID() string    { return "test" }

// Persisted returns the bytes of a state machine's snapshot.
func Persisted(t rapid.TB, fsm raft.FSM) []byte {
	t.Helper()
	snapshot, err := fsm.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Release()
	var s Sink
	if err := snapshot.Persist(&s); err != nil {
		t.Fatal(err)
	}
	if !s.closed {
		t.Fatal("the sink was not closed")
	}
	return s.Bytes()
}

// CheckTable returns an error unless a read by id finds each row of a scan. It also compares the
// number of rows and the digest of the table with the scanned rows. Tests of package engine verify
// the structure.
func CheckTable(table *engine.Table) (err error) {
	rows, digest := uint64(0), uint64(0)
	failed := table.Scan(0, engine.ColumnsMax, func(p *engine.Page) bool {
		var row [engine.ColumnsMax]int64
		for i, id := range p.IDs {
			if err = table.ReadCold(context.Background(), id, row[:]); err == nil && !slices.Equal(row[:], p.Row(i)) {
				err = fmt.Errorf("row %d is %v in a scan, and reads %v", id, p.Row(i), row)
			}
			if err != nil {
				return false
			}
			digest += engine.RowDigest(id, p.Row(i))
		}
		rows += uint64(len(p.IDs))
		return true
	})
	if err = cmp.Or(err, failed); err == nil && (rows != table.Stats().Rows || digest != table.Digest()) {
		err = fmt.Errorf("%d rows of digest %016x, the table has %d and %016x", rows, digest, table.Stats().Rows, table.Digest())
	}
	return err
}

// Restore restores a state machine from the bytes of a snapshot.
func Restore(fsm raft.FSM, snapshot []byte) error {
	return fsm.Restore(io.NopCloser(bytes.NewReader(snapshot)))
}

// ApplyError applies an entry and returns the *EntryError that Apply panicked with. It does not
// recover other panics.
func ApplyError(fsm raft.FSM, entry *raft.Log) (err *codec.EntryError) {
	defer func() {
		if r := recover(); r != nil {
			var ok bool
			if err, ok = r.(*codec.EntryError); !ok {
				panic(r)
			}
		}
	}()
	fsm.Apply(entry)
	return nil
}

// Part is one section between the head and the end of a stream.
type Part struct {
	Kind    byte
	Payload []byte
}

// StreamOf returns a stream with valid checksums.
func StreamOf(state codec.Kind, index uint64, parts []Part, rows, digest uint64) []byte {
	var b bytes.Buffer
	w := codec.NewStreamWriter(&b)
	_ = w.Head(state, codec.Head{Index: index, Route: codec.Whole}, -1) // a write to a Buffer never fails
	for _, p := range parts {
		_ = w.Section(p.Kind, func(b []byte) []byte { return append(b, p.Payload...) })
	}
	_ = w.End(rows, digest)
	return b.Bytes()
}

// WithCold returns a copy of a stream in which the head has the given byte for cold rows.
func WithCold(t testing.TB, stream []byte, cold byte) []byte {
	t.Helper()
	sections := SectionsOf(t, stream)
	head := bytes.Clone(PayloadOf(sections[0]))
	head[len("countd snapshot")+2] = cold
	sections[0] = Framed(codec.StreamHead, head)
	return bytes.Join(sections, nil)
}

// PayloadOf returns the payload of a section.
func PayloadOf(section []byte) []byte {
	return section[codec.SectionHeadSize : len(section)-codec.ChecksumSize]
}

// SectionsOf splits an undamaged stream into its sections.
func SectionsOf(t testing.TB, stream []byte) [][]byte {
	t.Helper()
	var all [][]byte
	for len(stream) > 0 {
		n := codec.SectionHeadSize + int(binary.LittleEndian.Uint32(stream[1:])) + codec.ChecksumSize
		all = append(all, stream[:n])
		stream = stream[n:]
	}
	return all
}

// MustRefuseDamage restores damaged copies of a snapshot: cut at each byte, with a flipped bit in
// each byte, and with sections left out, doubled and swapped. No copy may change the state.
func MustRefuseDamage(t *testing.T, fsm raft.FSM, snapshot []byte, state func() any) {
	t.Helper()
	before := state()
	try := func(what string, damaged []byte) {
		t.Helper()
		if err := Restore(fsm, damaged); !errors.Is(err, codec.ErrSnapshot) {
			t.Fatalf("%s: %v", what, err)
		}
		if after := state(); !reflect.DeepEqual(before, after) {
			t.Fatalf("%s: state %+v, was %+v", what, after, before)
		}
	}
	step := 1
	if testing.Short() {
		step = 3
	}
	for i := 0; i < len(snapshot); i += step {
		try(fmt.Sprintf("cut at %d", i), snapshot[:i])
		for _, mask := range []byte{1 << (i % 8), 0xFF} {
			flipped := bytes.Clone(snapshot)
			flipped[i] ^= mask
			try(fmt.Sprintf("byte %d ^ %02x", i, mask), flipped)
		}
	}
	try("a byte behind the end", append(bytes.Clone(snapshot), 0))
	try("twice", append(bytes.Clone(snapshot), snapshot...))
	parts := SectionsOf(t, snapshot)
	for i := range parts {
		try(fmt.Sprintf("section %d left out", i), bytes.Join(slices.Delete(slices.Clone(parts), i, i+1), nil))
		try(fmt.Sprintf("section %d doubled", i), bytes.Join(slices.Insert(slices.Clone(parts), i, parts[i]), nil))
		if i > 0 {
			swapped := slices.Clone(parts)
			swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
			try(fmt.Sprintf("section %d before %d", i, i-1), bytes.Join(swapped, nil))
		}
	}
}

// Framed returns a section with the given kind and payload.
func Framed(kind byte, payload []byte) []byte {
	return codec.FinishSection(append([]byte{kind, 0, 0, 0, 0}, payload...))
}

// MustReportABrokenSink checks that Persist returns the error of a sink that fails early, late or
// at the last byte.
func MustReportABrokenSink(t *testing.T, fsm raft.FSM) {
	t.Helper()
	whole := len(Persisted(t, fsm))
	for _, left := range []int{0, whole / 2, whole - 1} {
		snapshot, err := fsm.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		s := &brokenSink{left: left}
		if err := snapshot.Persist(s); !errors.Is(err, errBroken) || s.closed {
			t.Errorf("%d of %d bytes: %v, closed %v", left, whole, err, s.closed)
		}
		snapshot.Release()
	}
}

var errBroken = errors.New("the disk is broken")

type brokenSink struct {
	Sink
	left int // bytes until the sink fails
}

func (s *brokenSink) Write(p []byte) (int, error) {
	if s.left -= len(p); s.left < 0 {
		return 0, errBroken
	}
	return len(p), nil
}
