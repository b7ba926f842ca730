package dedup

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

// In a snapshot, the request memory is these three sections after the contents, a fourth one with the
// positions (see positions.go), and a fifth one with the names of the judge (see judging.go):
//
//	producers:  log time (8) | key floor (8) | idle floor (8) | number (4) |
//	            by last use: name length (1), name, floor (8), high (8), window (8), refused (8), partly (8), used (8)
//	forgotten:  hash of the name (8) | high (8) …                        in the order in which they were forgotten
//	keys:       judges (4) | by group of a judge, ascending: group (4), highest dropped met (8) |
//	            key (16) | body (16) | last (8) | flags (1) …            by arrival, those ahead after the others
//	            flags: bit 0 every op overflowed, bit 1 it was created ahead of the log,
//	            bit 2 some but not all ops overflowed, bit 3 another shard judged it: judge (4) | met (8) follow

// These are the flags of a key.
const (
	keyRefused = 1
	keyAhead   = 2
	keyPartly  = 4
	keyJudged  = 8
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
	judging     judging
}

// Capture copies only a pointer per block of records. Later changes first copy the page of the
// changed producer; other records never change.
func (o *Memory) Capture() *View {
	return &View{
		now: o.now, keyFloor: o.keyFloor, idleFloor: o.idleFloor, producers: o.producers.capture(),
		forgotten: o.forgotten.order.capture(), keys: o.keys.records.capture(), ahead: o.ahead.records.capture(),
		dropped: maps.Clone(o.dropped), positions: o.positions.capture(), judging: o.judging,
	}
}

// Write writes the sections of the memory, which are at the end of a snapshot.
func (v *View) Write(w *codec.StreamWriter) error {
	for i, fill := range []func([]byte) []byte{v.appendProducers, v.appendForgotten} {
		if err := w.Section(byte(codec.StreamProducers+i), fill); err != nil {
			return err
		}
	}
	for from := 0; from == 0 || from < v.keys.len()+v.ahead.len(); from += KeysOfSection {
		if err := w.Section(codec.StreamKeys, func(dst []byte) []byte { return v.appendKeys(dst, from) }); err != nil {
			return err
		}
	}
	if !v.positions.empty() {
		if err := w.Section(codec.StreamPositions, v.positions.appendTo); err != nil {
			return err
		}
	}
	if v.judging.names == nil {
		return nil
	}
	return w.Section(codec.StreamJudging, v.judging.appendTo)
}

// IsSection reports whether a section belongs to the memory.
func IsSection(section byte) bool {
	return section >= codec.StreamProducers && section <= codec.StreamPositions || section == codec.StreamJudging
}

func (v *View) appendProducers(dst []byte) []byte {
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
	for p := range v.forgotten.all() {
		dst = binary.LittleEndian.AppendUint64(dst, p.hash)
		dst = binary.LittleEndian.AppendUint64(dst, p.high)
	}
	return dst
}

