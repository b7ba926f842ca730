package dedup

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/source/sink"
)

const (
	// PositionsMax bounds the positions of a group, and so their section in a snapshot to
	// under 4 MiB. The catalog allows far fewer partitions.
	PositionsMax = 1 << 16
	// deletedMax bounds the deleted sources that a group remembers. A reader that does not know of the
	// deletion yet may send sections for some minutes.
	deletedMax = 1024
)

// PositionKey names one partition of a source. The catalog gives each source a number
// that no other source ever has.
type PositionKey struct {
	Source    uint64
	Partition uint32
}

// Compare orders keys by source, then by partition.
func (k PositionKey) Compare(other PositionKey) int {
	return cmp.Or(cmp.Compare(k.Source, other.Source), cmp.Compare(k.Partition, other.Partition))
}

// Checkpoint is the position of a partition in a group. The group has applied every message below
// At, beginning at the position of the seek that began Epoch. Only sections of sources move a
// Checkpoint. The position At only rises within an epoch, and Epoch only rises. Only a restore sets
// both back, to the values in the backup. Mark is the mark of the last message below At, if the
// source has read a message since that seek.
type Checkpoint struct {
	Epoch uint32
	At    sink.Position
	Mark  sink.Mark
}

// PositionRecord is one Checkpoint with its key.
type PositionRecord struct {
	PositionKey
	Checkpoint
}

// digest returns the digest of a position. The group's digest includes the sum of these digests.
func (r PositionRecord) digest() uint64 {
	sum := uint64(0x706f736974696f6e)
	for _, n := range [...]uint64{r.Source, uint64(r.Partition)<<32 | uint64(r.Epoch), r.At.Hi, r.At.Lo, r.Mark.Position.Hi, r.Mark.Position.Lo, r.Mark.Sum} {
		sum = mix(sum ^ n)
	}
	return sum
}

// mix is the finalizer of MurmurHash3, after a rotation and an addition, so that zeros change the
// sum too.
func mix(n uint64) uint64 {
	n = bits.RotateLeft64(n, 29) + 0x9e3779b97f4a7c15
	n = (n ^ n>>33) * 0xff51afd7ed558ccd
	n = (n ^ n>>33) * 0xc4ceb9fe1a85ec53
	return n ^ n>>33
}

// ClosedDigest is the term of closed positions in the digest.
const ClosedDigest = 0x636c6f736564

// SectionMode is the effect of a section of a source.
type SectionMode uint8

// The modes of sections.
const (
	// SectionAdvance applies the section's ops and moves the position from Prev to Next, if the
	// group's position is Prev and its epoch is Epoch. If the section has a Mark, it replaces
	// the position's Mark.
	SectionAdvance SectionMode = 1
	// SectionBegin begins Epoch at Next. If the epoch of the group's position is at least Since,
	// SectionBegin changes only that epoch, to Epoch: the partition continues at its position.
	SectionBegin SectionMode = 2
	// SectionRead returns the position. If its epoch is at least Since, SectionRead raises the
	// epoch to Epoch, so that the group applies no section of an earlier epoch afterwards.
	SectionRead SectionMode = 3
	// SectionForget drops all positions of a deleted source, and records the deletion, so that the
	// group applies no further section of that source.
	SectionForget SectionMode = 4
)

// SourceSection is the identity of a section of a source. With such a section, a reader applies
// messages of one partition, or moves or reads the partition's position. Only SectionAdvance has
// ops.
type SourceSection struct {
	PositionKey
	Mode       SectionMode
	Epoch      uint32
	Since      uint32        // the epoch of the last seek; 0 means Epoch
	Prev, Next sink.Position // Prev only for SectionAdvance
	Mark       sink.Mark     // the mark of the last message below Next; only for SectionAdvance
}

// PositionAnswer is a group's position of a partition right after a section.
type PositionAnswer struct {
	Checkpoint
	Known   bool // Checkpoint is set
	Closed  bool // the shard is being restored, and refuses all sections
	Deleted bool // the source is deleted
	Full    bool // there are PositionsMax positions
}

// BySource identifies a section of a source. Judge applies it by the rule of its mode, or returns
// Moved. Memory.Position returns the position of the partition afterwards.
func BySource(s SourceSection) RequestID { return RequestID{kind: bySource, section: &s} }

