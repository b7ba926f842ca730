package raftfsm

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/countd/countd/engine/golomb"
	"github.com/countd/countd/internal/splitmix"
)

// feedPages holds the followees of all users of a shard in an extendible hash table
// (Fagin, Nievergelt, Pippenger and Strong, 1979): a directory of 2^bits pages, indexed
// by the first bits of a user's hash. A page never changes; a write stores a new page in
// the directory. So a reader needs no lock and always sees a whole page, and a snapshot
// is a copy of the directory.
//
// A page, integers little-endian:
//
//	users (4) | key (8), end in the bodies (4) … | bodies | golomb.RicePadding zeros
//
// in the order of the users' hashes. A body is followees as in followees.go, or a mark
// that they are on disk, as in feedspill.go.
type feedPages struct {
	dir   atomic.Pointer[feedDirectory]
	users atomic.Int64
	bytes atomic.Int64   // of pages
	clock *atomic.Uint32 // the current time, in the unit of touched
	// bytesMax is the size at which a page of several users is split in two. A write copies
	// its page.
	bytesMax int

	// mu is held by writers. A writer derives a new page only from the page that it
	// finds under mu.
	mu sync.Mutex
}

type feedDirectory struct {
	bits  uint8
	slots []atomic.Pointer[feedPage] // 2^bits; by the first bits of the hash
}

const (
	// feedPageBytesMax is bytesMax of feeds: about ten users with a hundred followees each.
	feedPageBytesMax = 4 << 10
	// Beyond feedSlotsFree a directory has at most one slot a user, so that users with
	// many followees and similar hashes cannot inflate it. Their page grows instead.
	feedSlotsFree = 16

	feedUsersOffset = 4
	feedHeadBytes   = 12 // per user
	// feedPageOverhead is the size of a page besides its data and its users' times.
	feedPageOverhead = int(unsafe.Sizeof(feedPage{}))
)

func newFeedPages(clock *atomic.Uint32, bytesMax int) *feedPages {
	p := &feedPages{clock: clock, bytesMax: bytesMax}
	p.clear()
	return p
}

// clear removes all users.
func (p *feedPages) clear() {
	d := &feedDirectory{slots: make([]atomic.Pointer[feedPage], 1)}
	d.slots[0].Store(&feedPage{data: make([]byte, feedUsersOffset+golomb.RicePadding)})
	p.dir.Store(d)
	p.users.Store(0)
	p.bytes.Store(d.slots[0].Load().bytes())
}

// feedHash orders users. It is a bijection.
func feedHash(key uint64) uint64 { return splitmix.Next(key) }

func (d *feedDirectory) slot(hash uint64) int { return int(hash >> 1 >> (63 - d.bits)) }

// page returns the page of a hash.
func (p *feedPages) page(hash uint64) *feedPage {
	d := p.dir.Load()
	return d.slots[d.slot(hash)].Load()
}

// get returns the body of a user, or nil, and marks the user as active. The caller must
// not change the body.
func (p *feedPages) get(key uint64) []byte {
	page := p.page(feedHash(key))
	i := page.find(key)
	if i < 0 {
		return nil
	}
	if now := p.clock.Load(); page.touched[i].Load() != now {
		page.touched[i].Store(now)
	}
	return page.body(i)
}

// peek is get for internal reads, which do not make a user look active.
func (p *feedPages) peek(key uint64) []byte {
	return p.page(feedHash(key)).bodyOf(key)
}

// set copies body and makes it the body of a user; nil removes the user.
func (p *feedPages) set(key uint64, body []byte) {
	hash := feedHash(key)
	page := p.page(hash)
	next := page.with(key, body, p.clock.Load())
	p.users.Add(int64(next.users() - page.users()))
	p.bytes.Add(next.bytes() - page.bytes())
	p.place(hash, next)
}

// place stores a page, one of whose hashes is given, as one page or as several if it is
// too large.
func (p *feedPages) place(hash uint64, page *feedPage) {
	p.put(hash, page)
	if len(page.data) <= p.bytesMax || page.users() < 2 {
		return
	}
	if d := p.dir.Load(); page.bits == d.bits {
		if int64(2*len(d.slots)) > feedSlotsFree+p.users.Load() {
			return
		}
		p.double(d)
	}
	low, high := page.cut()
	p.bytes.Add(low.bytes() + high.bytes() - page.bytes())
	first := hash &^ (^uint64(0) >> page.bits)
	p.place(first, low)
	p.place(first|1<<(63-page.bits), high)
}

// put stores a page, one of whose hashes is given, in the slots of all its hashes.
func (p *feedPages) put(hash uint64, page *feedPage) {
	d := p.dir.Load()
	n := 1 << (d.bits - page.bits)
	first := d.slot(hash) &^ (n - 1)
	for i := range n {
		d.slots[first+i].Store(page)
	}
}

// double doubles the directory. A reader of the old directory still finds whole pages.
func (p *feedPages) double(d *feedDirectory) {
	next := &feedDirectory{bits: d.bits + 1, slots: make([]atomic.Pointer[feedPage], 2*len(d.slots))}
	for i := range next.slots {
		next.slots[i].Store(d.slots[i/2].Load())
	}
	p.dir.Store(next)
}

// merge merges the page of a hash with its neighbour, which differs in the last bit
// only, and repeats that while the pages are so small that the next returning user does
// not split them again.
func (p *feedPages) merge(hash uint64) {
	for {
		page := p.page(hash)
		if page.bits == 0 {
			return
		}
		high := uint64(1) << (64 - page.bits)
		first, second := p.page(hash&^high), p.page(hash|high)
		if first.bits != second.bits || len(first.data)+len(second.data) > p.bytesMax*3/4 {
			return
		}
		b := newPageBuilder(first.users() + second.users())
		b.addAll(first)
		b.addAll(second)
		next := b.page(page.bits - 1)
		p.bytes.Add(next.bytes() - first.bytes() - second.bytes())
		p.put(hash, next)
	}
}

// halve halves the directory while no page needs all its bits.
func (p *feedPages) halve() {
	for d := p.dir.Load(); d.bits > 0; d = p.dir.Load() {
		for i := range d.slots {
			if d.slots[i].Load().bits == d.bits {
				return
			}
		}
		next := &feedDirectory{bits: d.bits - 1, slots: make([]atomic.Pointer[feedPage], len(d.slots)/2)}
		for i := range next.slots {
			next.slots[i].Store(d.slots[2*i].Load())
		}
		p.dir.Store(next)
	}
}

// pages returns all current pages by hash.
func (p *feedPages) pages() (all []*feedPage) {
	p.each(0, func(page *feedPage) bool {
		all = append(all, page)
		return true
	})
	return all
}

// each calls visit with the pages by hash, starting at the page of a hash, until visit
// returns false. It may visit a page that changes meanwhile in its old form, or as
// several.
func (p *feedPages) each(hash uint64, visit func(*feedPage) bool) {
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
