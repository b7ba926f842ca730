package spill

import (
	"cmp"
	"errors"
	"math"
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
)

// This file divides the bodies of a shard for a split, in place and concurrently with the writer and
// with readers. DESIGN.md has the argument.

// parted is how far a table is divided by by. It never changes; each step makes another one.
//
// Invariant: a key with a hash below above is in the table of its part. Any other key is where older has it or, if
// older does not have it, in the table that is divided.
type parted struct {
	by     engine.Partition
	above  uint64
	all    bool // all keys are in the tables of the parts
	tables []*pageTable
	// older is an earlier division by another Partition, which this one takes apart. It is nil once none of its keys is
	// left.
	older *parted
}

func (q *parted) has(hash uint64) bool { return q.all || hash < q.above }

// tableOf returns the table of the part that has a key, or nil if no part has it.
func (q *parted) tableOf(key, hash uint64) *pageTable {
	for ; q != nil; q = q.older {
		if q.has(hash) {
			return q.tables[q.by.Of(key)]
		}
	}
	return nil
}

// tables returns the tables with the keys of p in the order of hashes: all hashes of the tables in one element are
// below those in the next.
func (p *pageTable) tables() (all [][]*pageTable) {
	for q := p.dir.Load().parted; q != nil; q = q.older {
		all = append(all, q.tables)
	}
	return append(all, []*pageTable{p})
}

// eachPage calls visit with each page of p and of the tables of parts. The order is that of hashes only in each table.
func (p *pageTable) eachPage(visit func(*page)) {
	for _, tables := range p.tables() {
		for _, t := range tables {
			t.each(0, func(page *page) bool {
				visit(page)
				return true
			})
		}
	}
}

const (
	// A step moves pages of about stepBytes, or stepKeys keys, or reads stepReadBytes from disk. It takes a few
	// milliseconds.
	stepBytes     = 64 << 10
	stepKeys      = 1000
	stepReadBytes = 1 << 20
)

// ErrEnded is returned for bodies that another shard has taken over, or that are released.
var ErrEnded = errors.New("the bodies belong to another shard, or were released")

// errHalfParted is returned by Split for bodies that somebody else has divided or cleared meanwhile. It cannot happen.
var errHalfParted = errors.New("the bodies are not divided as the split needs")

// Part moves some bodies to tables of the parts of a coming split, concurrently with the writer and with readers. It
// returns false once no body is left to move. No body changes, so a parting may end at any time. It goes on with the
// next call, also after a Part by another Partition. Part reads the bodies on disk that it moves, because it needs their
// digests. It keeps none of them in memory. It returns ErrEnded after Split and Dispose, and ErrLost.
//
// Part moves nothing, and returns true, while a round moves bodies to disk or a Split moves the rest. Either may take
// minutes, and the other shards of a node should part their data meanwhile.
func (b *Bodies) Part(by engine.Partition) (more bool, err error) {
	return b.part(by, stepBytes, stepKeys)
}

// part is Part with other bounds of a step.
func (b *Bodies) part(by engine.Partition, bytesMax, keysMax int) (more bool, err error) {
	if !b.stepping.TryLock() {
		return true, nil
	}
	defer b.stepping.Unlock()
	return b.stepLocked(by, bytesMax, keysMax, false)
}

// stepLocked makes a step of Part. The caller holds stepping. While a round runs, it waits if waits is set.
func (b *Bodies) stepLocked(by engine.Partition, bytesMax, keysMax int, waits bool) (more bool, err error) {
	if b.out != nil {
		if waits {
			b.out.turn.Lock() // no body moves to disk meanwhile, and no record is removed that a mark needs
		} else if !b.out.turn.TryLock() {
			return true, nil
		}
		defer b.out.turn.Unlock()
	}
	q, err := b.beginParting(by)
	if err != nil || q.all {
		return false, err
	}
	s := step{Bodies: b, q: q}
	s.tables, s.last = b.pages.source(q)
	err = s.read(bytesMax, keysMax)
	b.pages.mu.Lock()
	defer b.pages.mu.Unlock()
	switch {
	case b.hasEndedLocked():
		return false, ErrEnded
	case b.pages.dir.Load().parted != q:
		return true, nil // Clear has removed all bodies, and perhaps the records
	case err != nil:
		return false, err
	}
	return s.moveLocked(), nil
}

func (b *Bodies) hasEndedLocked() bool {
	return len(b.heirs) > 0 || b.out != nil && b.out.closed.Load()
}

