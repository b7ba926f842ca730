package names

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"sync"
)

// index returns the numbers that a text may have. It is derived from the blocks, and differs between
// replicas. One writer changes it; readers may call the other methods concurrently.
//
// It is an extendible hash table: the first bits of a text's hash index a directory of pages. A page
// of more than pageEntries entries is split in two. The layout of a page, little-endian:
//
//	bits (1): the number of leading bits of the hash that all texts of the page share
//	| width (1): bytes of an entry | entry …
//
//	entry: number << (32 − bits) | the other bits of the first 32 bits of the hash
type index struct {
	seed maphash.Seed

	mu struct {
		sync.RWMutex
		bits    uint8
		pages   [][]byte // 2^bits; neighbours may share a page
		entries int
		bytes   int // capacity of all pages
	}
}

const (
	hashBits    = 32
	pageHead    = 2
	pageEntries = 64
	// slotsFree is how many slots the directory may have beyond one for each entry. So texts of one hash
	// cannot inflate it: their page grows instead.
	slotsFree = 16
	slotBytes = 24 // memory of a slot of the directory
)

func newIndex() *index {
	x := &index{seed: maphash.MakeSeed()}
	x.mu.pages = [][]byte{{0, 1}}
	x.mu.bytes = cap(x.mu.pages[0])
	return x
}

// hash returns the hash of a slot, which stands for its text.
func (x *index) hash(slot []byte) uint32 {
	return uint32(maphash.Bytes(x.seed, slot) >> (64 - hashBits))
}

// slot returns the slot of a hash in a directory of 2^dirBits pages.
func slotOf(hash uint32, dirBits uint8) int { return int(uint64(hash) >> (hashBits - dirBits)) }

func entryOf(hash uint32, number uint64, pageBits uint8) uint64 {
	own := hashBits - pageBits
	return number<<own | uint64(hash)&(1<<own-1)
}

func entries(page []byte) int { return (len(page) - pageHead) / int(page[1]) }

// entryAt returns entry i of a page.
func entryAt(page []byte, i int) uint64 {
	width := int(page[1])
	at := pageHead + i*width
	if at+8 <= len(page) {
		return binary.LittleEndian.Uint64(page[at:]) & (1<<(8*width) - 1) // for a width of 8, the shift gives 0, and the mask all bits
	}
	var b [8]byte
	copy(b[:], page[at:at+width])
	return binary.LittleEndian.Uint64(b[:])
}

// candidates appends the numbers of the texts with a hash.
func (x *index) candidates(dst []uint64, hash uint32) []uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	page := x.mu.pages[slotOf(hash, x.mu.bits)]
	own := hashBits - page[0]
	mask := uint64(1)<<own - 1
	for i := range entries(page) {
		if e := entryAt(page, i); e&mask == uint64(hash)&mask {
			dst = append(dst, e>>own)
		}
	}
	return dst
}

// add adds the number of a text with a hash. It must not be there yet.
func (x *index) add(hash uint32, number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.entries++
	page := x.mu.pages[slotOf(hash, x.mu.bits)]
	grown := withEntry(page, entryOf(hash, number, page[0]))
	x.putLocked(hash, page, grown)
	if entries(grown) > pageEntries {
		x.splitLocked(hash, grown)
	}
}

// remove removes the number of a text with a hash.
func (x *index) remove(hash uint32, number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	page := x.mu.pages[slotOf(hash, x.mu.bits)]
	for i := range entries(page) {
		if entryAt(page, i) == entryOf(hash, number, page[0]) {
			width := int(page[1])
			copy(page[pageHead+i*width:], page[len(page)-width:])
			x.putLocked(hash, page, page[:len(page)-width])
			x.mu.entries--
			return
		}
	}
}

// withEntry returns a page with one more entry. It uses the spare capacity of the page, if the entry fits.
func withEntry(page []byte, entry uint64) []byte {
	width := max((bits.Len64(entry)+7)/8, int(page[1]))
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], entry)
	if width == int(page[1]) && len(page)+width <= cap(page) {
		return append(page, b[:width]...)
	}
	var buf [pageHead + (pageEntries+1)*8]byte
	all := append(buf[:0], page[0], byte(width))
	for i := range entries(page) {
		all = appendEntry(all, entryAt(page, i))
	}
	all = append(all, b[:width]...)
	return append([]byte(nil), all...) // the runtime rounds the capacity up to a size that it allocates
}

func appendEntry(page []byte, entry uint64) []byte {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], entry)
	return append(page, b[:page[1]]...)
}

// putLocked stores a page in all slots of its range of hashes, in place of the page was.
func (x *index) putLocked(hash uint32, was, page []byte) {
	x.mu.bytes += cap(page) - cap(was)
	n := 1 << (x.mu.bits - page[0])
	first := slotOf(hash, x.mu.bits) &^ (n - 1)
	for i := range n {
		x.mu.pages[first+i] = page
	}
}

// splitLocked splits a page in two, by the first bit of its entries' hashes.
func (x *index) splitLocked(hash uint32, page []byte) {
	if page[0] == hashBits {
		return
	}
	if page[0] == x.mu.bits {
		if 2*len(x.mu.pages) > slotsFree+x.mu.entries {
			return
		}
		pages := make([][]byte, 2*len(x.mu.pages))
		for i := range pages {
			pages[i] = x.mu.pages[i/2]
		}
		x.mu.pages, x.mu.bits = pages, x.mu.bits+1
	}
	own := hashBits - page[0] - 1 // bits of the hash in the entries of the halves
	var parts [2][]uint64
	widths := [2]int{1, 1}
	for i := range entries(page) {
		e := entryAt(page, i)
		half := e >> own & 1
		e = e>>(own+1)<<own | e&(1<<own-1)
		parts[half] = append(parts[half], e)
		widths[half] = max(widths[half], (bits.Len64(e)+7)/8)
	}
	x.mu.bytes -= cap(page)
	for half := range uint32(2) {
		all := append(make([]byte, 0, len(page)), page[0]+1, byte(widths[half]))
		for _, e := range parts[half] {
			all = appendEntry(all, e)
		}
		x.putLocked(hash&^(1<<own)|half<<own, nil, append([]byte(nil), all...))
	}
}

// size returns the memory of the index.
func (x *index) size() uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return uint64(x.mu.bytes + slotBytes*len(x.mu.pages))
}
