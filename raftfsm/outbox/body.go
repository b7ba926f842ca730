package outbox

import (
	"encoding/binary"
	"math"
)

// The outbox of one author in memory, integers little-endian:
//
//	form (1) | posts (2) | trimmed (8), in the second form | block …
//	block:  newest id (8) | ids (1) | bytes of gaps (2) | gap to the id before (uvarint) …
//
// Ids descend over all blocks. A block has at most blockIDs ids, so that a reader skips to
// an id by the heads of blocks. No body begins with 0, which marks an outbox on disk.
const (
	formPlain   = 1
	formTrimmed = 2

	headSize    = 3
	trimmedSize = 8

	blockIDs      = 128
	blockHeadSize = 11
)

// Outbox is the decoded outbox of one author.
type Outbox struct {
	IDs []uint64 // of posts, descending
	// Trimmed is the highest id that limits have ever removed, 0 if none. An id that is not above
	// it may have been published and removed.
	Trimmed uint64
}

// empty reports whether there is nothing to store.
func (o *Outbox) empty() bool { return len(o.IDs) == 0 && o.Trimmed == 0 }

// AppendBody appends an outbox in its form in memory: nothing for an empty one.
func AppendBody(dst []byte, o *Outbox) []byte {
	if o.empty() {
		return dst
	}
	dst = appendHead(dst, len(o.IDs), o.Trimmed)
	for ids := o.IDs; len(ids) > 0; {
		n := min(len(ids), blockIDs)
		dst = appendBlock(dst, ids[:n])
		ids = ids[n:]
	}
	return dst
}

func appendHead(dst []byte, posts int, trimmed uint64) []byte {
	if trimmed == 0 {
		return binary.LittleEndian.AppendUint16(append(dst, formPlain), uint16(posts))
	}
	dst = binary.LittleEndian.AppendUint16(append(dst, formTrimmed), uint16(posts))
	return binary.LittleEndian.AppendUint64(dst, trimmed)
}

func appendBlock(dst []byte, ids []uint64) []byte {
	at := len(dst)
	dst = append(binary.LittleEndian.AppendUint64(dst, ids[0]), byte(len(ids)), 0, 0)
	for i := 1; i < len(ids); i++ {
		dst = binary.AppendUvarint(dst, ids[i-1]-ids[i])
	}
	binary.LittleEndian.PutUint16(dst[at+9:], uint16(len(dst)-at-blockHeadSize))
	return dst
}

// DecodeBody appends the ids of a body to o.IDs, and sets o.Trimmed. A nil body is that of
// an empty outbox.
func DecodeBody(o *Outbox, body []byte) {
	_, o.Trimmed, _ = head(body)
	var c Cursor
	for more := c.Seek(body, math.MaxUint64); more; more = c.Next() {
		o.IDs = append(o.IDs, c.ID)
	}
}

// AppendSummary appends the summary of an outbox on disk, which stays in memory: its newest id (8).
// An outbox without posts has no newest id, but is too small to leave memory.
func AppendSummary(dst, body []byte) []byte {
	id, _ := newest(body, math.MaxUint64)
	return binary.LittleEndian.AppendUint64(dst, id)
}

// head splits a body. It has no posts if the body is nil.
func head(body []byte) (posts int, trimmed uint64, blocks []byte) {
	if len(body) < headSize {
		return 0, 0, nil
	}
	posts, blocks = int(binary.LittleEndian.Uint16(body[1:])), body[headSize:]
	if body[0] == formTrimmed {
		trimmed, blocks = binary.LittleEndian.Uint64(blocks), blocks[trimmedSize:]
	}
	return posts, trimmed, blocks
}

// Cursor walks the ids of a body from the newest to the oldest.
type Cursor struct {
	ID   uint64 // of the current post, if Seek or Next returned true
	gaps []byte // of the block behind ID
	left int    // ids of the block behind ID
	rest []byte // the blocks behind
}

// Seek sets the cursor to the newest id of a body that is not above highest. It returns false if
// the body has no such id.
func (c *Cursor) Seek(body []byte, highest uint64) bool {
	_, _, c.rest = head(body)
	c.left = 0
	for len(c.rest) > 0 {
		size := blockSize(c.rest)
		if behind := c.rest[size:]; len(behind) > 0 && binary.LittleEndian.Uint64(behind) >= highest {
			c.rest = behind
			continue
		}
		c.nextBlock()
		for c.ID > highest {
			if !c.Next() {
				return false
			}
		}
		return true
	}
	return false
}

// Next moves the cursor to the next older id. It returns false if there is none.
func (c *Cursor) Next() bool {
	switch {
	case c.left > 0:
		c.next()
		return true
	case len(c.rest) > 0:
		c.nextBlock()
		return true
	}
	return false
}

func (c *Cursor) nextBlock() {
	size := blockSize(c.rest)
	c.ID, c.left = binary.LittleEndian.Uint64(c.rest), int(c.rest[8])-1
	c.gaps, c.rest = c.rest[blockHeadSize:size], c.rest[size:]
}

func (c *Cursor) next() {
	gap, n := binary.Uvarint(c.gaps)
	c.ID -= gap
	c.gaps = c.gaps[n:]
	c.left--
}

func blockSize(block []byte) int {
	return blockHeadSize + int(binary.LittleEndian.Uint16(block[9:]))
}
