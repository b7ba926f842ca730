package dedup

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm/codec"
)

// The memory of requests in a snapshot, three sections behind the rows, and a fourth, drawn
// in positions.go, if a source has ever written here:
//
//	producers:  log time (8) | key floor (8) | idle floor (8) | number (4) |
//	            by last use: name length (1), name, floor (8), high (8), window (8), refused (8), partly (8), used (8)
//	gone:       hash of the name (8) | high (8) …                        in the order in which they were forgotten
//	keys:       judges (4) | by group of a judge, ascending: group (4), highest dropped met (8) |
//	            key (16) | body (16) | last (8) | flags (1) …            by arrival, those ahead behind the others
//	            flags: bit 0 every op overflowed, bit 1 it was made ahead of the log,
//	            bit 2 some ops overflowed, not each, bit 3 another shard judged it: judge (4) | met (8) follow

const (
	forgottenSize = 16
	keyRecordSize = 41
	// producersHeadSize stands before the first producer.
	producersHeadSize = 28
	// producerFixedSize is a producer but for its name.
	producerFixedSize = 49

	keyRefused = 1 // flags of a key
	keyAhead   = 2
	keyPartly  = 4
	keyJudged  = 8

	// judgedRecordSize is what a record of a use that another shard judged takes more.
	judgedRecordSize = 12
	// droppedSize is a judge with the highest dropped met.
	droppedSize = 12
)

// View is the memory as it was at one moment. Any goroutine may read it while the
// memory changes.
type View struct {
	now, keyFloor, idleFloor int64

	producers   producers
	forgotten   fifo[forgottenProducer]
	keys, ahead fifo[keyRecord]
	dropped     map[uint32]int64
	positions   positions
}

// Capture copies one pointer per block of records. Producers are copied page by page
// when they change; other records never change.
func (o *Memory) Capture() *View {
	return &View{
		now: o.now, keyFloor: o.keyFloor, idleFloor: o.idleFloor, producers: o.producers.capture(),
		forgotten: o.forgotten.order.capture(), keys: o.keys.records.capture(), ahead: o.ahead.records.capture(),
		dropped: maps.Clone(o.dropped), positions: o.positions.capture(),
	}
}

// Write writes the sections of the memory, which end a snapshot.
func (v *View) Write(w *codec.StreamWriter) error {
	for i, fill := range []func([]byte) []byte{v.appendProducers, v.appendForgotten, v.appendKeys} {
		if err := w.Section(byte(codec.StreamProducers+i), fill); err != nil {
			return err
		}
	}
	if v.positions.empty() {
		return nil
	}
	return w.Section(codec.StreamPositions, v.positions.appendTo)
}

// SectionFollows reports whether the sections of the memory are in order: all behind
// every other section, each once.
func SectionFollows(section, last byte) bool {
	if IsSection(last) {
		return section == last+1 && IsSection(section)
	}
	return !IsSection(section) || section == codec.StreamProducers
}

// IsSection reports whether a section belongs to the memory.
func IsSection(section byte) bool {
	return section >= codec.StreamProducers && section <= codec.StreamPositions
}

// Ends reports whether the end of a snapshot may follow a section.
func Ends(last byte) bool { return last == codec.StreamKeys || last == codec.StreamPositions }

func (v *View) appendProducers(dst []byte) []byte {
	dst = slices.Grow(dst, producersHeadSize+v.producers.len*(ProducerBytesMax+producerFixedSize))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(v.now))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(v.keyFloor))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(v.idleFloor))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(v.producers.len))
	for p := range v.producers.all() {
		dst = append(append(dst, byte(len(p.name))), p.name...)
		for _, n := range [...]uint64{p.floor, p.high, p.window, p.refused, p.partly, uint64(p.used)} {
			dst = binary.LittleEndian.AppendUint64(dst, n)
		}
	}
	return dst
}