// RestoredPositions are the positions that a restore sets in a group.
type RestoredPositions struct {
	// If Closed is set, the group refuses all sections until another write of a restore opens the
	// group.
	Closed bool
	All    []PositionRecord // ascending by key; owned by the RequestID
}

// ByRestorePositions identifies a write of a restore of a shard by the number seq, as ByRestore
// does. The write replaces all positions of the group by p.
func ByRestorePositions(seq uint64, p RestoredPositions) RequestID {
	id := ByRestore(seq, false)
	id.kind, id.restored = byRestorePositions, &p
	return id
}

// IsSource reports whether the request is a section of a source.
func (id *RequestID) IsSource() bool { return id.kind == bySource }

// SourceSection returns the section of a source, or nil for another request.
func (id *RequestID) SourceSection() *SourceSection { return id.section }

// MovesPositions reports whether the request reads or writes positions of sources.
func (id *RequestID) MovesPositions() bool {
	return id.kind == bySource || id.kind == byRestorePositions
}

// positions holds the positions of sources in a group. They never expire.
type positions struct {
	at      map[PositionKey]Checkpoint
	deleted []uint64 // numbers of deleted sources, the latest last
	closed  bool
	digest  uint64   // sum over the fields at and closed, but not deleted, because a restored shard may remember other deleted sources
	numbers []uint64 // the sources in at, ascending; replaced whole
}

func newPositions() positions { return positions{at: map[PositionKey]Checkpoint{}} }

func (p *positions) set(key PositionKey, m Checkpoint) {
	was, known := p.at[key]
	if known {
		p.digest -= PositionRecord{key, was}.digest()
	}
	p.at[key] = m
	p.digest += PositionRecord{key, m}.digest()
	if !known {
		p.list(key.Source)
	}
}

// list adds a source to numbers.
func (p *positions) list(source uint64) {
	if i, listed := slices.BinarySearch(p.numbers, source); !listed {
		p.numbers = slices.Insert(slices.Clone(p.numbers), i, source)
	}
}

// clear drops all positions and leaves the deleted sources.
func (p *positions) clear() {
	for key, m := range p.at {
		p.digest -= PositionRecord{key, m}.digest()
	}
	clear(p.at)
	p.numbers = nil
}

// Closed reports whether the shard is being restored. If so, it applies no section of a source.
func (m *Memory) Closed() bool { return m.positions.closed }

func (p *positions) setClosed(closed bool) {
	if p.closed != closed {
		p.closed = closed
		if closed {
			p.digest += ClosedDigest
		} else {
			p.digest -= ClosedDigest
		}
	}
}

// forget drops the positions of a source and remembers that it is deleted.
func (p *positions) forget(source uint64) {
	for key, m := range p.at {
		if key.Source == source {
			p.digest -= PositionRecord{key, m}.digest()
			delete(p.at, key)
		}
	}
	p.numbers = slices.DeleteFunc(slices.Clone(p.numbers), func(n uint64) bool { return n == source })
	if slices.Contains(p.deleted, source) {
		return
	}
	p.deleted = append(slices.Clone(p.deleted), source)
	if len(p.deleted) > deletedMax {
		p.deleted = slices.Delete(p.deleted, 0, 1)
	}
}

// judge applies a section to the positions.
func (p *positions) judge(s *SourceSection) Outcome {
	m, known := p.at[s.PositionKey]
	deleted := slices.Contains(p.deleted, s.Source)
	next := Checkpoint{Epoch: s.Epoch, At: s.Next}
	switch s.Mode {
	case SectionAdvance:
		if p.closed || !known || m.Epoch != s.Epoch || m.At != s.Prev {
			return Moved
		}
		if next.Mark = s.Mark; !s.Mark.Exists() {
			next.Mark = m.Mark
		}
	case SectionBegin, SectionRead:
		carried := known && m.Epoch >= cmp.Or(s.Since, s.Epoch)
		full := !known && len(p.at) >= PositionsMax
		switch {
		case p.closed || deleted || full || known && m.Epoch >= s.Epoch || s.Mode == SectionRead && !carried:
			return Moved
		case carried:
			m.Epoch = s.Epoch
			p.set(s.PositionKey, m)
			return Applied
		}
	case SectionForget:
		p.forget(s.Source)
		return Applied
	}
	p.set(s.PositionKey, next)
	return Applied
}

