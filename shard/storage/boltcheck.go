package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// bolt has checksums only for its meta pages, and trusts every other page. When bolt opens a file
// with a damaged page, it misreads the page or ends the process. So checkBoltFile checks a file
// before bolt opens it, with bounded reads. Integers are little endian.
//
//	meta    magic 4 | version 4 | page size 4 | flags 4 | root bucket 16 |
//	        free list 8 | pages in use 8 | transaction 8 | fnv-1a 8
//	page    id 8 | flags 2 | count 2 | overflow pages 4 | elements | data
//	branch  position of the key, from here 4 | its length 4 | page 8
//	leaf    flags 4 | position of key and value, from here 4 | lengths 4, 4
//	bucket  root page, 0 for the page that follows here 8 | sequence 8
//
// Each of the first two pages has a page header and a meta. Transactions write to the two pages
// alternately.
const (
	boltMetaBytes    = 64
	boltMetaMagic    = 0xED0CDAED
	boltPageHead     = 16
	boltElementBytes = 16
	boltBucketBytes  = 16
	boltPageSizeMax  = 64 << 10

	boltBranchPage   = 0x01
	boltLeafPage     = 0x02
	boltFreelistPage = 0x10
	boltNoFreelist   = math.MaxUint64
	boltBucketLeaf   = 0x01 // flag of a leaf element whose value is a bucket
)

var (
	boltLogBucket  = []byte("logs") // bucket of raft-boltdb for entries
	boltConfBucket = []byte("conf")
)

func boltDamage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// checkBoltFile returns ErrDamaged if the structure of any page in use is damaged. It does not
// check the checksums inside the values. A missing or empty file passes: the caller checks whether
// the log should exist.
func checkBoltFile(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	return checkBolt(file, info.Size())
}

func checkBolt(file io.ReaderAt, size int64) error {
	meta, err := readBoltMetas(file, size)
	if err != nil {
		return err
	}
	c := boltChecker{file: file, meta: meta, seen: make(map[uint64]struct{})}
	if err := c.checkFreelist(); err != nil {
		return err
	}
	return c.checkBuckets()
}

// boltChecker walks the pages of a file.
type boltChecker struct {
	file io.ReaderAt
	meta boltMeta
	seen map[uint64]struct{} // pages reached so far; a page that is reached twice means damage
}

// read returns a page together with its overflow pages.
func (c *boltChecker) read(id uint64) ([]byte, error) {
	var head [boltPageHead]byte
	if id < 2 || id >= c.meta.pages {
		return nil, boltDamage("page %d of %d", id, c.meta.pages)
	}
	if _, err := c.file.ReadAt(head[:], int64(id)*c.meta.pageSize); err != nil {
		return nil, err
	}
	overflow := uint64(binary.LittleEndian.Uint32(head[12:]))
	if binary.LittleEndian.Uint64(head[:]) != id || id+overflow >= c.meta.pages {
		return nil, boltDamage("page %d has the head of another", id)
	}
	for i := id; i <= id+overflow; i++ {
		if _, ok := c.seen[i]; ok {
			return nil, boltDamage("page %d is used twice", i)
		}
		c.seen[i] = struct{}{}
	}
	page := make([]byte, int64(overflow+1)*c.meta.pageSize)
	_, err := c.file.ReadAt(page, int64(id)*c.meta.pageSize)
	return page, err
}

// checkFreelist allows only the empty free list that bolt writes into a new file. Later
// transactions write no free list (see openBoltFile).
func (c *boltChecker) checkFreelist() error {
	if c.meta.freelist == boltNoFreelist {
		return nil
	}
	page, err := c.read(c.meta.freelist)
	if err != nil {
		return err
	}
	if binary.LittleEndian.Uint16(page[8:]) != boltFreelistPage || binary.LittleEndian.Uint16(page[10:]) != 0 {
		return boltDamage("page %d is not an empty free list", c.meta.freelist)
	}
	return nil
}

// boltRange bounds the keys below a page: from ≤ key < to. nil means no bound.
type boltRange struct{ from, to []byte }

// boltVisit is called for each element of a leaf, in the order of keys.
type boltVisit func(key, value []byte, flags uint32) error

// walk checks the tree of pages of one bucket.
func (c *boltChecker) walk(id uint64, keys boltRange, visit boltVisit) error {
	page, err := c.read(id)
	if err != nil {
		return err
	}
	return c.walkPage(id, page, keys, visit)
}

func (c *boltChecker) walkPage(id uint64, page []byte, keys boltRange, visit boltVisit) error {
	flags, count := binary.LittleEndian.Uint16(page[8:]), int(binary.LittleEndian.Uint16(page[10:]))
	if boltPageHead+count*boltElementBytes > len(page) {
		return boltDamage("page %d has no room for %d elements", id, count)
	}
	switch flags {
	case boltBranchPage:
		return c.walkBranch(id, page, count, keys, visit)
	case boltLeafPage:
		return walkLeaf(id, page, count, keys, visit)
	}
	return boltDamage("page %d has flags %#x", id, flags)
}

