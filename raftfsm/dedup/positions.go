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
	// deletedMax bounds the deleted sources that a group remembers. The group needs them for some
	// minutes, while readers that have not seen the deletion may send sections.
	deletedMax = 1024
)

// PositionKey identifies a partition of a source. The catalog gives each source a number that no
// other source ever gets.
type PositionKey struct {
	Source    uint64
	Partition uint32
}

// Compare orders keys by source, then by partition.
func (k PositionKey) Compare(other PositionKey) int {
	return cmp.Or(cmp.Compare(k.Source, other.Source), cmp.Compare(k.Partition, other.Partition))
}

// Checkpoint is a group's position in a partition. A seek begins an epoch at a position. The group
// has applied all messages from the position at which Epoch began up to At. Mark is the mark of the
// last of these messages, if there is any. Sections of sources change a Checkpoint. They never
// lower Epoch, nor At within an epoch. Only a restore sets both back, to the values in the backup.
type Checkpoint struct {
	Epoch uint32
	At    sink.Position
	Mark  sink.Mark
}

// PositionRecord is a Checkpoint with its key.
type PositionRecord struct {
	PositionKey
	Checkpoint
}

// digest returns what a position adds to the group's digest.
func (r PositionRecord) digest() uint64 {
	sum := uint64(0x706f736974696f6e)
	for _, n := range [...]uint64{r.Source, uint64(r.Partition)<<32 | uint64(r.Epoch), r.At.Hi, r.At.Lo, r.Mark.Position.Hi, r.Mark.Position.Lo, r.Mark.Sum} {
		sum = mix(sum ^ n)
	}
	return sum
}

// mix is the finalizer of MurmurHash3, after a rotation and an addition. Without these two, a zero
// would not change the sum.
func mix(n uint64) uint64 {
	n = bits.RotateLeft64(n, 29) + 0x9e3779b97f4a7c15
	n = (n ^ n>>33) * 0xff51afd7ed558ccd
	n = (n ^ n>>33) * 0xc4ceb9fe1a85ec53
	return n ^ n>>33
}

// ClosedDigest is added to the digest while the positions are closed.
const ClosedDigest = 0x636c6f736564

// SectionMode selects what a section of a source does.
type SectionMode uint8

// These are the modes of sections.
const (
	// If the group's position is Prev and its epoch is Epoch, SectionAdvance applies the section's
	// ops and moves the position to Next. If the section has a Mark, that replaces the position's
	// Mark.
	SectionAdvance SectionMode = 1
	// SectionBegin sets the position to Next, with the epoch Epoch. But if the epoch of the group's
	// position is at least Since, it only raises that epoch to Epoch, so the partition continues at
	// its position.
	SectionBegin SectionMode = 2
	// SectionRead returns the position. If the position's epoch is at least Since, SectionRead also
	// raises that epoch to Epoch. Afterwards the group applies no section of an earlier epoch.
	SectionRead SectionMode = 3
	// SectionForget drops all positions of a deleted source. It also records the deletion, so that
	// the group applies no more sections of that source.
	SectionForget SectionMode = 4
)

// SourceSection is the identity of a section of a source. A reader sends such a section to apply
// messages of one partition, or to move or read the partition's position. Only a section with
// SectionAdvance has ops.
type SourceSection struct {
	PositionKey
	Mode       SectionMode
	Epoch      uint32
	Since      uint32        // the epoch of the last seek; 0 means Epoch
	Prev, Next sink.Position // Prev is used only by SectionAdvance
	Mark       sink.Mark     // the mark of the last message before Next; only for SectionAdvance
}

// PositionAnswer is a group's position in a partition just after a section.
type PositionAnswer struct {
	Checkpoint
	Known   bool // Checkpoint is set
	Closed  bool // the shard is being restored, and moves no positions
	Deleted bool // the source is deleted
	Full    bool // the partition is new, and there are PositionsMax positions
}

// BySource returns the id of a section of a source. Judge does to the position what the section's
// Mode says, or returns Moved. Memory.Position returns the partition's position afterwards.
func BySource(s SourceSection) RequestID { return RequestID{kind: bySource, section: &s} }

// RestoredPositions are the positions that a restore sets in a group.
type RestoredPositions struct {
	// If Closed is set, the group moves no positions until another write of a restore sets Closed
	// to false.
	Closed bool
	All    []PositionRecord // ascending by key; owned by the RequestID
}

// ByRestorePositions returns the id of a write of a restore that replaces all positions of the
// group by p. seq is its number, as for ByRestore.
func ByRestorePositions(seq uint64, p RestoredPositions) RequestID {
	id := ByRestore(seq, false)
	id.kind, id.restored = byRestorePositions, &p
	return id
}

