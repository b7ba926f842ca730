package spill

import (
	"encoding/binary"
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/countd/countd/engine/golomb"
)

// page is an immutable page of some keys of a shard, in the format that pageTable
// draws; only touched changes.
type page struct {
	bits uint8 // of the hash that all its keys share
	data []byte
	// touched is when each key was last read or written, by the clock of the pages.
	// Readers set it concurrently with each other and with a writer that copies the
	// page. A lost update only makes a key look idle for longer.
	touched []atomic.Uint32
}

// bytes returns the size of the page without its directory slots.
func (p *page) bytes() int64 {
	return int64(len(p.data) + len(p.touched)*int(unsafe.Sizeof(p.touched[0])) + pageOverhead)
}

func (p *page) keys() int { return int(binary.LittleEndian.Uint32(p.data)) }

func (p *page) key(i int) uint64 {
	return binary.LittleEndian.Uint64(p.data[keysOffset+headBytes*i:])
}

// body returns the body of key i, or its mark, with the padding that a bit reader needs.
func (p *page) body(i int) []byte {
	keys := p.keys()
	bodies := p.data[keysOffset+headBytes*keys:]
	return bodies[p.start(i):p.start(i+1)]
}

// start returns where the body of key i begins in the bodies, which is where that of the
// key before ends.
func (p *page) start(i int) int {
	if i == 0 {
		return 0
	}
	return int(binary.LittleEndian.Uint32(p.data[keysOffset+headBytes*i-4:]))
}

// find returns the position of a key, or -1.
func (p *page) find(key uint64) int {
	for i := range p.keys() {
		if p.key(i) == key {
			return i
		}
	}
	return -1
}

// bodyOf returns the body of a key, or nil.
func (p *page) bodyOf(key uint64) []byte {
	if i := p.find(key); i >= 0 {
		return p.body(i)
	}
	return nil
}

// place returns how many keys have a lower hash.
func (p *page) place(hash uint64) int {
	return sort.Search(p.keys(), func(i int) bool { return Hash(p.key(i)) >= hash })
}

// with returns a copy of the page with another body for one key, or without the key
// if body is nil. The writer copies the keys on both sides whole, because it holds up
// all other writes of the shard.
func (p *page) with(key uint64, body []byte, now uint32) *page {
	there := 1 // 0 if the key is not in the copy
	if body == nil {
		there = 0
	}
	from := p.find(key) // keys from … to-1 go
	to := from + 1
	if from < 0 {
		from = p.place(Hash(key))
		to = from
	}
	keys := p.keys()
	low, high := p.start(from), p.start(to) // the bodies that go
	shift := low + len(body) - high         // of the bodies behind them
	all := p.data[:len(p.data)-golomb.RicePadding]
	heads, bodies := all[keysOffset:], all[keysOffset+headBytes*keys:]

	left := keys - (to - from) + there
	data := make([]byte, 0, keysOffset+headBytes*left+len(bodies)+shift+golomb.RicePadding)
	data = append(binary.LittleEndian.AppendUint32(data, uint32(left)), heads[:headBytes*from]...)
	for range there {
		data = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(data, key), uint32(low+len(body)))
	}
	for i := to; i < keys; i++ {
		data = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(data, p.key(i)), uint32(p.start(i+1)+shift))
	}
	data = append(append(append(data, bodies[:low]...), body...), bodies[high:]...)
	data = append(data, make([]byte, golomb.RicePadding)...)

	next := &page{bits: p.bits, data: data, touched: make([]atomic.Uint32, left)}
	for i := range from {
		next.touched[i].Store(p.touched[i].Load())
	}
	for i := range there {
		next.touched[from+i].Store(now)
	}
	for i := to; i < keys; i++ {
		next.touched[i-to+from+there].Store(p.touched[i].Load())
	}
	return next
}

// cut splits the page by the next bit of the hash.
func (p *page) cut() (low, high *page) {
	halves := [2]pageBuilder{newPageBuilder(p.keys()), newPageBuilder(p.keys())}
	for i := range p.keys() {
		halves[Hash(p.key(i))>>(63-p.bits)&1].addKey(p, i)
	}
	return halves[0].page(p.bits + 1), halves[1].page(p.bits + 1)
}

// pageBuilder collects the keys of a page in order.
type pageBuilder struct {
	keys    []uint64
	bodies  [][]byte
	touched []uint32
	bytes   int
}

func newPageBuilder(keys int) pageBuilder {
	return pageBuilder{keys: make([]uint64, 0, keys), bodies: make([][]byte, 0, keys), touched: make([]uint32, 0, keys)}
}

func (b *pageBuilder) add(key uint64, body []byte, touched uint32) {
	b.keys, b.bodies, b.touched = append(b.keys, key), append(b.bodies, body), append(b.touched, touched)
	b.bytes += len(body)
}

// addKey adds key i of a page.
func (b *pageBuilder) addKey(f *page, i int) { b.add(f.key(i), f.body(i), f.touched[i].Load()) }

func (b *pageBuilder) addAll(f *page) {
	for i := range f.keys() {
		b.addKey(f, i)
	}
}

func (b *pageBuilder) page(sharedBits uint8) *page {
	data := make([]byte, 0, keysOffset+headBytes*len(b.keys)+b.bytes+golomb.RicePadding)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(b.keys)))
	end := 0
	for i, key := range b.keys {
		end += len(b.bodies[i])
		data = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(data, key), uint32(end))
	}
	for _, body := range b.bodies {
		data = append(data, body...)
	}
	page := &page{bits: sharedBits, data: append(data, make([]byte, golomb.RicePadding)...), touched: make([]atomic.Uint32, len(b.keys))}
	for i, at := range b.touched {
		page.touched[i].Store(at)
	}
	return page
}