// hasEnded reports whether other Bodies have the pages now, or Dispose was called. While the caller holds spilled.turn,
// no other Bodies take the pages.
func (b *Bodies) hasEnded() bool {
	b.pages.mu.Lock()
	defer b.pages.mu.Unlock()
	return b.hasEndedLocked()
}

// beginParting returns the division by by. The caller holds stepping, so only Clear changes the division meanwhile.
func (b *Bodies) beginParting(by engine.Partition) (*parted, error) {
	p := b.pages
	for {
		d := p.dir.Load()
		q, tables := d.parted, []*pageTable(nil)
		if q == nil || q.by != by {
			tables = p.emptyParts(d, len(by.Classes())) // before the lock, because this takes 0.2 s for 4 million slots
			q = &parted{by: by, tables: tables, older: d.parted}
		}
		if ok, err := b.publishParting(q, tables); ok || err != nil {
			return q, err
		}
	}
}

// publishParting shows new tables of parts, which nobody has seen, or none. It returns false if Clear has removed the
// division on which they build.
func (b *Bodies) publishParting(q *parted, tables []*pageTable) (ok bool, err error) {
	p := b.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.dir.Load()
	switch {
	case b.hasEndedLocked():
		return false, ErrEnded
	case tables == nil:
		return d.parted == q, nil
	case d.parted != q.older:
		return false, nil
	}
	for _, t := range tables {
		p.count(sizes{bytes: t.page(0).bytes()})
	}
	p.dir.Store(&directory{bits: d.bits, slots: d.slots, parted: q})
	return true, nil
}

// emptyParts returns tables for the parts of a table with the directory d.
func (p *pageTable) emptyParts(d *directory, parts int) (tables []*pageTable) {
	// A part has some 1/parts of the keys. With fewer slots, its first pages would become large.
	least := max(0, int(d.bits)-(bits.Len(uint(parts))-1))
	if d.parted != nil {
		least = max(least, int(d.parted.tables[0].dir.Load().bits)-1)
	}
	for range parts {
		t := newPageTable(p.bytesMax)
		empty := t.page(0)
		of := &directory{bits: uint8(least), slots: make([]atomic.Pointer[page], 1<<least)}
		for i := range of.slots {
			of.slots[i].Store(empty)
		}
		t.dir.Store(of)
		t.of = p
		tables = append(tables, t)
	}
	return tables
}

// source returns the tables that have the next keys to move, and the last hash that they have.
func (p *pageTable) source(q *parted) (tables []*pageTable, last uint64) {
	for o := q.older; o != nil; o = o.older {
		if o.all {
			return o.tables, math.MaxUint64
		}
		if q.above < o.above {
			return o.tables, o.above - 1
		}
	}
	return []*pageTable{p}, math.MaxUint64
}

// step is the move of the keys with hashes from q.above to last.
type step struct {
	*Bodies
	q      *parted
	tables []*pageTable // have the keys
	last   uint64
	known  [][]known // for each table, ascending by hash
}

// known is the digest of a body, or of the body for which a mark stands.
type known struct {
	hash   uint64
	body   []byte
	digest uint64
}

// within calls visit with the pages that have hashes from first to last, until visit returns false.
func (p *pageTable) within(first, last uint64, visit func(*page) bool) {
	for {
		page := p.page(first)
		end := page.end(first)
		if !visit(page) || end >= last {
			return
		}
		first = end + 1
	}
}

// read chooses last, and computes the digests of the bodies while the writer goes on.
func (s *step) read(bytesMax, keysMax int) (err error) {
	var view *View
	defer func() {
		if view != nil {
			view.Close()
		}
	}()
	end, bytes, fromDisk := s.last, 0, 0
	s.known = make([][]known, len(s.tables))
	for first := s.q.above; ; first = s.last + 1 {
		s.last = first
		for _, t := range s.tables {
			// Where the largest page ends, no other page continues: the range of a page has 2^n hashes, and begins at a
			// multiple of 2^n.
			s.last = max(s.last, min(end, t.page(first).end(first)))
		}
		for i, t := range s.tables {
			t.within(first, s.last, func(page *page) bool {
				bytes += page.bytes()
				for j := 0; j < page.keys() && err == nil; j++ {
					key, body := page.key(j), page.body(j)
					k := known{hash: Hash(key), body: body}
					if IsMark(body) {
						if view == nil {
							view = &View{cfg: &s.shard.cfg, out: s.out.records.Capture()}
						}
						body, err = view.read(key, body)
						fromDisk += len(body)
					}
					if err == nil {
						k.digest = s.shard.digest(key, body)
						s.known[i] = append(s.known[i], k)
					}
				}
				return err == nil
			})
		}
		keys := 0
		for _, known := range s.known {
			keys += len(known)
		}
		if err != nil || s.last == end || bytes >= bytesMax || keys >= keysMax || fromDisk >= stepReadBytes {
			return err
		}
	}
}