// IsSource reports whether the request is a section of a source.
func (id *RequestID) IsSource() bool { return id.kind == bySource }

// SourceSection returns the section of a source, or nil for another request.
func (id *RequestID) SourceSection() *SourceSection { return id.section }

// MovesPositions reports whether the request reads or changes positions of sources.
func (id *RequestID) MovesPositions() bool {
	return id.kind == bySource || id.kind == byRestorePositions
}

// positions contains a group's positions in all partitions of sources. They never expire.
type positions struct {
	at      map[PositionKey]Checkpoint
	deleted []uint64 // numbers of deleted sources, in order of deletion
	closed  bool
	digest  uint64   // of at and closed, but not of deleted: a restored shard may have other deleted sources
	numbers []uint64 // the sources with positions, ascending; a change makes a new slice
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

// list adds a source to numbers if it is not there.
func (p *positions) list(source uint64) {
	if i, listed := slices.BinarySearch(p.numbers, source); !listed {
		p.numbers = slices.Insert(slices.Clone(p.numbers), i, source)
	}
}

// clear drops all positions, but not the deleted sources.
func (p *positions) clear() {
	for key, m := range p.at {
		p.digest -= PositionRecord{key, m}.digest()
	}
	clear(p.at)
	p.numbers = nil
}

// Closed reports whether the shard is being restored. Then it applies no section of a source.
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

// forget drops the positions of a source and records that it is deleted.
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

// judge applies the effect of a section on the positions, or returns Moved.
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

// restore replaces all positions by those of r. It leaves out those of deleted sources.
func (p *positions) restore(r *RestoredPositions) {
	p.clear()
	p.setClosed(r.Closed)
	for _, record := range r.All {
		if !slices.Contains(p.deleted, record.Source) {
			p.set(record.PositionKey, record.Checkpoint)
		}
	}
}

// Position returns the group's position in the partition of id, which must be a section of a
// source.
func (o *Memory) Position(id *RequestID) PositionAnswer {
	s, p := id.section, &o.positions
	m, known := p.at[s.PositionKey]
	return PositionAnswer{
		Checkpoint: m, Known: known, Closed: p.closed, Deleted: slices.Contains(p.deleted, s.Source), Full: !known && len(p.at) >= PositionsMax,
	}
}

// PositionsDigest returns the digest of all positions and of Closed. It is 0 for a shard that has
// no positions and is not closed.
func (o *Memory) PositionsDigest() uint64 { return o.positions.digest }

// Sources returns the numbers of the sources that have positions, ascending. Nobody changes the
// returned slice later.
func (o *Memory) Sources() []uint64 { return o.positions.numbers }

// PositionsDigest returns the digest of the positions in the view.
func (v *View) PositionsDigest() uint64 { return v.positions.digest }

// capture returns a copy that later sections do not change.
func (p *positions) capture() positions {
	c := *p
	c.at = maps.Clone(p.at)
	c.deleted = slices.Clone(p.deleted)
	return c
}

// These are the encodings of a section of a source and of the positions of a restore in a log
// entry:
//
//	source:    source (8) | partition (4) | mode (1) | epoch (4) | prev (16) | next (16) | mark (24) | as request
//	positions: number (8) | closed (1) | positions (4) | position … | as request, without ops
//	position:  source (8) | partition (4) | epoch (4) | at (16) | mark (24)
//
// Prev, next and at are positions in a queue: hi (8) | lo (8). A mark is position (16) | sum (8),
// or all 0 if there is none. If the mode is not SectionAdvance, prev is 0 (8) | since (8), and
// there is no mark. A snapshot has the following section, unless the shard is not closed and has
// neither positions nor deleted sources:
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

// readMark reads the mark of a position. It sets r.Err if the mark is invalid or not below the
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

// parseSource parses the identity of a section of a source. rest is the ops of the request.
func parseSource(p []byte) (id RequestID, rest []byte, err error) {
	r := wire.Reader{Rest: p}
	s := SourceSection{
		PositionKey: PositionKey{Source: r.Fixed64(), Partition: r.Fixed32()},
		Mode:        SectionMode(r.Byte()), Epoch: r.Fixed32(), Prev: readPosition(&r), Next: readPosition(&r),
	}
	s.Mark = readMark(&r, s.Next)
	empty, good := len(r.Rest) == 0, false
	switch s.Mode {
	case SectionAdvance: // a section with ops must move the position, because otherwise a copy of it would be applied too
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

// readRecords reads what appendRecords appended. It sets r.Err if the bytes are invalid.
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

// parseRestorePositions parses the identity of a write with the positions of a restore. Such a
// request has no ops, so rest is empty.
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

// ParsePositions parses the section of positions in a snapshot. It returns the positions, ascending
// by key, and what they add to the snapshot's digest.
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
