package raftfsm

import (
	"encoding/binary"
	"fmt"
)

// The memory of requests in a snapshot, three sections behind the rows:
//
//	producers:  log time (8) | key floor (8) | number (4) |
//	            by last use: name length (1), name, floor (8), high (8), window (8), refused (8), used (8)
//	gone:       hash of the name (8) | high (8) …                        by when they went
//	keys:       key (16) | body (16) | came (8) | born (8) | refused (1) …   by arrival

const (
	goneSize      = 16
	keyRecordSize = 49
	// producersHeadSize stands before the first producer.
	producersHeadSize = 20
	// producerFixedSize is a producer but for its name.
	producerFixedSize = 41
)

// onceState is the memory as it was at a snapshot's moment, encoded.
type onceState struct{ producers, gone, keys []byte }

func (o *once) state() onceState {
	names := 0
	for name := range o.producers { // a sum, whatever the order
		names += len(name)
	}
	s := onceState{
		producers: make([]byte, 0, producersHeadSize+names+len(o.producers)*producerFixedSize),
		gone:      make([]byte, 0, o.gone.order.len()*goneSize),
		keys:      make([]byte, 0, o.keyOrder.len()*keyRecordSize),
	}
	s.producers = binary.LittleEndian.AppendUint64(s.producers, uint64(o.now))
	s.producers = binary.LittleEndian.AppendUint64(s.producers, uint64(o.keyFloor))
	s.producers = binary.LittleEndian.AppendUint32(s.producers, uint32(len(o.producers)))
	for p := o.idle.next; p != &o.idle; p = p.next {
		s.producers = append(append(s.producers, byte(len(p.name))), p.name...)
		s.producers = binary.LittleEndian.AppendUint64(s.producers, p.floor)
		s.producers = binary.LittleEndian.AppendUint64(s.producers, p.high)
		s.producers = binary.LittleEndian.AppendUint64(s.producers, p.window)
		s.producers = binary.LittleEndian.AppendUint64(s.producers, p.refused)
		s.producers = binary.LittleEndian.AppendUint64(s.producers, uint64(p.used))
	}
	for p := range o.gone.order.all() {
		s.gone = binary.LittleEndian.AppendUint64(s.gone, p.hash)
		s.gone = binary.LittleEndian.AppendUint64(s.gone, p.high)
	}
	for key := range o.keyOrder.all() {
		r := o.keys[*key]
		s.keys = append(append(s.keys, key[:]...), r.body[:]...)
		s.keys = binary.LittleEndian.AppendUint64(s.keys, uint64(r.came))
		s.keys = binary.LittleEndian.AppendUint64(s.keys, uint64(r.born))
		if r.refused {
			s.keys = append(s.keys, 1)
		} else {
			s.keys = append(s.keys, 0)
		}
	}
	return s
}

// restoreProducers, restoreGone and restoreKeys fill an empty memory from the
// sections of a snapshot, in this order.
func (o *once) restoreProducers(p []byte) error {
	if len(p) < producersHeadSize {
		return fmt.Errorf("%w: producers of %d bytes", errSnapshot, len(p))
	}
	o.now, o.keyFloor = int64(binary.LittleEndian.Uint64(p)), int64(binary.LittleEndian.Uint64(p[8:]))
	if o.now < 0 || o.keyFloor > o.now {
		return fmt.Errorf("%w: log time %d, keys from %d", errSnapshot, o.now, o.keyFloor)
	}
	n := binary.LittleEndian.Uint32(p[16:])
	p = p[producersHeadSize:]
	for range n {
		if len(p) < 1 || p[0] == 0 || p[0] > ProducerBytesMax || len(p) < int(p[0])+producerFixedSize {
			return fmt.Errorf("%w: producer of %d bytes", errSnapshot, len(p))
		}
		name := string(p[1 : 1+p[0]])
		p = p[1+len(name):]
		r := &producer{
			name: name, floor: binary.LittleEndian.Uint64(p), high: binary.LittleEndian.Uint64(p[8:]),
			window: binary.LittleEndian.Uint64(p[16:]), refused: binary.LittleEndian.Uint64(p[24:]),
			used: int64(binary.LittleEndian.Uint64(p[32:])),
		}
		p = p[40:]
		bits := r.window&1 == 1 && r.refused&^r.window == 0 && r.high >= r.floor
		if o.producers[name] != nil || !bits || r.used > o.now || o.idle.prev.used > r.used {
			return fmt.Errorf("%w: producer %q", errSnapshot, name)
		}
		o.producers[name] = r
		o.pushIdle(r)
	}
	if len(p) > 0 {
		return fmt.Errorf("%w: %d bytes behind the producers", errSnapshot, len(p))
	}
	return nil
}

func (o *once) restoreGone(p []byte) error {
	if len(p)%goneSize != 0 {
		return fmt.Errorf("%w: gone producers of %d bytes", errSnapshot, len(p))
	}
	for ; len(p) > 0; p = p[goneSize:] {
		r := goneProducer{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])}
		if high, known := o.gone.high(r.hash); known && r.high < high {
			return fmt.Errorf("%w: gone producer %016x", errSnapshot, r.hash)
		}
		o.gone.add(r)
	}
	return nil
}

func (o *once) restoreKeys(p []byte) error {
	if len(p)%keyRecordSize != 0 {
		return fmt.Errorf("%w: keys of %d bytes", errSnapshot, len(p))
	}
	came := int64(0)
	for ; len(p) > 0; p = p[keyRecordSize:] {
		key, r := [16]byte(p), keyRecord{
			body: [16]byte(p[16:]), came: int64(binary.LittleEndian.Uint64(p[32:])),
			born: int64(binary.LittleEndian.Uint64(p[40:])), refused: p[48] == 1,
		}
		if _, twice := o.keys[key]; twice || r.came < came || r.came > o.now || r.born < 0 || p[48] > 1 {
			return fmt.Errorf("%w: key %x", errSnapshot, key)
		}
		came = r.came
		o.keys[key] = r
		o.keyOrder.push(key)
	}
	return nil
}