// restore replaces all positions, except those of deleted sources.
func (p *positions) restore(r *RestoredPositions) {
	p.clear()
	p.setClosed(r.Closed)
	for _, record := range r.All {
		if !slices.Contains(p.deleted, record.Source) {
			p.set(record.PositionKey, record.Checkpoint)
		}
	}
}

// Position returns the group's position in a partition. id must be a section of a source, which
// names the partition.
func (o *Memory) Position(id *RequestID) PositionAnswer {
	s, p := id.section, &o.positions
	m, known := p.at[s.PositionKey]
	return PositionAnswer{
		Checkpoint: m, Known: known, Closed: p.closed, Deleted: slices.Contains(p.deleted, s.Source), Full: !known && len(p.at) >= PositionsMax,
	}
}

// PositionsDigest returns a digest of all positions, 0 if there are none.
func (o *Memory) PositionsDigest() uint64 { return o.positions.digest }

// Sources returns the numbers of the sources that have positions, ascending. The slice
// never changes.
func (o *Memory) Sources() []uint64 { return o.positions.numbers }

// PositionsDigest returns the digest of the positions in the view.
func (v *View) PositionsDigest() uint64 { return v.positions.digest }

// capture returns a copy that further sections do not change.
func (p *positions) capture() positions {
	c := *p
	c.at = maps.Clone(p.at)
	c.deleted = slices.Clone(p.deleted)
	return c
}

// A section of a source in a log entry, and of the positions of a restore:
//
//	source:    source (8) | partition (4) | mode (1) | epoch (4) | prev (16) | next (16) | mark (24) | as request
//	positions: number (8) | closed (1) | positions (4) | position … | as request, without ops
//	position:  source (8) | partition (4) | epoch (4) | at (16) | mark (24)
//
// A position of a queue is hi (8) | lo (8). A mark is position (16) | sum (8), or all 0 for none. A
// section that does not advance has 0 (8) and since (8) as prev, and no mark. A snapshot has this
// section, unless the shard is open and has neither positions nor deleted sources:
//
//	closed (1) | deleted (4) | source (8) … | positions (4) | position …
const (
	positionRecordSize = 56
)

func appendPosition(dst []byte, p sink.Position) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, p.Hi), p.Lo)
}

func readPosition(r *wire.Reader) sink.Position {
	return sink.Position{Hi: r.Fixed64(), Lo: r.Fixed64()}
}

func appendMark(dst []byte, m sink.Mark) []byte {
	return binary.LittleEndian.AppendUint64(appendPosition(dst, m.Position), m.Sum)
}

// readMark reads the mark of a position. It fails r if the mark is malformed or not below that
// position.
func readMark(r *wire.Reader, position sink.Position) sink.Mark {
	m := sink.Mark{Position: readPosition(r), Sum: r.Fixed64()}
	if m != (sink.Mark{}) && (!m.Exists() || !m.Position.Less(position)) {
		r.Fail("a mark")
	}
	return m
}

func (s *SourceSection) appendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, s.Source)
	dst = binary.LittleEndian.AppendUint32(dst, s.Partition)
	dst = binary.LittleEndian.AppendUint32(append(dst, byte(s.Mode)), s.Epoch)
	prev := s.Prev
	if s.Mode != SectionAdvance {
		prev = sink.Position{Lo: uint64(s.Since)}
	}
	return appendMark(appendPosition(appendPosition(dst, prev), s.Next), s.Mark)
}

// parseSource parses the identity of a section of a source, and returns the rest: the ops of its
// request.
func parseSource(p []byte) (id RequestID, rest []byte, err error) {
	r := wire.Reader{Rest: p}
	s := SourceSection{
		PositionKey: PositionKey{Source: r.Fixed64(), Partition: r.Fixed32()},
		Mode:        SectionMode(r.Byte()), Epoch: r.Fixed32(), Prev: readPosition(&r), Next: readPosition(&r),
	}
	s.Mark = readMark(&r, s.Next)
	empty, good := len(r.Rest) == 0, false
	switch s.Mode {
	case SectionAdvance: // ops that do not move the position could be applied twice
		good = s.Prev.Less(s.Next) || s.Prev == s.Next && empty
	case SectionBegin, SectionRead, SectionForget:
		good = empty && !s.Mark.Exists() && s.Prev.Hi == 0 && s.Prev.Lo <= math.MaxUint32
		s.Since, s.Prev = uint32(s.Prev.Lo), sink.Position{}
	}
	if r.Err != nil || !good {
		return id, nil, fmt.Errorf("%w: section of a source %+v of %d bytes", codec.ErrEntry, s, len(p))
	}
	return BySource(s), r.Rest, nil
}

