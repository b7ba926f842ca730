package spill

import (
	"sync"
	"sync/atomic"
)

// pageTable holds the bodies of all keys of a shard in an extendible hash table (Fagin,
// Nievergelt, Pippenger and Strong, 1979). The first bits of a key's hash index a
// directory of 2^bits pages. A page never changes; a write stores a new page in the
// directory. So a reader needs no lock and always sees a whole page, and a snapshot is
// a copy of the directory.
type pageTable struct {
	dir   atomic.Pointer[directory]
	keys  atomic.Int64
	bytes atomic.Int64   // memory of all pages
	clock *atomic.Uint32 // the current time, in the unit of head.touched
	// bytesMax is the size at which a page of several keys is split in two. It is small, because a
	// write copies its page.
	bytesMax int

	// Writers lock mu. A writer derives a new page only from a page that it has read while mu was
	// locked.
	mu sync.Mutex
}

type directory struct {
	bits  uint8
	slots []atomic.Pointer[page] // 2^bits pages, by the first bits of the hash
}

const (
	// Beyond slotsFree slots, a directory has at most one slot for each key. So keys with large
	// bodies and similar hashes cannot inflate it. Their page grows instead.
	slotsFree = 16
)

func newPageTable(clock *atomic.Uint32, bytesMax int) *pageTable {
	p := &pageTable{clock: clock, bytesMax: bytesMax}
	p.clear()
	return p
}

func (p *pageTable) clear() {
	d := &directory{slots: make([]atomic.Pointer[page], 1)}
	d.slots[0].Store(newPage(0, 0, 0))
	p.dir.Store(d)
	p.keys.Store(0)
	p.bytes.Store(int64(d.slots[0].Load().bytes()))
}

func (d *directory) slot(hash uint64) int { return int(hash >> 1 >> (63 - d.bits)) }

func (p *pageTable) page(hash uint64) *page {
	d := p.dir.Load()
	return d.slots[d.slot(hash)].Load()
}

// get returns the body of a key, or nil, and marks the key as active. The caller must
// not change the body.
func (p *pageTable) get(key uint64) []byte {
	page := p.page(Hash(key))
	i := page.find(key)
	if i < 0 {
		return nil
	}
	page.touch(i, p.clock.Load())
	return page.body(i)
}

// peek is like get, but does not mark the key as active. It is for internal reads.
func (p *pageTable) peek(key uint64) []byte {
	return p.page(Hash(key)).bodyOf(key)
}

// set copies body and makes it the body of a key; nil removes the key.
func (p *pageTable) set(key uint64, body []byte) {
	hash := Hash(key)
	page := p.page(hash)
	next := page.with(key, body, p.clock.Load())
	p.keys.Add(int64(next.keys() - page.keys()))
	p.bytes.Add(int64(next.bytes() - page.bytes()))
	p.place(hash, next)
}

// place stores a page. If the page is too large, it splits the page first. hash is any hash in the
// range of the page.
func (p *pageTable) place(hash uint64, page *page) {
	p.put(hash, page)
	if page.bytes() <= p.bytesMax || page.keys() < 2 {
		return
	}
	if d := p.dir.Load(); page.bits == d.bits {
		if int64(2*len(d.slots)) > slotsFree+p.keys.Load() {
			return
		}
		p.double(d)
	}
	low, high := page.cut()
	p.bytes.Add(int64(low.bytes() + high.bytes() - page.bytes()))
	first := hash &^ (^uint64(0) >> page.bits)
	p.place(first, low)
	p.place(first|1<<(63-page.bits), high)
}

// put stores a page in all slots of its range of hashes. hash is any hash in that range.
func (p *pageTable) put(hash uint64, page *page) {
	d := p.dir.Load()
	n := 1 << (d.bits - page.bits)
	first := d.slot(hash) &^ (n - 1)
	for i := range n {
		d.slots[first+i].Store(page)
	}
}

// double doubles the directory. A reader of the old directory still finds whole pages.
func (p *pageTable) double(d *directory) {
	next := &directory{bits: d.bits + 1, slots: make([]atomic.Pointer[page], 2*len(d.slots))}
	for i := range next.slots {
		next.slots[i].Store(d.slots[i/2].Load())
	}
	p.dir.Store(next)
}

// merge merges the page of a hash with its neighbour, whose shared bits differ only in the last
// bit. It then tries to merge the result in the same way. It makes no page larger than three
// quarters of bytesMax, so that the next body that returns does not split the page again.
func (p *pageTable) merge(hash uint64) {
	for {
		page := p.page(hash)
		if page.bits == 0 {
			return
		}
		high := uint64(1) << (64 - page.bits)
		first, second := p.page(hash&^high), p.page(hash|high)
		if first.bits != second.bits || first.bytes()+second.bytes() > p.bytesMax*3/4 {
			return
		}
		b := newPageBuilder(first.keys() + second.keys())
		b.addAll(first)
		b.addAll(second)
		next := b.page(page.bits - 1)
		p.bytes.Add(int64(next.bytes() - first.bytes() - second.bytes()))
		p.put(hash, next)
	}
}

// halve halves the directory, repeatedly, as long as no page needs all bits of the directory.
func (p *pageTable) halve() {
	for d := p.dir.Load(); d.bits > 0; d = p.dir.Load() {
		for i := range d.slots {
			if d.slots[i].Load().bits == d.bits {
				return
			}
		}
		next := &directory{bits: d.bits - 1, slots: make([]atomic.Pointer[page], len(d.slots)/2)}
		for i := range next.slots {
			next.slots[i].Store(d.slots[2*i].Load())
		}
		p.dir.Store(next)
	}
}

// pages returns all current pages by hash.
func (p *pageTable) pages() (all []*page) {
	p.each(0, func(page *page) bool {
		all = append(all, page)
		return true
	})
	return all
}

// each calls visit with the pages in the order of hashes, starting at the page of the given hash,
// until visit returns false. If a page changes meanwhile, visit may receive the old page, or the
// pages into which it was split.
func (p *pageTable) each(hash uint64, visit func(*page) bool) {
	d := p.dir.Load()
	for i := d.slot(hash); i < len(d.slots); {
		page := d.slots[i].Load()
		if !visit(page) {
			return
		}
		n := 1 << (d.bits - page.bits)
		i = i&^(n-1) + n
	}
}
