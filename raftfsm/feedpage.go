package raftfsm

import (
	"encoding/binary"
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/countd/countd/engine/golomb"
)

// feedPage is an immutable page of some users of a shard, in the format that feedPages
// draws; only touched changes.
type feedPage struct {
	bits uint8 // of the hash that all its users share
	data []byte
	// touched is when each user was last read or written, by the clock of the pages.
	// Readers set it concurrently with each other and with a writer that copies the
	// page. A lost update only makes a user look idle for longer.
	touched []atomic.Uint32
}

// bytes returns the size of the page without its directory slots.
func (f *feedPage) bytes() int64 {
	return int64(len(f.data) + len(f.touched)*int(unsafe.Sizeof(f.touched[0])) + feedPageOverhead)
}

func (f *feedPage) users() int { return int(binary.LittleEndian.Uint32(f.data)) }

func (f *feedPage) key(i int) uint64 {
	return binary.LittleEndian.Uint64(f.data[feedUsersOffset+feedHeadBytes*i:])
}

// body returns the followees of user i, with the padding that a bit reader needs.
func (f *feedPage) body(i int) []byte {
	users := f.users()
	bodies := f.data[feedUsersOffset+feedHeadBytes*users:]
	return bodies[f.start(i):f.start(i+1)]
}

// start returns where the body of user i begins in the bodies, which is where that of the
// user before ends.
func (f *feedPage) start(i int) int {
	if i == 0 {
		return 0
	}
	return int(binary.LittleEndian.Uint32(f.data[feedUsersOffset+feedHeadBytes*i-4:]))
}

// find returns the position of a user, or -1.
func (f *feedPage) find(key uint64) int {
	for i := range f.users() {
		if f.key(i) == key {
			return i
		}
	}
	return -1
}

// bodyOf returns the body of a user, or nil.
func (f *feedPage) bodyOf(key uint64) []byte {
	if i := f.find(key); i >= 0 {
		return f.body(i)
	}
	return nil
}

// place returns how many users have a lower hash.
func (f *feedPage) place(hash uint64) int {
	return sort.Search(f.users(), func(i int) bool { return feedHash(f.key(i)) >= hash })
}

// with returns a copy of the page with another body for one user, or without the user
// if body is nil. The writer copies the users on both sides whole, because it holds up
// all other writes of the shard.
func (f *feedPage) with(key uint64, body []byte, now uint32) *feedPage {
	there := 1 // 0 if the user is not in the copy
	if body == nil {
		there = 0
	}
	from := f.find(key) // users from … to-1 go
	to := from + 1
	if from < 0 {
		from = f.place(feedHash(key))
		to = from
	}
	users := f.users()
	low, high := f.start(from), f.start(to) // the bodies that go
	shift := low + len(body) - high         // of the bodies behind them
	all := f.data[:len(f.data)-golomb.RicePadding]
	heads, bodies := all[feedUsersOffset:], all[feedUsersOffset+feedHeadBytes*users:]

	left := users - (to - from) + there
	data := make([]byte, 0, feedUsersOffset+feedHeadBytes*left+len(bodies)+shift+golomb.RicePadding)
	data = append(binary.LittleEndian.AppendUint32(data, uint32(left)), heads[:feedHeadBytes*from]...)
	for range there {
		data = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(data, key), uint32(low+len(body)))
	}
	for i := to; i < users; i++ {
		data = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(data, f.key(i)), uint32(f.start(i+1)+shift))
	}
	data = append(append(append(data, bodies[:low]...), body...), bodies[high:]...)
	data = append(data, make([]byte, golomb.RicePadding)...)

	next := &feedPage{bits: f.bits, data: data, touched: make([]atomic.Uint32, left)}
	for i := range from {
		next.touched[i].Store(f.touched[i].Load())
	}
	for i := range there {
		next.touched[from+i].Store(now)
	}
	for i := to; i < users; i++ {
		next.touched[i-to+from+there].Store(f.touched[i].Load())
	}
	return next
}

// cut splits the page by the next bit of the hash.
func (f *feedPage) cut() (low, high *feedPage) {
	halves := [2]pageBuilder{newPageBuilder(f.users()), newPageBuilder(f.users())}
	for i := range f.users() {
		halves[feedHash(f.key(i))>>(63-f.bits)&1].addUser(f, i)
	}
	return halves[0].page(f.bits + 1), halves[1].page(f.bits + 1)
}

// pageBuilder collects the users of a page in order.
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
	data := make([]byte, 0, feedUsersOffset+feedHeadBytes*len(b.keys)+b.bytes+golomb.RicePadding)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(b.keys)))
	end := 0
	for i, key := range b.keys {
		end += len(b.bodies[i])
		data = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(data, key), uint32(end))
	}
	for _, body := range b.bodies {
		data = append(data, body...)
	}
	page := &feedPage{bits: sharedBits, data: append(data, make([]byte, golomb.RicePadding)...), touched: make([]atomic.Uint32, len(b.keys))}
	for i, at := range b.touched {
		page.touched[i].Store(at)
	}
	return page
}