func (v *View) appendForgotten(dst []byte) []byte {
	dst = slices.Grow(dst, v.forgotten.len()*forgottenSize)
	for p := range v.forgotten.all() {
		dst = binary.LittleEndian.AppendUint64(dst, p.hash)
		dst = binary.LittleEndian.AppendUint64(dst, p.high)
	}
	return dst
}

func (v *View) appendKeys(dst []byte) []byte {
	dst = slices.Grow(dst, 4+len(v.dropped)*droppedSize+(v.keys.len()+v.ahead.len())*(keyRecordSize+judgedRecordSize))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(v.dropped)))
	for _, judge := range slices.Sorted(maps.Keys(v.dropped)) {
		dst = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(dst, judge), uint64(v.dropped[judge]))
	}
	for r := range v.keys.all() {
		dst = r.appendTo(dst, 0)
	}
	for r := range v.ahead.all() {
		dst = r.appendTo(dst, keyAhead)
	}
	return dst
}

func (r *keyRecord) appendTo(dst []byte, flags byte) []byte {
	switch r.again {
	case Refused:
		flags |= keyRefused
	case PartlyRefused:
		flags |= keyPartly
	}
	if !r.judgedHere() {
		flags |= keyJudged
	}
	dst = append(append(dst, r.key[:]...), r.body[:]...)
	dst = append(binary.LittleEndian.AppendUint64(dst, uint64(r.last)), flags)
	if r.judgedHere() {
		return dst
	}
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(dst, r.judge), uint64(r.met))
}

// Load fills an empty memory from its sections. They must come in the order in which
// Write wrote them.
func (o *Memory) Load(section byte, p []byte) error {
	switch section {
	case codec.StreamProducers:
		return o.restoreProducers(p)
	case codec.StreamForgotten:
		return o.restoreForgotten(p)
	case codec.StreamKeys:
		return o.restoreKeys(p)
	}
	return o.positions.load(p)
}

// restoreProducers, restoreForgotten and restoreKeys each load one section.
func (o *Memory) restoreProducers(p []byte) error {
	if len(p) < producersHeadSize {
		return fmt.Errorf("%w: producers of %d bytes", codec.ErrSnapshot, len(p))
	}
	ms := func(at int) int64 { return int64(binary.LittleEndian.Uint64(p[at:])) }
	o.now, o.keyFloor, o.idleFloor = ms(0), ms(8), ms(16)
	if o.now < 0 || o.keyFloor > o.now || o.idleFloor > o.now {
		return fmt.Errorf("%w: log time %d, keys from %d, producers from %d", codec.ErrSnapshot, o.now, o.keyFloor, o.idleFloor)
	}
	n := binary.LittleEndian.Uint32(p[24:])
	p = p[producersHeadSize:]
	for range n {
		if len(p) < 1 || p[0] == 0 || p[0] > ProducerBytesMax || len(p) < int(p[0])+producerFixedSize {
			return fmt.Errorf("%w: producer of %d bytes", codec.ErrSnapshot, len(p))
		}
		name := string(p[1 : 1+p[0]])
		p = p[1+len(name):]
		r := producer{
			name: name, floor: binary.LittleEndian.Uint64(p), high: binary.LittleEndian.Uint64(p[8:]),
			window: binary.LittleEndian.Uint64(p[16:]), refused: binary.LittleEndian.Uint64(p[24:]),
			partly: binary.LittleEndian.Uint64(p[32:]), used: int64(binary.LittleEndian.Uint64(p[40:])),
		}
		p = p[48:]
		bits := r.window&1 == 1 && (r.refused|r.partly)&^r.window == 0 && r.refused&r.partly == 0 && r.high >= r.floor
		_, twice := o.producers.slot[name]
		if last := o.producers.at(o.producers.at(0).prev); twice || !bits || r.used > o.now || last.used > r.used {
			return fmt.Errorf("%w: producer %q", codec.ErrSnapshot, name)
		}
		o.producers.add(r)
	}
	if len(p) > 0 {
		return fmt.Errorf("%w: %d bytes behind the producers", codec.ErrSnapshot, len(p))
	}
	return nil
}

