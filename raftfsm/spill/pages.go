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
//
// While the table is divided for a split of its shard, some of its keys are in the tables of the
// parts: see parting.go.
type pageTable struct {
	dir atomic.Pointer[directory]
	// The sizes include those of the tables of the parts.
	keys, bytes   atomic.Int64 // number of keys, and memory of all pages
	marks, marked atomic.Int64 // number of marks, and size of the bodies on disk for which they stand
	digest        uint64       // sum of the digests that the writer has passed; guarded by mu in the table of a part

	// of is the table that is divided, if this is the table of a part. It is nil once the part has its own
	// shard.
	of *pageTable
	// bytesMax is the size at which a page of several keys is split in two. It is small, because a
	// write copies its page.
	bytesMax int

	// Writers lock mu. A writer derives a new page only from a page that it has read while mu was
	// locked. The mu of the table that is divided guards the tables of its parts.
	mu sync.Mutex
}

type directory struct {
	bits uint8
	// slots has 2^bits pages, by the first bits of the hash. A slot is nil if its keys have moved to the
	// tables of parts. parted shows that before the slot becomes nil.
	slots  []atomic.Pointer[page]
	parted *parted // nil unless keys have moved to parts
}

const (
	// Beyond slotsFree slots, a directory has at most one slot for each key. So keys with large
	// bodies and similar hashes cannot inflate it. Their page grows instead.
	slotsFree = 16
)

func newPageTable(bytesMax int) *pageTable {
	p := &pageTable{bytesMax: bytesMax}
	p.clear()
	return p
}

func (p *pageTable) clear() {
	d := &directory{slots: make([]atomic.Pointer[page], 1)}
	d.slots[0].Store(newPage(0, 0, 0))
	p.dir.Store(d)
	p.keys.Store(0)
	p.bytes.Store(int64(d.slots[0].Load().bytes()))
	p.marks.Store(0)
	p.marked.Store(0)
	p.digest = 0
}

func (d *directory) slot(hash uint64) int { return int(hash >> 1 >> (63 - d.bits)) }

// page returns the page of a hash in this table, or nil if the page has moved to the tables of parts.
func (p *pageTable) page(hash uint64) *page {
	d := p.dir.Load()
	return d.slots[d.slot(hash)].Load()
}

// find returns the page of a key, and the table that has it: p, or the table of a part.
func (p *pageTable) find(key, hash uint64) (*pageTable, *page) {
	for {
		if t, page := p.tryFind(key, hash); page != nil {
			return t, page
		}
	}
}

// tryFind is like find, but returns no page if the page moves meanwhile.
func (p *pageTable) tryFind(key, hash uint64) (*pageTable, *page) {
	d := p.dir.Load()
	if d.parted != nil {
		if t := d.parted.tableOf(key, hash); t != nil {
			return t.tryFind(key, hash)
		}
	}
	return p, d.slots[d.slot(hash)].Load()
}

// get returns the body of a key, or nil, and marks the key as read now. The caller must
// not change the body.
func (p *pageTable) get(key uint64, now uint32) []byte {
	_, page := p.find(key, Hash(key))
	i := page.find(key)
	if i < 0 {
		return nil
	}
	page.touch(i, now)
	return page.body(i)
}

// peek is like get, but does not mark the key as active. It is for internal reads.
func (p *pageTable) peek(key uint64) []byte {
	_, page := p.find(key, Hash(key))
	return page.bodyOf(key)
}

// set copies body and makes it the body of a key; nil removes the key. digest is added to the digest of the table.
func (p *pageTable) set(key uint64, body []byte, digest uint64, now uint32) {
	hash := Hash(key)
	t, page := p.find(key, hash)
	if p.marks.Load() > 0 {
		if mark := page.bodyOf(key); IsMark(mark) {
			t.count(sizes{marks: -1, marked: -sizeOf(mark)})
		}
	}
	next := page.with(key, body, now)
	t.count(sizes{keys: next.keys() - page.keys(), bytes: next.bytes() - page.bytes()})
	if digest != 0 { // a body that returns to memory has 0, and must not write to what State reads
		p.digest += digest
		if t != p {
			t.digest += digest
		}
	}
	t.place(hash, next)
}

// sizes are changes of the sizes of a table.
type sizes struct{ keys, bytes, marks, marked int }

// count changes the sizes of a table, and of the table that is divided.
func (p *pageTable) count(s sizes) {
	for ; p != nil; p = p.of {
		p.keys.Add(int64(s.keys))
		p.bytes.Add(int64(s.bytes))
		p.marks.Add(int64(s.marks))
		p.marked.Add(int64(s.marked))
	}
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
	p.count(sizes{bytes: low.bytes() + high.bytes() - page.bytes()})
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
	next := &directory{bits: d.bits + 1, slots: make([]atomic.Pointer[page], 2*len(d.slots)), parted: d.parted}
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
		if first == nil || second == nil || first.bits != second.bits || first.bytes()+second.bytes() > p.bytesMax*3/4 {
			return
		}
		b := newPageBuilder(first.keys() + second.keys())
		b.addAll(first)
		b.addAll(second)
		next := b.page(page.bits - 1)
		p.count(sizes{bytes: next.bytes() - first.bytes() - second.bytes()})
		p.put(hash, next)
	}
}

// halve halves the directory, repeatedly, as long as no page needs all bits of the directory.
func (p *pageTable) halve() {
	for d := p.dir.Load(); d.bits > 0; d = p.dir.Load() {
		for i := range d.slots {
			if page := d.slots[i].Load(); page != nil && page.bits == d.bits {
				return
			}
		}
		next := &directory{bits: d.bits - 1, slots: make([]atomic.Pointer[page], len(d.slots)/2), parted: d.parted}
		for i := range next.slots {
			next.slots[i].Store(d.slots[2*i].Load())
		}
		p.dir.Store(next)
	}
}

// pages returns all current pages of this table by hash.
func (p *pageTable) pages() (all []*page) {
	p.each(0, func(page *page) bool {
		all = append(all, page)
		return true
	})
	return all
}

// each calls visit with the pages in the order of hashes, starting at the page of the given hash,
// until visit returns false. If a page changes meanwhile, visit may receive the old page, or the
// pages into which it was split. It skips pages that have moved to the tables of parts.
func (p *pageTable) each(hash uint64, visit func(*page) bool) {
	d := p.dir.Load()
	for i := d.slot(hash); i < len(d.slots); {
		page := d.slots[i].Load()
		if page == nil {
			i++
			continue
		}
		if !visit(page) {
			return
		}
		n := 1 << (d.bits - page.bits)
		i = i&^(n-1) + n
	}
}