// moved is a key that moves to a part.
type moved struct {
	key, hash uint64
	body      []byte
	touched   uint32
}

func (p *page) moved(i int) moved {
	return moved{key: p.key(i), hash: Hash(p.key(i)), body: p.body(i), touched: p.touchedAt(i)}
}

// moveLocked moves the keys as they are now. It returns false if no keys are left to move.
func (s *step) moveLocked() (more bool) {
	all := make([][]moved, len(s.q.tables))
	bytes := 0
	for i, t := range s.tables {
		known := s.known[i]
		t.within(s.q.above, s.last, func(page *page) bool {
			bytes += page.bytes()
			for j := range page.keys() {
				key, body := page.key(j), page.body(j)
				m := page.moved(j)
				for len(known) > 0 && known[0].hash < m.hash {
					known = known[1:]
				}
				part := s.q.by.Of(key)
				if all[part] = append(all[part], m); len(known) > 0 && known[0].hash == m.hash && string(known[0].body) == string(body) {
					s.q.tables[part].digest += known[0].digest
				} else {
					s.q.tables[part].digest += s.shard.digest(key, body) // the writer has changed it, so it is in memory
				}
			}
			return true
		})
	}
	for part, t := range s.q.tables {
		if len(s.tables) > 1 {
			slices.SortFunc(all[part], func(a, b moved) int { return cmp.Compare(a.hash, b.hash) })
		}
		t.append(all[part])
	}
	s.pages.count(sizes{bytes: -bytes})
	s.publishLocked()
	return s.last < math.MaxUint64
}

// publishLocked moves the frontier, and then releases the pages whose keys have moved. So whoever still finds a page
// has a page as it was before the step, and whoever finds none sees the new frontier.
func (s *step) publishLocked() {
	next, d := *s.q, s.pages.dir.Load()
	next.all, next.above = s.last == math.MaxUint64, s.last+1
	var empty []*pageTable
	for o := next.older; o != nil && (next.all || !o.all && o.above <= next.above); o = next.older {
		next.older, empty = o.older, append(empty, o.tables...)
	}
	s.pages.dir.Store(&directory{bits: d.bits, slots: d.slots, parted: &next})
	for _, t := range s.tables {
		of, end := t.dir.Load(), t.page(s.last).end(s.last) // above s.last, that page has no keys
		for i := of.slot(s.q.above); i <= of.slot(end); i++ {
			of.slots[i].Store(nil)
		}
	}
	for _, t := range empty {
		t.each(0, func(page *page) bool { // pages without keys
			s.pages.count(sizes{bytes: -page.bytes()})
			return true
		})
	}
	if next.all {
		s.pages.dir.Store(&directory{slots: make([]atomic.Pointer[page], 1), parted: &next})
	}
}

// append adds keys to the table of a part. Their hashes are above those of its keys. The sizes of the table that is
// divided stay, but for the memory of pages.
func (p *pageTable) append(keys []moved) {
	for i := range keys {
		if IsMark(keys[i].body) {
			p.marks.Add(1)
			p.marked.Add(int64(sizeOf(keys[i].body)))
		}
	}
	p.keys.Add(int64(len(keys)))
	for len(keys) > 0 {
		page := p.page(keys[0].hash)
		end := page.end(keys[0].hash)
		n := 1
		for n < len(keys) && keys[n].hash <= end {
			n++
		}
		all := make([]moved, 0, page.keys()+n)
		for i := range page.keys() {
			all = append(all, page.moved(i))
		}
		p.count(sizes{bytes: -page.bytes()})
		p.placeAll(end&^(math.MaxUint64>>page.bits), page.bits, append(all, keys[:n]...))
		keys = keys[n:]
	}
}

