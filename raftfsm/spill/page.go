package spill

import (
	"math"
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
)

// page is an immutable page of some keys of a shard. Only the times in its heads change. A page is
// the beginning of a block of memory, in which heads and bodies are in the order of the keys'
// hashes:
//
//	page | head … | bodies | wire.RicePadding zeros
//
// A mark takes the place of a body on disk (disk.go). A look-up waits for memory only twice: for
// the heads, whose address is in the directory, and for the body. No part has a pointer, so the
// garbage collector does not scan the block.
type page struct {
	count uint32 // number of keys
	size  uint32 // bytes of the bodies and their padding
	bits  uint8  // number of leading bits of the hash that all keys of the page share
}

// head is a key of a page.
type head struct {
	key uint64
	end uint32 // end of its body in page.bodies; the body begins at the end of the previous body
	// touched is the time of the last read or write of the key, by the clock of the pages.
	// Readers set it concurrently with each other and with a writer that copies the page,
	// so all access is atomic. A lost update only makes a key look idle for longer.
	touched uint32
}

const (
	pageBytes = int(unsafe.Sizeof(page{})+7) &^ 7
	headBytes = int(unsafe.Sizeof(head{}))
	wordBytes = 8
	lineBytes = 64
)

// newPage returns a page for the caller to fill. keys is the number of its keys, and bodies the
// total size of its bodies.
func newPage(sharedBits uint8, keys, bodies int) *page {
	size := bodies + wire.RicePadding
	bytes := max(pageBytes+headBytes*keys+size, pageBytes+headBytes) // space for one head, so that heads has a valid pointer even without keys
	block := make([]uint64, (bytes+wordBytes-1)/wordBytes)
	p := (*page)(unsafe.Pointer(&block[0]))
	*p = page{count: uint32(keys), size: uint32(size), bits: sharedBits}
	return p
}

func (p *page) heads() []head {
	return unsafe.Slice((*head)(unsafe.Add(unsafe.Pointer(p), pageBytes)), p.count)
}

// bodies returns all bodies, and the padding.
func (p *page) bodies() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(p), pageBytes+headBytes*int(p.count))), p.size)
}

// bytes returns the size of the page without its directory slots.
func (p *page) bytes() int { return pageBytes + headBytes*int(p.count) + int(p.size) }

func (p *page) keys() int { return int(p.count) }

// end returns the highest hash in the range of the page. hash is any hash in that range.
func (p *page) end(hash uint64) uint64 { return hash | math.MaxUint64>>p.bits }

func (p *page) key(i int) uint64 { return p.heads()[i].key }

// body returns the body of key i, or its mark, with the padding that a bit reader needs.
func (p *page) body(i int) []byte { return p.bodies()[p.start(i):p.start(i+1)] }

// start returns the offset of the body of key i in bodies.
func (p *page) start(i int) int {
	if i == 0 {
		return 0
	}
	return int(p.heads()[i-1].end)
}

// touchedAt returns the time of the last read or write of key i.
func (p *page) touchedAt(i int) uint32 { return atomic.LoadUint32(&p.heads()[i].touched) }

// touch marks key i as read now.
func (p *page) touch(i int, now uint32) {
	if at := &p.heads()[i].touched; atomic.LoadUint32(at) != now {
		atomic.StoreUint32(at, now)
	}
}

func (p *page) find(key uint64) int {
	heads := p.heads()
	for i := range heads {
		if heads[i].key == key {
			return i
		}
	}
	return -1
}

// prefetch prefetches the cache lines of the heads of a page of small bodies. It does not read the
// number of heads, because that read would wait for memory.
func (p *page) prefetch() {
	at := uintptr(unsafe.Pointer(p))
	engine.Prefetch(at, at+lineBytes)
	engine.Prefetch(at+2*lineBytes, at+3*lineBytes)
}

func (p *page) bodyOf(key uint64) []byte {
	if i := p.find(key); i >= 0 {
		return p.body(i)
	}
	return nil
}

// place returns the number of keys whose hashes are lower than hash.
func (p *page) place(hash uint64) int {
	return sort.Search(p.keys(), func(i int) bool { return Hash(p.key(i)) >= hash })
}

// with returns a copy of the page with another body for one key, or without the key if body is nil.
// It copies the other bodies in bulk, because other writes of the shard wait for the copy.
func (p *page) with(key uint64, body []byte, now uint32) *page {
	there := 1 // number of heads that the copy has for the key
	if body == nil {
		there = 0
	}
	from := p.find(key) // heads[from:to] is not copied
	to := from + 1
	if from < 0 {
		from = p.place(Hash(key))
		to = from
	}
	heads, bodies := p.heads(), p.bodies()
	low, high := p.start(from), p.start(to) // bodies[low:high] is not copied
	shift := low + len(body) - high         // bodies[high:] moves by shift bytes
	next := newPage(p.bits, len(heads)-(to-from)+there, len(bodies)-wire.RicePadding+shift)

	copies := next.heads()
	copyHeads(copies, heads[:from], 0)
	for i := range there {
		copies[from+i] = head{key, uint32(low + len(body)), now}
	}
	copyHeads(copies[from+there:], heads[to:], shift)

	rest := next.bodies()
	rest = rest[copy(rest, bodies[:low]):]
	rest = rest[copy(rest, body):]
	copy(rest, bodies[high:])
	return next
}

// copyHeads copies heads, and adds shift to the ends of their bodies.
func copyHeads(dst, src []head, shift int) {
	for i := range src {
		from := &src[i]
		dst[i] = head{from.key, uint32(int(from.end) + shift), atomic.LoadUint32(&from.touched)}
	}
}

// cut splits the page in two, by the first bit after the bits that all hashes of the page share.
func (p *page) cut() (low, high *page) {
	halves := [2]pageBuilder{newPageBuilder(p.keys()), newPageBuilder(p.keys())}
	for i := range p.keys() {
		halves[Hash(p.key(i))>>(63-p.bits)&1].addKey(p, i)
	}
	return halves[0].page(p.bits + 1), halves[1].page(p.bits + 1)
}

// pageBuilder collects the keys of a page in order.
type pageBuilder struct {
	heads  []head
	bodies [][]byte
	bytes  int
}

func newPageBuilder(keys int) pageBuilder {
	return pageBuilder{heads: make([]head, 0, keys), bodies: make([][]byte, 0, keys)}
}

func (b *pageBuilder) add(key uint64, body []byte, touched uint32) {
	b.bytes += len(body)
	b.heads, b.bodies = append(b.heads, head{key, uint32(b.bytes), touched}), append(b.bodies, body)
}

func (b *pageBuilder) addKey(f *page, i int) { b.add(f.key(i), f.body(i), f.touchedAt(i)) }

func (b *pageBuilder) addAll(f *page) {
	for i := range f.keys() {
		b.addKey(f, i)
	}
}

func (b *pageBuilder) page(sharedBits uint8) *page {
	page := newPage(sharedBits, len(b.heads), b.bytes)
	copy(page.heads(), b.heads)
	rest := page.bodies()
	for _, body := range b.bodies {
		rest = rest[copy(rest, body):]
	}
	return page
}
