package raftfsm

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"unsafe"
)

// feedPages holds the followees of all users of a shard, by extendible hashing
// (Fagin, Nievergelt, Pippenger and Strong, 1979): a directory of 2^bits pages by
// the first bits of a user's hash. A page never changes; a write makes another one
// and puts it into the directory. So a reader needs no lock and holds a page that is
// whole, and a snapshot is a copy of the directory.
//
// A page, integers little-endian:
//
//	users (4) | key (8) … | end of each in the bodies (4) … | bodies | ricePadding zeros
//
// in the order of the users' hashes. A body is followees as in followees.go, or says
// that they are not in memory, as in feedspill.go.
type feedPages struct {
	dir   atomic.Pointer[feedDirectory]
	users atomic.Int64
	bytes atomic.Int64   // of pages
	clock *atomic.Uint32 // the time now, as touched has it

	// mu is held by who writes. What it makes of a page follows from the page alone
	// that it finds under it.
	mu sync.Mutex
}

type feedDirectory struct {
	bits  uint8
	slots []atomic.Pointer[feedPage] // 2^bits; by the first bits of the hash
}

type feedPage struct {
	bits uint8 // of the hash that all its users share
	data []byte
	// touched is when each user was last asked for or written, by the clock of the
	// pages. A reader sets it, beside others and beside a writer that copies the page:
	// one that is lost makes a user look idle for longer, and nothing else.
	touched []atomic.Uint32
}

const (
	// feedPageBytesMax is where a page of several users is cut in two: some ten
	// users that follow a hundred. A write copies its page.
	feedPageBytesMax = 4 << 10
	// feedMergedBytesMax is up to where two pages become one once their users are not
	// in memory: little enough that the page is not cut again by the next that is.
	feedMergedBytesMax = 3 << 10
	// A directory has at most one slot a user beyond feedSlotsFree, so that users
	// with many followees, whose hashes begin alike, cannot blow it up. Their page
	// grows instead.
	feedSlotsFree = 16

	feedUsersOffset = 4
	feedHeadBytes   = 12 // of a user
	// feedPageOverhead is what a page takes beside its data and its users' times.
	feedPageOverhead = int(unsafe.Sizeof(feedPage{}))
)

func newFeedPages(clock *atomic.Uint32) *feedPages {
	p := &feedPages{clock: clock}
	p.clear()
	return p
}

// clear takes all users away.
func (p *feedPages) clear() {
	d := &feedDirectory{slots: make([]atomic.Pointer[feedPage], 1)}
	d.slots[0].Store(&feedPage{data: make([]byte, feedUsersOffset+ricePadding)})
	p.dir.Store(d)
	p.users.Store(0)
	p.bytes.Store(d.slots[0].Load().bytes())
}