func (o *Memory) restoreForgotten(p []byte) error {
	if len(p)%forgottenSize != 0 {
		return fmt.Errorf("%w: gone producers of %d bytes", codec.ErrSnapshot, len(p))
	}
	for ; len(p) > 0; p = p[forgottenSize:] {
		r := forgottenProducer{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])}
		if high, known := o.forgotten.high(r.hash); known && r.high < high {
			return fmt.Errorf("%w: gone producer %016x", codec.ErrSnapshot, r.hash)
		}
		o.forgotten.add(r)
	}
	return nil
}

// againOf returns the outcome of repeats that the flags of a key state.
func againOf(flags byte) (again Outcome, ok bool) {
	switch flags {
	case 0:
		return Duplicate, true
	case keyRefused:
		return Refused, true
	case keyPartly:
		return PartlyRefused, true
	}
	return 0, false
}

// parseKeyRecord reads what appendTo of a record wrote.
func parseKeyRecord(p []byte) (r keyRecord, flags byte, rest []byte, ok bool) {
	if len(p) < keyRecordSize {
		return r, 0, nil, false
	}
	flags = p[40]
	r = keyRecord{key: [16]byte(p), body: [16]byte(p[16:]), last: int64(binary.LittleEndian.Uint64(p[32:]))}
	p = p[keyRecordSize:]
	if flags&keyJudged != 0 {
		if len(p) < judgedRecordSize {
			return r, 0, nil, false
		}
		r.judge, r.met = binary.LittleEndian.Uint32(p), int64(binary.LittleEndian.Uint64(p[4:]))
		if p = p[judgedRecordSize:]; r.judge == 0 || r.met <= 0 {
			return r, 0, nil, false
		}
	}
	r.again, ok = againOf(flags &^ (keyAhead | keyJudged))
	return r, flags, p, ok
}

// restoreDropped reads the judges, and returns what follows.
func (o *Memory) restoreDropped(p []byte) (rest []byte, err error) {
	if len(p) < 4 || uint64(binary.LittleEndian.Uint32(p))*droppedSize > uint64(len(p)-4) {
		return nil, fmt.Errorf("%w: keys of %d bytes", codec.ErrSnapshot, len(p))
	}
	n, last := binary.LittleEndian.Uint32(p), uint32(0)
	for p = p[4:]; n > 0; n-- {
		judge, met := binary.LittleEndian.Uint32(p), int64(binary.LittleEndian.Uint64(p[4:]))
		if judge <= last || met <= 0 {
			return nil, fmt.Errorf("%w: judge %d of keys", codec.ErrSnapshot, judge)
		}
		o.dropped[judge], last = met, judge
		p = p[droppedSize:]
	}
	return p, nil
}

func (o *Memory) restoreKeys(p []byte) error {
	p, err := o.restoreDropped(p)
	if err != nil {
		return err
	}
	for last, behind := int64(0), byte(0); len(p) > 0; {
		r, flags, rest, ok := parseKeyRecord(p)
		if !ok {
			return fmt.Errorf("%w: key of %d bytes", codec.ErrSnapshot, len(p))
		}
		p = rest
		ahead := flags & keyAhead
		ordered := ahead == keyAhead && r.judgedHere() || ahead == 0 && r.last >= last && r.last <= o.now
		before := o.key(r.key)
		follows := before == nil || before.judge == r.judge && before.met < r.met
		if ahead < behind || r.last < 0 || !ordered || !follows {
			return fmt.Errorf("%w: key %x", codec.ErrSnapshot, r.key)
		}
		last, behind = r.last, ahead
		if ahead != 0 {
			o.ahead.push(r)
		} else {
			o.keys.push(r)
		}
	}
	return nil
}
