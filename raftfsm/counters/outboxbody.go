package counters

import (
	"encoding/binary"
	"math"
)

// This is the form in which memory stores the outbox of an author (its body). Integers are
// little-endian:
//
//	form (1) | posts (2) | trimmed (8), in the second form | block …
//	block:  newest id (8) | ids (1) | bytes of gaps (2) | gap to the id before (uvarint) …
//
// Ids descend over all blocks. A block has at most outboxBlockIDs ids. A search for an id reads
// only the heads of the blocks that it skips. No body begins with 0, because a mark for an outbox
// on disk does.
const (
	outboxPlain   = 1
	outboxTrimmed = 2

	outboxHeadSize    = 3
	outboxTrimmedSize = 8

	outboxBlockIDs      = 128
	outboxBlockHeadSize = 11
)

// Outbox is the decoded outbox of one author.
type Outbox struct {
	IDs []uint64 // ids of posts, descending
	// Trimmed is the highest id that limits have ever removed, or 0. An id that is not above
	// Trimmed may have been published before and removed by limits.
	Trimmed uint64
}

// empty reports whether the outbox need not be stored.
func (o *Outbox) empty() bool { return len(o.IDs) == 0 && o.Trimmed == 0 }

// appendOutboxBody appends the body of an outbox. The body of an empty outbox has no bytes.
func appendOutboxBody(dst []byte, o *Outbox) []byte {
	if o.empty() {
		return dst
	}
	dst = appendOutboxHead(dst, len(o.IDs), o.Trimmed)
	for ids := o.IDs; len(ids) > 0; {
		n := min(len(ids), outboxBlockIDs)
		dst = appendOutboxBlock(dst, ids[:n])
		ids = ids[n:]
	}
	return dst
}

func appendOutboxHead(dst []byte, posts int, trimmed uint64) []byte {
	if trimmed == 0 {
		return binary.LittleEndian.AppendUint16(append(dst, outboxPlain), uint16(posts))
	}
	dst = binary.LittleEndian.AppendUint16(append(dst, outboxTrimmed), uint16(posts))
	return binary.LittleEndian.AppendUint64(dst, trimmed)
}

func appendOutboxBlock(dst []byte, ids []uint64) []byte {
	at := len(dst)
	dst = append(binary.LittleEndian.AppendUint64(dst, ids[0]), byte(len(ids)), 0, 0)
	for i := 1; i < len(ids); i++ {
		dst = binary.AppendUvarint(dst, ids[i-1]-ids[i])
	}
	binary.LittleEndian.PutUint16(dst[at+9:], uint16(len(dst)-at-outboxBlockHeadSize))
	return dst
}

// decodeOutboxBody appends the ids of a body to o.IDs, and sets o.Trimmed. A nil body means an empty
// outbox.
func decodeOutboxBody(o *Outbox, body []byte) {
	_, o.Trimmed, _ = outboxHead(body)
	var c outboxCursor
	for more := c.Seek(body, math.MaxUint64); more; more = c.Next() {
		o.IDs = append(o.IDs, c.ID)
	}
}

// appendOutboxSummary appends the summary that stays in memory for an outbox on disk: its newest id
// (8). An outbox without posts has no newest id, but it is too small to be moved to disk.
func appendOutboxSummary(dst, body []byte) []byte {
	id, _ := newestPost(body, math.MaxUint64)
	return binary.LittleEndian.AppendUint64(dst, id)
}

// outboxHead splits a body into its parts. A nil body has no posts.
func outboxHead(body []byte) (posts int, trimmed uint64, blocks []byte) {
	if len(body) < outboxHeadSize {
		return 0, 0, nil
	}
	posts, blocks = int(binary.LittleEndian.Uint16(body[1:])), body[outboxHeadSize:]
	if body[0] == outboxTrimmed {
		trimmed, blocks = binary.LittleEndian.Uint64(blocks), blocks[outboxTrimmedSize:]
	}
	return posts, trimmed, blocks
}

// outboxCursor walks the ids of a body from the newest to the oldest.
type outboxCursor struct {
	ID   uint64 // id of the current post, if Seek or Next returned true
	gaps []byte // gaps after ID in its block
	left int    // number of these gaps
	rest []byte // the blocks after that of ID
}

// Seek sets the cursor to the body's newest id that is not above highest. It returns false if the
// body has no such id.
func (c *outboxCursor) Seek(body []byte, highest uint64) bool {
	_, _, c.rest = outboxHead(body)
	c.left = 0
	for len(c.rest) > 0 {
		size := outboxBlockSize(c.rest)
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
func (c *outboxCursor) Next() bool {
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

func (c *outboxCursor) nextBlock() {
	size := outboxBlockSize(c.rest)
	c.ID, c.left = binary.LittleEndian.Uint64(c.rest), int(c.rest[8])-1
	c.gaps, c.rest = c.rest[outboxBlockHeadSize:size], c.rest[size:]
}

func (c *outboxCursor) next() {
	gap, n := binary.Uvarint(c.gaps)
	c.ID -= gap
	c.gaps = c.gaps[n:]
	c.left--
}

func outboxBlockSize(block []byte) int {
	return outboxBlockHeadSize + int(binary.LittleEndian.Uint16(block[9:]))
}