// placeAll makes the pages of all keys whose hashes begin with the first sharedBits of hash, as place would. It copies
// each body once.
func (p *pageTable) placeAll(hash uint64, sharedBits uint8, keys []moved) {
	bytes := pageBytes + headBytes*len(keys) + wire.RicePadding
	for i := range keys {
		bytes += len(keys[i].body)
	}
	d := p.dir.Load()
	full := bytes > p.bytesMax && len(keys) > 1
	if full && sharedBits == d.bits {
		if full = int64(2*len(d.slots)) <= slotsFree+p.keys.Load(); full {
			p.double(d)
		}
	}
	if !full {
		b := newPageBuilder(len(keys))
		for i := range keys {
			b.add(keys[i].key, keys[i].body, keys[i].touched)
		}
		page := b.page(sharedBits)
		p.count(sizes{bytes: page.bytes()})
		p.put(hash, page)
		return
	}
	high := hash | 1<<(63-sharedBits)
	n := sort.Search(len(keys), func(i int) bool { return keys[i].hash >= high })
	p.placeAll(hash, sharedBits+1, keys[:n])
	p.placeAll(high, sharedBits+1, keys[n:])
}

// Split gives each shard of to the bodies of its part, and returns these as Bodies of that shard, not shown yet. to has
// empty Bodies, which it disposes of. Split moves the bodies that Part has left, and copies none. Only the writer may
// call it. Afterwards b still has all bodies, but nobody must write to it.
func (b *Bodies) Split(by engine.Partition, to []*Bodies) ([]*Bodies, error) {
	b.shard.pauses.Add(1) // a running Spill ends soon
	defer b.shard.pauses.Add(-1)
	b.stepping.Lock() // until the end, because a step for an earlier attempt may still divide the bodies in another way
	defer b.stepping.Unlock()
	for more := true; more; {
		var err error
		if more, err = b.stepLocked(by, stepBytes, stepKeys, true); err != nil {
			return nil, err
		}
	}
	defer b.lock()()
	q := b.pages.dir.Load().parted
	if q == nil || q.by != by || !q.all {
		return nil, errHalfParted
	}
	parts := make([]*Bodies, len(to))
	for i, t := range q.tables {
		out, err := b.shareLocked()
		if err != nil {
			return nil, err
		}
		t.of = nil
		parts[i] = to[i].takes(t, out, b.Origin)
	}
	if b.out != nil {
		for _, hash := range b.out.gone {
			part := parts[by.Of(keyOf(hash))]
			part.out.gone = append(part.out.gone, hash)
		}
	}
	b.heirs = parts
	return parts, nil
}

// HandOver returns all bodies as Bodies of the shard of to, not shown yet. It takes the same time for any number of
// bodies. to has no bodies, and HandOver disposes of it. Afterwards nobody must write to b. If the caller disposes of
// the result before Show, it may call HandOver again. HandOver returns ErrEnded if b is disposed of.
func (b *Bodies) HandOver(to *Bodies) (*Bodies, error) {
	defer b.lock()()
	out, err := b.shareLocked()
	if err != nil {
		return nil, err
	}
	if out != nil {
		out.gone = slices.Clone(b.out.gone)
	} else {
		out = newSpilled(&to.shard.cfg.Place)
	}
	took := to.takes(b.pages, out, b.Origin)
	b.heirs = append(b.heirs, took)
	return took, nil
}

// lock excludes writers and the moves of bodies to disk until unlock.
func (b *Bodies) lock() (unlock func()) {
	if b.out == nil {
		b.pages.mu.Lock()
		return b.pages.mu.Unlock
	}
	b.out.turn.Lock()
	b.pages.mu.Lock()
	return func() {
		b.pages.mu.Unlock()
		b.out.turn.Unlock()
	}
}

// shareLocked returns what other Bodies need to use the records too. It returns nil if bodies never leave memory.
func (b *Bodies) shareLocked() (*spilled, error) {
	if b.out == nil {
		return nil, nil
	}
	if b.out.closed.Load() || !b.out.records.Share() {
		return nil, ErrEnded
	}
	out := &spilled{records: b.out.records}
	out.turn.version = b.out.turn.version // so that no version is used again under a key
	return out, nil
}

// takes replaces b, which has no bodies, by Bodies with the pages and the records of others.
func (b *Bodies) takes(pages *pageTable, out *spilled, origin uint64) *Bodies {
	took := &Bodies{shard: b.shard, pages: pages, out: out, Origin: origin}
	b.shard.newest.Store(took)
	b.Dispose()
	return took
}
