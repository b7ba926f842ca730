// Package names owns the state machine of shards of names. A shard of names gives each text that it
// is asked for a number: 1, 2, 3 and so on, in the order of the log. Keyspaces whose ids are texts
// use the numbers in place of ids. Texts that nobody uses move from memory to the replica's disk. The
// move changes no answer.
//
// It never counts anything, and never learns which keyspaces use a number.
//
// Invariant: a number has one text, and a text one number, for ever. Only Erase ends a pair, and
// then the number is never given again. DESIGN.md says why.
package names

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// Machine is the state machine of the only shard of a names keyspace.
type Machine struct {
	raftfsm.Base
	bodies  *spill.Shard
	current atomic.Pointer[contents] // Restore replaces the contents
}

// pageBytes suffices for three blocks of UUIDs.
const pageBytes = 4 << 10

// New returns a shard of names before its first entry. Idle blocks move from memory to place. Each
// replica decides by itself which blocks to move.
func New(place spill.Place) *Machine {
	m := &Machine{bodies: spill.NewShard(spill.Config{Place: place, What: "names, block", PageBytes: pageBytes})}
	m.Init(codec.KindNames, func() raftfsm.Contents {
		c := &contents{bodies: m.bodies.New(), index: newIndex(), next: 1}
		c.given.Store(1)
		return c
	}, func(held raftfsm.Contents) {
		m.bodies.Show(held.(*contents).bodies)
		m.current.Store(held.(*contents))
	})
	return m
}

// Bodies returns the blocks as bodies that may leave memory.
func (m *Machine) Bodies() *spill.Shard { return m.bodies }

// Close implements Machine.
func (m *Machine) Close() { m.bodies.Close() }

// Bytes implements Machine. While a snapshot is being restored, the blocks that were loaded so far
// count too.
func (m *Machine) Bytes() uint64 { return m.bodies.Bytes() + m.current.Load().index.size() }

// SnapshotBytes implements Machine. A snapshot has no index.
func (m *Machine) SnapshotBytes() uint64 {
	s := m.bodies.Stats()
	return s.Bytes + s.SpilledBytes
}

// Grows implements Machine.
func (m *Machine) Grows(_ uint64, op any) bool {
	o, is := op.(*Op)
	return is && (o.Kind == Assign || o.Kind == Put)
}

// contents is the state of a shard of names.
type contents struct {
	raftfsm.InMemory
	bodies *spill.Bodies // the blocks; their digest is that of all pairs
	index  *index
	names  atomic.Uint64 // number of texts
	next   uint64        // the number that the next new text gets
	given  atomic.Uint64 // next, once the blocks of all lower numbers are visible to reads
	marks  marks         // when numbers were given

	ops     []op
	block   openBlock
	loading reader
}

// op is an op of the entry being applied.
type op struct {
	Op
	slot []byte
	hash uint32
	void bool
}

// openBlock is the block that Apply changed last. It is in bodies after flush.
type openBlock struct {
	key    uint64 // 0 for none
	body   []byte
	spare  []byte
	digest uint64 // by which the digest of the block has changed
}

func (c *contents) Begin() { c.ops = c.ops[:0] }

func (c *contents) Decode(_ *dedup.RequestID, p []byte, clocked bool) (int, error) {
	return raftfsm.ParseOps(p, func(p []byte) ([]byte, error) {
		parsed, rest, err := parseOp(p)
		if err == nil && parsed.clocked() && !clocked {
			err = fmt.Errorf("%w: %s before the clock", codec.ErrEntry, parsed.Kind)
		}
		if err != nil {
			return nil, err
		}
		c.ops = append(c.ops, op{Op: parsed})
		return rest, nil
	})
}

// Void turns the last ops into reads of the number.
func (c *contents) Void(ops int) {
	for i := len(c.ops) - ops; i < len(c.ops); i++ {
		c.ops[i].void = true
	}
}

func (c *contents) Apply(now int64, _ bool, r *raftfsm.Result) error {
	for i := range c.ops {
		o := &c.ops[i]
		o.slot = appendSlot(o.slot[:0], o.Text)
		o.hash = c.index.hash(o.slot)
	}
	if err := c.bodies.LockReturned(c.blocks); err != nil {
		return err
	}
	defer c.bodies.Unlock()
	for i := range c.ops {
		number, why, ok := c.change(&c.ops[i], now)
		if !ok {
			r.Overflows = append(r.Overflows, engine.Overflow{Op: i, Column: why})
		}
		if r.Width > 0 {
			r.Rows[i*r.Width] = int64(number)
		}
	}
	c.flush()
	c.given.Store(c.next)
	return nil
}