func (c *boltChecker) walkBranch(id uint64, page []byte, count int, keys boltRange, visit boltVisit) error {
	var froms [][]byte
	for i := range count {
		at := boltPageHead + i*boltElementBytes
		key, _, err := boltData(id, page, at, page[at:], binary.LittleEndian.Uint32(page[at+4:]), 0)
		if err != nil {
			return err
		}
		if err := keys.next(id, key); err != nil {
			return err
		}
		froms = append(froms, key)
	}
	for i := range count {
		child := boltRange{from: froms[i], to: keys.to}
		if i+1 < count {
			child.to = froms[i+1]
		}
		at := boltPageHead + i*boltElementBytes
		if err := c.walk(binary.LittleEndian.Uint64(page[at+8:]), child, visit); err != nil {
			return err
		}
	}
	return nil
}

func walkLeaf(id uint64, page []byte, count int, keys boltRange, visit boltVisit) error {
	for i := range count {
		at := boltPageHead + i*boltElementBytes
		flags := binary.LittleEndian.Uint32(page[at:])
		key, value, err := boltData(id, page, at, page[at+4:],
			binary.LittleEndian.Uint32(page[at+8:]), binary.LittleEndian.Uint32(page[at+12:]))
		if err != nil {
			return err
		}
		if err := keys.next(id, key); err != nil {
			return err
		}
		if err := visit(key, value, flags); err != nil {
			return err
		}
	}
	return nil
}

// next checks that a key is within the bounds, and raises the lower bound above the key.
func (r *boltRange) next(page uint64, key []byte) error {
	if bytes.Compare(key, r.from) < 0 || r.to != nil && bytes.Compare(key, r.to) >= 0 {
		return boltDamage("page %d has key %x, out of order", page, key)
	}
	r.from = append(bytes.Clone(key), 0) // the next greater key
	return nil
}

// boltData returns the key and value of the element at an offset of its page.
func boltData(id uint64, page []byte, at int, position []byte, keyBytes, valueBytes uint32) (key, value []byte, err error) {
	start := uint64(at) + uint64(binary.LittleEndian.Uint32(position))
	middle := start + uint64(keyBytes)
	end := middle + uint64(valueBytes)
	if end > uint64(len(page)) {
		return nil, nil, boltDamage("page %d has data up to %d of %d bytes", id, end, len(page))
	}
	return page[start:middle], page[middle:end], nil
}

// checkBuckets walks the bucket of buckets and the two buckets of raft-boltdb. It refuses an
// unknown bucket: the name of a bucket may be damaged, and bolt would then create an empty bucket
// with the right name.
func (c *boltChecker) checkBuckets() error {
	names := 0
	err := c.walk(c.meta.root, boltRange{}, func(name, bucket []byte, flags uint32) error {
		names++
		if flags != boltBucketLeaf || len(bucket) < boltBucketBytes {
			return boltDamage("%q is not a bucket", name)
		}
		switch {
		case bytes.Equal(name, boltLogBucket):
			return c.walkBucket(bucket, visitEntries())
		case bytes.Equal(name, boltConfBucket):
			return c.walkBucket(bucket, visitStable)
		}
		return boltDamage("unknown bucket %q", name)
	})
	if err == nil && names != 0 && names != 2 {
		err = boltDamage("a bucket is missing")
	}
	return err
}

// walkBucket walks a bucket. A small bucket is stored inside its parent's page.
func (c *boltChecker) walkBucket(bucket []byte, visit boltVisit) error {
	if root := binary.LittleEndian.Uint64(bucket); root != 0 {
		return c.walk(root, boltRange{}, visit)
	}
	inline := bucket[boltBucketBytes:]
	if len(inline) < boltPageHead {
		return boltDamage("a bucket of %d bytes", len(bucket))
	}
	return c.walkPage(0, inline, boltRange{}, visit)
}

// visitEntries returns a visitor that refuses a log with a gap.
func visitEntries() boltVisit {
	var last uint64
	return func(key, _ []byte, flags uint32) error {
		if len(key) != 8 || flags != 0 {
			return boltDamage("unknown log key %x", key)
		}
		index := binary.BigEndian.Uint64(key)
		if last != 0 && index != last+1 {
			return boltDamage("entry %d follows entry %d", index, last)
		}
		last = index
		return nil
	}
}

// visitStable refuses keys that Votes does not write.
func visitStable(key, _ []byte, flags uint32) error {
	if flags != 0 || !bytes.Equal(key, keyTerm) && !bytes.Equal(key, keyVote) {
		return boltDamage("unknown key %q", key)
	}
	return nil
}