func appendRecords(dst []byte, all []PositionRecord) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(all)))
	for _, r := range all {
		dst = binary.LittleEndian.AppendUint64(dst, r.Source)
		dst = binary.LittleEndian.AppendUint32(dst, r.Partition)
		dst = appendPosition(binary.LittleEndian.AppendUint32(dst, r.Epoch), r.At)
		dst = appendMark(dst, r.Mark)
	}
	return dst
}

// readRecords reads what appendRecords appended. It fails r for anything else.
func readRecords(r *wire.Reader) []PositionRecord {
	n := int(r.Fixed32())
	if n > PositionsMax || n > len(r.Rest)/positionRecordSize {
		r.Fail("the number of positions")
		return nil
	}
	all := make([]PositionRecord, n)
	for i := range all {
		p := &all[i]
		p.PositionKey = PositionKey{Source: r.Fixed64(), Partition: r.Fixed32()}
		p.Epoch, p.At = r.Fixed32(), readPosition(r)
		p.Mark = readMark(r, p.At)
		if i > 0 && all[i-1].Compare(p.PositionKey) >= 0 {
			r.Fail("a position out of order")
		}
	}
	return all
}

func (r *RestoredPositions) appendTo(dst []byte) []byte {
	return appendRecords(append(dst, wire.Bit(r.Closed)), r.All)
}

// parseRestorePositions splits the positions of a restore from its request, which has no ops.
func parseRestorePositions(p []byte) (id RequestID, rest []byte, err error) {
	r := wire.Reader{Rest: p}
	seq, restored := r.Fixed64(), RestoredPositions{Closed: r.Bool(), All: readRecords(&r)}
	if err := r.End(); err != nil {
		return id, nil, fmt.Errorf("%w: positions: %w", codec.ErrEntry, err)
	}
	return ByRestorePositions(seq, restored), nil, nil
}

// empty reports whether a snapshot needs no section of positions.
func (p *positions) empty() bool { return len(p.at) == 0 && len(p.deleted) == 0 && !p.closed }

func (p *positions) appendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(append(dst, wire.Bit(p.closed)), uint32(len(p.deleted)))
	for _, source := range p.deleted {
		dst = binary.LittleEndian.AppendUint64(dst, source)
	}
	return appendRecords(dst, p.records())
}

// records returns all positions, ascending by key.
func (p *positions) records() []PositionRecord {
	all := make([]PositionRecord, 0, len(p.at))
	for key, m := range p.at {
		all = append(all, PositionRecord{key, m})
	}
	slices.SortFunc(all, func(a, b PositionRecord) int { return a.PositionKey.Compare(b.PositionKey) })
	return all
}

// ParsePositions returns the positions in the section of a snapshot, ascending by key, and their
// part of the snapshot's digest.
func ParsePositions(section []byte) (all []PositionRecord, digest uint64, err error) {
	p := newPositions()
	if err := p.load(section); err != nil {
		return nil, 0, err
	}
	return p.records(), p.digest, nil
}

// load fills positions, which must be empty, from the section of a snapshot.
func (p *positions) load(section []byte) error {
	r := wire.Reader{Rest: section}
	p.setClosed(r.Bool())
	deleted := int(r.Fixed32())
	if deleted > deletedMax || deleted > len(r.Rest)/8 {
		r.Fail("the number of deleted sources")
		deleted = 0
	}
	for range deleted {
		source := r.Fixed64()
		if slices.Contains(p.deleted, source) {
			r.Fail("a source that was deleted twice")
		}
		p.forget(source)
	}
	for _, record := range readRecords(&r) {
		if slices.Contains(p.deleted, record.Source) {
			r.Fail("a position of a deleted source")
		}
		p.set(record.PositionKey, record.Checkpoint)
	}
	if p.empty() {
		r.Fail("nothing")
	}
	return ended(&r)
}
