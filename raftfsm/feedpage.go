package raftfsm

import (
	"encoding/binary"
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
	return binary.LittleEndian.Uint64(f.data[feedUsersOffset+8*i:])
}

// body returns the followees of user i, with the padding that a bit reader needs.
func (f *feedPage) body(i int) []byte {
	users := f.users()
	ends, bodies := f.data[feedUsersOffset+8*users:], f.data[feedUsersOffset+feedHeadBytes*users:]
	start := uint32(0)
	if i > 0 {
		start = binary.LittleEndian.Uint32(ends[4*(i-1):])
	}
	return bodies[start:binary.LittleEndian.Uint32(ends[4*i:])]
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

// with returns a copy of the page with another body for one user, or without the user
// if body is nil.
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
	page := &feedPage{bits: sharedBits, data: append(data, make([]byte, golomb.RicePadding)...), touched: make([]atomic.Uint32, len(b.keys))}
	for i, at := range b.touched {
		page.touched[i].Store(at)
	}
	return page
}