// blocks calls yield with each block that Apply of the ops may read or change: those of all texts with
// the hash of an op's text, that of a Put, and that of the next number. A block without a number below
// next does not exist before the entry.
func (c *contents) blocks(yield func(key uint64)) {
	numbers := []uint64{c.next}
	for i := range c.ops {
		o := &c.ops[i]
		if numbers = c.index.candidates(numbers, o.hash); o.Kind == Put {
			numbers = append(numbers, o.Number)
		}
	}
	for _, number := range numbers {
		key, _ := blockOf(number)
		yield(key)
	}
}

// change applies an op, and returns the number of its text. If it refuses the op, it returns why and
// false. The argument now is the log's time.
func (c *contents) change(o *op, now int64) (number uint64, why Refusal, ok bool) {
	if o.Text != "" {
		number = c.find(o.slot, o.hash)
	}
	switch {
	case o.void:
		return number, 0, true
	case o.Kind == Assign && number == 0:
		if number = c.next; number > NumberMax {
			return 0, RefusedFull, false
		}
		c.set(number, o)
		c.next = number + 1
		c.marks.add(mark{now, c.next})
	case o.Kind == Erase && number > 0:
		c.index.remove(o.hash, number)
		c.names.Add(^uint64(0))
		c.replace(number, nil, -pairDigest(number, o.slot))
	case o.Kind == Put:
		return c.put(number, o)
	case o.Kind == Skip:
		c.next += min(o.Number, (NumberMax+1-c.next)/2)
	}
	return number, 0, true
}

// put applies a Put whose text has the number has, or 0.
func (c *contents) put(has uint64, o *op) (number uint64, why Refusal, ok bool) {
	if o.Text != "" && has != o.Number {
		key, slot := blockOf(o.Number)
		if has > 0 || slotAt(c.body(key), slot) != nil {
			return has, RefusedTaken, false
		}
		c.set(o.Number, o)
	}
	if c.next = max(c.next, o.Number+1); o.At > 0 {
		c.marks.add(mark{o.At, o.Number + 1})
	}
	return o.Number, 0, true
}

// set gives a number to the text of an op.
func (c *contents) set(number uint64, o *op) {
	c.replace(number, o.slot, pairDigest(number, o.slot))
	c.index.add(o.hash, number)
	c.names.Add(1)
}

// find returns the number of a text, or 0. All blocks of its candidates must be in memory.
func (c *contents) find(slot []byte, hash uint32) uint64 {
	var buf [8]uint64
	for _, number := range c.index.candidates(buf[:0], hash) {
		key, at := blockOf(number)
		if string(slotAt(c.body(key), at)) == string(slot) {
			return number
		}
	}
	return 0
}

// body returns the body of a block as the ops so far have left it.
func (c *contents) body(key uint64) []byte {
	if c.block.key == key {
		return c.block.body
	}
	return c.bodies.Get(key)
}

// replace replaces the slot of a number, and adds digest to that of its block.
func (c *contents) replace(number uint64, slot []byte, digest uint64) {
	b := &c.block
	key, at := blockOf(number)
	if b.key != key {
		c.flush()
		b.key, b.body = key, append(b.body[:0], c.bodies.Get(key)...)
	}
	b.digest += digest
	if slot != nil && len(b.body) > 0 && at == int(b.body[0]) { // the usual case: the next number
		b.body[0]++
		b.body = append(b.body, slot...)
		return
	}
	b.body, b.spare = setSlot(b.spare[:0], b.body, at, slot), b.body
}

// flush stores the open block in bodies.
func (c *contents) flush() {
	b := &c.block
	if b.key == 0 {
		return
	}
	body := b.body
	if len(body) == 0 {
		body = nil
	}
	c.bodies.Set(b.key, body, b.digest)
	b.key, b.digest = 0, 0
}

// pairDigest returns a pair's part of the digest.
func pairDigest(number uint64, slot []byte) uint64 {
	sum := wire.MixNext(number)
	for len(slot) >= 8 {
		sum = wire.MixNext(sum ^ binary.LittleEndian.Uint64(slot))
		slot = slot[8:]
	}
	var last [8]byte
	copy(last[:], slot)
	return wire.MixNext(sum ^ binary.LittleEndian.Uint64(last[:]) ^ uint64(len(slot))<<56)
}

// Digest implements raftfsm.Contents. It covers the next number and the marks too.
func (c *contents) Digest() uint64 { return c.bodies.Digest() + c.marks.digest(c.next) }

func (c *contents) Stats() engine.Stats {
	s := c.bodies.Stats()
	return engine.Stats{Rows: c.names.Load(), Segments: s.Slots, Bytes: s.Bytes + c.index.size(), ColdRows: min(s.Spilled*blockSize, c.names.Load()), ColdBytes: s.SpilledBytes}
}

func (c *contents) Dispose() { c.bodies.Dispose() }

// Split implements raftfsm.Contents: a names keyspace has one shard, for ever.
func (c *contents) Split(*raftfsm.Split, []raftfsm.Contents) error { return raftfsm.ErrUndivided }