// feedHash orders users. It is a bijection, the finalizer of splitmix64 (Steele,
// Lea and Flood, 2014).
func feedHash(key uint64) uint64 {
	x := key + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (d *feedDirectory) slot(hash uint64) int { return int(hash >> 1 >> (63 - d.bits)) }

// page returns the page of a hash.
func (p *feedPages) page(hash uint64) *feedPage {
	d := p.dir.Load()
	return d.slots[d.slot(hash)].Load()
}

// get returns the body of a user, nil for one without any, and notes that it was
// asked for. It is not to be changed.
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

// peek is get for who does not ask for a user's sake.
func (p *feedPages) peek(key uint64) []byte {
	page := p.page(feedHash(key))
	if i := page.find(key); i >= 0 {
		return page.body(i)
	}
	return nil
}

// set gives a user a body, which it copies; nil for none.
func (p *feedPages) set(key uint64, body []byte) {
	hash := feedHash(key)
	page := p.page(hash)
	next := page.with(key, body, p.clock.Load())
	p.users.Add(int64(next.users() - page.users()))
	p.bytes.Add(next.bytes() - page.bytes())
	p.place(hash, next)
}

// place stores a page for all its hashes, of which one is given, in as many pages
// as it takes.
func (p *feedPages) place(hash uint64, page *feedPage) {
	p.put(hash, page)
	if len(page.data) <= feedPageBytesMax || page.users() < 2 {
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

// put stores a page in all slots of its hashes, of which one is given.
func (p *feedPages) put(hash uint64, page *feedPage) {
	d := p.dir.Load()
	n := 1 << (d.bits - page.bits)
	first := d.slot(hash) &^ (n - 1)
	for i := range n {
		d.slots[first+i].Store(page)
	}
}

// double makes a directory of twice the slots. Whoever reads the old one finds the
// pages in it, which stay whole.
func (p *feedPages) double(d *feedDirectory) {
	next := &feedDirectory{bits: d.bits + 1, slots: make([]atomic.Pointer[feedPage], 2*len(d.slots))}
	for i := range next.slots {
		next.slots[i].Store(d.slots[i/2].Load())
	}
	p.dir.Store(next)
}

// merge makes one page of the one of a hash and its neighbour, with which it shares
// all bits but the last, and so on while they are small.
func (p *feedPages) merge(hash uint64) {
	for {
		page := p.page(hash)
		if page.bits == 0 {
			return
		}
		high := uint64(1) << (64 - page.bits)
		first, second := p.page(hash&^high), p.page(hash|high)
		if first.bits != second.bits || len(first.data)+len(second.data) > feedMergedBytesMax {
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

// halve makes a directory of half the slots while no page needs all bits of it.
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

// pages returns all pages by hash, as they are now.
func (p *feedPages) pages() (all []*feedPage) {
	p.each(0, func(page *feedPage) bool {
		all = append(all, page)
		return true
	})
	return all
}

// each calls visit with the pages from that of a hash on, by hash, until it says no. A
// page that changes meanwhile may be visited as it was, or as several.
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

// bytes is what the page takes, without its slots.
func (f *feedPage) bytes() int64 {
	return int64(len(f.data) + len(f.touched)*int(unsafe.Sizeof(f.touched[0])) + feedPageOverhead)
}

func (f *feedPage) users() int { return int(binary.LittleEndian.Uint32(f.data)) }

func (f *feedPage) key(i int) uint64 {
	return binary.LittleEndian.Uint64(f.data[feedUsersOffset+8*i:])
}

// body returns the followees of user i, with room behind them for a reader of
// bits.
func (f *feedPage) body(i int) []byte {
	users := f.users()
	ends, bodies := f.data[feedUsersOffset+8*users:], f.data[feedUsersOffset+feedHeadBytes*users:]
	start := uint32(0)
	if i > 0 {
		start = binary.LittleEndian.Uint32(ends[4*(i-1):])
	}
	return bodies[start:binary.LittleEndian.Uint32(ends[4*i:])]
}

// find returns the number of a user, or -1.
func (f *feedPage) find(key uint64) int {
	for i := range f.users() {
		if f.key(i) == key {
			return i
		}
	}
	return -1
}

// with returns a page with another body for a user at a time, without the user if it
// is nil.
func (f *feedPage) with(key uint64, body []byte, now uint32) *feedPage {
	b := newPageBuilder(f.users() + 1)
	hash := feedHash(key)
	placed := body == nil
	for i := range f.users() {
		other := f.key(i)
		if !placed && feedHash(other) >= hash {
			b.add(key, body, now)
			placed = true
		}
		if other != key {
			b.addUser(f, i)
		}
	}
	if !placed {
		b.add(key, body, now)
	}
	return b.page(f.bits)
}

// cut returns the users whose next bit of the hash is 0, and those where it is 1.
func (f *feedPage) cut() (low, high *feedPage) {
	halves := [2]pageBuilder{newPageBuilder(f.users()), newPageBuilder(f.users())}
	for i := range f.users() {
		halves[feedHash(f.key(i))>>(63-f.bits)&1].addUser(f, i)
	}
	return halves[0].page(f.bits + 1), halves[1].page(f.bits + 1)
}

// pageBuilder collects the users of a page in their order.
type pageBuilder struct {
	keys    []uint64
	bodies  [][]byte
	touched []uint32
	bytes   int
}

func newPageBuilder(users int) pageBuilder {
	return pageBuilder{keys: make([]uint64, 0, users), bodies: make([][]byte, 0, users), touched: make([]uint32, 0, users)}
}

func (b *pageBuilder) add(key uint64, body []byte, touched uint32) {
	b.keys, b.bodies, b.touched = append(b.keys, key), append(b.bodies, body), append(b.touched, touched)
	b.bytes += len(body)
}

// addUser adds user i of a page.
func (b *pageBuilder) addUser(f *feedPage, i int) { b.add(f.key(i), f.body(i), f.touched[i].Load()) }

func (b *pageBuilder) addAll(f *feedPage) {
	for i := range f.users() {
		b.addUser(f, i)
	}
}

func (b *pageBuilder) page(sharedBits uint8) *feedPage {
	data := make([]byte, 0, feedUsersOffset+feedHeadBytes*len(b.keys)+b.bytes+ricePadding)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(b.keys)))
	for _, key := range b.keys {
		data = binary.LittleEndian.AppendUint64(data, key)
	}
	end := 0
	for _, body := range b.bodies {
		end += len(body)
		data = binary.LittleEndian.AppendUint32(data, uint32(end))
	}
	for _, body := range b.bodies {
		data = append(data, body...)
	}
	page := &feedPage{bits: sharedBits, data: append(data, make([]byte, ricePadding)...), touched: make([]atomic.Uint32, len(b.keys))}
	for i, at := range b.touched {
		page.touched[i].Store(at)
	}
	return page
}
