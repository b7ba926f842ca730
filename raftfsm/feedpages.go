package raftfsm

import (
	"encoding/binary"
	"sync/atomic"
)

// feedPages holds the followees of all users of a shard, by extendible hashing
// (Fagin, Nievergelt, Pippenger and Strong, 1979): a directory of 2^bits pages by
// the first bits of a user's hash. A page never changes; a write makes another one
// and puts it into the directory. So one writer needs no lock, a reader holds a
// page that is whole, and a snapshot is a copy of the directory.
//
// A page, integers little-endian:
//
//	users (4) | key (8) … | end of each in the bodies (4) … | bodies: followees.go | ricePadding zeros
//
// in the order of the users' hashes.
type feedPages struct {
	dir   atomic.Pointer[feedDirectory]
	users atomic.Int64
	bytes atomic.Int64 // of pages
}

type feedDirectory struct {
	bits  uint8
	slots []atomic.Pointer[feedPage] // 2^bits; by the first bits of the hash
}

type feedPage struct {
	bits uint8 // of the hash that all its users share
	data []byte
}

const (
	// feedPageBytesMax is where a page of several users is cut in two: some ten
	// users that follow a hundred. A write copies its page.
	feedPageBytesMax = 4 << 10
	// A directory has at most one slot a user beyond feedSlotsFree, so that users
	// with many followees, whose hashes begin alike, cannot blow it up. Their page
	// grows instead.
	feedSlotsFree = 16

	feedUsersOffset = 4
	feedHeadBytes   = 12 // of a user
	// feedPageOverhead is what a page takes beside its data: itself and a slot.
	feedPageOverhead = 48
)

func newFeedPages() *feedPages {
	p := &feedPages{}
	p.clear()
	return p
}

// clear takes all users away.
func (p *feedPages) clear() {
	d := &feedDirectory{slots: make([]atomic.Pointer[feedPage], 1)}
	d.slots[0].Store(&feedPage{data: make([]byte, feedUsersOffset+ricePadding)})
	p.dir.Store(d)
	p.users.Store(0)
	p.bytes.Store(int64(len(d.slots[0].Load().data) + feedPageOverhead))
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

// get returns the followees of a user in their form in memory, nil for one without
// any. They are not to be changed.
func (p *feedPages) get(key uint64) []byte {
	d := p.dir.Load()
	page := d.slots[d.slot(feedHash(key))].Load()
	if i := page.find(key); i >= 0 {
		return page.body(i)
	}
	return nil
}

// set gives a user followees in their form in memory, which it copies; nil for
// none.
func (p *feedPages) set(key uint64, body []byte) {
	hash := feedHash(key)
	d := p.dir.Load()
	page := d.slots[d.slot(hash)].Load()
	next := page.with(key, body)
	p.users.Add(int64(next.users() - page.users()))
	p.bytes.Add(int64(len(next.data) - len(page.data)))
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
	p.bytes.Add(int64(len(low.data) + len(high.data) + feedPageOverhead - len(page.data)))
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

// pages returns all pages by hash, as they are now.
func (p *feedPages) pages() []*feedPage {
	d := p.dir.Load()
	var all []*feedPage
	for i := 0; i < len(d.slots); {
		page := d.slots[i].Load()
		all = append(all, page)
		i += 1 << (d.bits - page.bits)
	}
	return all
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

// with returns a page with another body for a user, without the user if it is nil.
func (f *feedPage) with(key uint64, body []byte) *feedPage {
	b := pageBuilder{}
	hash := feedHash(key)
	placed := body == nil
	for i := range f.users() {
		other := f.key(i)
		if !placed && feedHash(other) >= hash {
			b.add(key, body)
			placed = true
		}
		if other != key {
			b.add(other, f.body(i))
		}
	}
	if !placed {
		b.add(key, body)
	}
	return b.page(f.bits)
}

// cut returns the users whose next bit of the hash is 0, and those where it is 1.
func (f *feedPage) cut() (low, high *feedPage) {
	var halves [2]pageBuilder
	for i := range f.users() {
		key := f.key(i)
		halves[feedHash(key)>>(63-f.bits)&1].add(key, f.body(i))
	}
	return halves[0].page(f.bits + 1), halves[1].page(f.bits + 1)
}

// pageBuilder collects the users of a page in their order.
type pageBuilder struct {
	keys   []uint64
	bodies [][]byte
	bytes  int
}

func (b *pageBuilder) add(key uint64, body []byte) {
	b.keys, b.bodies = append(b.keys, key), append(b.bodies, body)
	b.bytes += len(body)
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
	return &feedPage{bits: sharedBits, data: append(data, make([]byte, ricePadding)...)}
}