// appendKeys appends the section with KeysOfSection records from the given one on. The first section names
// the judges.
func (v *View) appendKeys(dst []byte, from int) []byte {
	if from > 0 {
		dst = binary.LittleEndian.AppendUint32(dst, 0)
	} else {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(v.dropped)))
		for _, judge := range slices.Sorted(maps.Keys(v.dropped)) {
			dst = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(dst, judge), uint64(v.dropped[judge]))
		}
	}
	keys := v.keys.len()
	for i := from; i < min(from+KeysOfSection, keys+v.ahead.len()); i++ {
		if i >= keys {
			dst = v.ahead.at(v.ahead.first+uint64(i-keys)).appendTo(dst, keyAhead)
			continue
		}
		r := *v.keys.at(v.keys.first + uint64(i))
		r.judge, r.met = v.judging.of(&r)
		dst = r.appendTo(dst, 0)
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

// Load adds a section to a memory that was empty at first. Sections must be passed in the order in
// which Write wrote them.
func (o *Memory) Load(section byte, p []byte) error {
	switch section {
	case codec.StreamProducers:
		return o.restoreProducers(p)
	case codec.StreamForgotten:
		return o.restoreForgotten(p)
	case codec.StreamKeys:
		return o.restoreKeys(p)
	case codec.StreamJudging:
		return o.judging.load(p)
	}
	return o.positions.load(p)
}

// restoreProducers, restoreForgotten and restoreKeys each load one section.
func (o *Memory) restoreProducers(p []byte) error {
	r := wire.Reader{Rest: p}
	o.now, o.keyFloor, o.idleFloor = int64(r.Fixed64()), int64(r.Fixed64()), int64(r.Fixed64())
	if o.now < 0 || o.keyFloor > o.now || o.idleFloor > o.now {
		return fmt.Errorf("%w: log time %d, keys from %d, producers from %d", codec.ErrSnapshot, o.now, o.keyFloor, o.idleFloor)
	}
	for range r.Fixed32() {
		p := producer{
			name: string(r.Take(uint64(r.Byte()))), floor: r.Fixed64(), high: r.Fixed64(),
			window: r.Fixed64(), refused: r.Fixed64(), partly: r.Fixed64(), used: int64(r.Fixed64()),
		}
		named := len(p.name) >= 1 && len(p.name) <= ProducerBytesMax
		bits := p.window&1 == 1 && (p.refused|p.partly)&^p.window == 0 && p.refused&p.partly == 0 && p.high >= p.floor
		_, twice := o.producers.slot[p.name]
		if last := o.producers.at(o.producers.at(0).prev); r.Err != nil || twice || !named || !bits || p.used > o.now || last.used > p.used {
			return fmt.Errorf("%w: producer %q", codec.ErrSnapshot, p.name)
		}
		o.producers.add(p)
	}
	return ended(&r)
}

// ended returns an error if the section was too short or has bytes left.
func ended(r *wire.Reader) error {
	if err := r.End(); err != nil {
		return fmt.Errorf("%w: memory of requests: %w", codec.ErrSnapshot, err)
	}
	return nil
}

func (o *Memory) restoreForgotten(p []byte) error {
	r := wire.Reader{Rest: p}
	for len(r.Rest) > 0 {
		p := forgottenProducer{hash: r.Fixed64(), high: r.Fixed64()}
		if high, known := o.forgotten.high(p.hash); r.Err != nil || known && p.high < high {
			return fmt.Errorf("%w: forgotten producer %016x", codec.ErrSnapshot, p.hash)
		}
		o.forgotten.add(p)
	}
	return ended(&r)
}

// readKeyRecord reads what keyRecord.appendTo appended. It sets r.Err if the bytes are invalid.
func readKeyRecord(r *wire.Reader) (k keyRecord, ahead byte) {
	copy(k.key[:], r.Take(16))
	copy(k.body[:], r.Take(16))
	k.last = int64(r.Fixed64())
	flags := r.Byte()
	if flags&keyJudged != 0 {
		if k.judge, k.met = r.Fixed32(), int64(r.Fixed64()); k.judge == 0 || k.met <= 0 {
			r.Fail("the judge of a key")
		}
	}
	switch flags &^ (keyAhead | keyJudged) {
	case 0:
		k.again = Duplicate
	case keyRefused:
		k.again = Refused
	case keyPartly:
		k.again = PartlyRefused
	default:
		r.Fail("the flags of a key")
	}
	return k, flags & keyAhead
}

func (o *Memory) restoreKeys(p []byte) error {
	r := wire.Reader{Rest: p}
	n, last := r.Fixed32(), uint32(0)
	for range n {
		judge, met := r.Fixed32(), int64(r.Fixed64())
		if judge <= last || met <= 0 {
			return fmt.Errorf("%w: judge %d of keys", codec.ErrSnapshot, judge)
		}
		o.dropped[judge], last = met, judge
	}
	latest, behind := int64(0), byte(0)
	if o.keys.records.len() > 0 { // an earlier section
		latest = o.keys.records.at(o.keys.records.end - 1).last
	}
	if o.ahead.records.len() > 0 {
		behind = keyAhead
	}
	for len(r.Rest) > 0 {
		k, ahead := readKeyRecord(&r)
		ordered := ahead == keyAhead && k.judgedHere() || ahead == 0 && k.last >= latest && k.last <= o.now
		before, judge, met := o.key(&RequestID{key: k.key})
		follows := before == nil || judge != 0 && k.judge != 0 && (judge != k.judge || met < k.met)
		if r.Err != nil || ahead < behind || k.last < 0 || !ordered || !follows {
			return fmt.Errorf("%w: key %x", codec.ErrSnapshot, k.key)
		}
		latest, behind = k.last, ahead
		if ahead != 0 {
			o.ahead.push(k)
		} else {
			o.keys.push(k)
		}
	}
	return ended(&r)
}
