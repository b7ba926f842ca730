// Package outbox owns outboxes: the newest ids of the posts of an author, packed. It defines
// their form in memory, in entries and in snapshots, the effect of each op, and the merge of
// the newest posts of many authors. It never counts, stores or replicates anything; package
// raftfsm does.
//
// Invariant: between two removals of an id, at most one publish of it is answered with Changed. A
// removed id is refused for ever if limits removed it, because nothing distinguishes a second
// publish of it from a first.
package outbox

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/countd/countd/internal/splitmix"
)

// Outcome is the outcome of an op.
type Outcome uint8

// The outcomes of ops.
const (
	Unchanged Outcome = iota // the post to publish was there already, or the post to remove was not
	Changed
	// TooOld refuses a publish. Either the limits may have removed the id before, or they would remove
	// it at once.
	TooOld
)

// Change is one change of one outbox, with memory that it reuses.
type Change struct {
	// Body is the outbox after the change, or nil if that is empty. It is valid if the outcome is
	// Changed.
	Body []byte
	// Digest is the change of the shard's digest.
	Digest uint64

	was, now Outbox
}

// Apply applies an op of any kind but Clear to the body of the outbox of a key, at a time of
// the log in Unix milliseconds. The body must have no spare capacity that others use.
func (c *Change) Apply(op *Op, key uint64, body []byte, now int64) Outcome {
	switch op.Kind {
	case Publish:
		return c.publish(op, key, body, now)
	case Remove:
		return c.remove(op.ID, key, body)
	}
	c.decode(body)
	c.now.IDs, c.now.Trimmed = append(c.now.IDs[:0], op.Outbox.IDs...), op.Outbox.Trimmed
	c.Digest = Digest(key, &c.now) - Digest(key, &c.was)
	c.encode()
	return Changed
}

// Drop makes the outbox of a key empty.
func (c *Change) Drop(key uint64, body []byte) {
	c.decode(body)
	c.Body, c.Digest = nil, -Digest(key, &c.was)
}

func (c *Change) decode(body []byte) {
	c.was.IDs = c.was.IDs[:0]
	DecodeBody(&c.was, body)
}

func (c *Change) encode() {
	if c.Body = AppendBody(c.Body[:0], &c.now); c.now.empty() {
		c.Body = nil
	}
}

func (c *Change) publish(op *Op, key uint64, body []byte, now int64) Outcome {
	if c.appendNewest(op, key, body, now) {
		return Changed
	}
	c.decode(body)
	ids, l := c.was.IDs, &op.Limits
	at, found := slices.BinarySearchFunc(ids, op.ID, func(a, b uint64) int { return cmp.Compare(b, a) })
	if found {
		return Unchanged
	}
	cut := l.cut(l.newest(op.ID, ids, now))
	if op.ID <= c.was.Trimmed && c.was.Trimmed > 0 || l.expired(op.ID, cut) || at >= l.Posts {
		return TooOld
	}
	c.now.IDs = append(append(append(c.now.IDs[:0], ids[:at]...), op.ID), ids[at:]...)
	c.now.Trimmed, c.Digest = c.was.Trimmed, idDigest(key, op.ID)
	c.trim(key, l, cut)
	c.encode()
	return Changed
}

// newest returns the highest of id and ids that is not of the future, or 0. ids descend.
func (l *Limits) newest(id uint64, ids []uint64, now int64) (newest uint64) {
	if l.Keep == 0 {
		return 0
	}
	if !l.future(id, now) {
		newest = id
	}
	for _, other := range ids {
		if !l.future(other, now) {
			return max(newest, other)
		}
	}
	return newest
}

// trim removes the ids from now that the limits do not allow.
func (c *Change) trim(key uint64, l *Limits, cut uint64) {
	kept, trimmed := c.now.IDs[:0], c.now.Trimmed
	for _, id := range c.now.IDs {
		if len(kept) < l.Posts && !l.expired(id, cut) {
			kept = append(kept, id)
			continue
		}
		trimmed = max(trimmed, id, 1) // at least 1, because 0 means none
		c.Digest -= idDigest(key, id)
	}
	c.Digest += trimmedDigest(key, trimmed) - trimmedDigest(key, c.now.Trimmed)
	c.now.IDs, c.now.Trimmed = kept, trimmed
}

// appendNewest publishes a post that is the newest of its author, if the limits then remove no post. That is
// true of nearly all posts. appendNewest copies the body and decodes only the oldest block. For any other post
// it does nothing and returns false.
func (c *Change) appendNewest(op *Op, key uint64, body []byte, now int64) bool {
	posts, trimmed, blocks := head(body)
	if op.ID <= trimmed && trimmed > 0 {
		return false
	}
	if len(blocks) == 0 {
		c.Body = appendBlock(appendHead(c.Body[:0], 1, trimmed), []uint64{op.ID})
		c.Digest = idDigest(key, op.ID)
		return true
	}
	newest := binary.LittleEndian.Uint64(blocks)
	if op.ID <= newest || posts >= op.Limits.Posts {
		return false
	}
	// No post expires if the oldest has a time and does not expire. If the oldest has no time, a
	// newer post may expire.
	if l := &op.Limits; l.Keep > 0 {
		if cut := l.cut(op.ID); l.future(op.ID, now) || cut > 0 && oldestOf(blocks) < max(cut, l.First) {
			return false
		}
	}
	c.Body = appendHead(c.Body[:0], posts+1, trimmed)
	c.Digest = idDigest(key, op.ID)
	n, size := int(blocks[8]), blockSize(blocks)
	if n == blockIDs {
		c.Body = append(appendBlock(c.Body, []uint64{op.ID}), blocks...)
		return true
	}
	at := len(c.Body)
	c.Body = append(binary.LittleEndian.AppendUint64(c.Body, op.ID), byte(n+1), 0, 0)
	c.Body = binary.AppendUvarint(c.Body, op.ID-newest)
	c.Body = append(c.Body, blocks[blockHeadSize:size]...)
	binary.LittleEndian.PutUint16(c.Body[at+9:], uint16(len(c.Body)-at-blockHeadSize))
	c.Body = append(c.Body, blocks[size:]...)
	return true
}

// oldestOf returns the last id of blocks.
func oldestOf(blocks []byte) uint64 {
	for size := blockSize(blocks); size < len(blocks); size = blockSize(blocks) {
		blocks = blocks[size:]
	}
	c := Cursor{rest: blocks}
	c.nextBlock()
	for c.left > 0 {
		c.next()
	}
	return c.ID
}

func (c *Change) remove(id, key uint64, body []byte) Outcome {
	var at Cursor
	if !at.Seek(body, id) || at.ID != id {
		return Unchanged
	}
	c.decode(body)
	c.now.IDs, c.now.Trimmed = append(c.now.IDs[:0], c.was.IDs...), c.was.Trimmed
	c.now.IDs = slices.Delete(c.now.IDs, slices.Index(c.now.IDs, id), slices.Index(c.now.IDs, id)+1)
	c.Digest = -idDigest(key, id)
	c.encode()
	return Changed
}

// Digest returns the digest of the outbox of a key, a term of the digest of its shard. It is a sum
// over the ids, so that a change hashes only the ids that it changes.
func Digest(key uint64, o *Outbox) uint64 {
	sum := trimmedDigest(key, o.Trimmed)
	for _, id := range o.IDs {
		sum += idDigest(key, id)
	}
	return sum
}

func idDigest(key, id uint64) uint64 {
	return splitmix.Next(splitmix.Next(key) + bits.RotateLeft64(splitmix.Next(id), 32))
}

func trimmedDigest(key, trimmed uint64) uint64 {
	if trimmed == 0 {
		return 0
	}
	return splitmix.Next(splitmix.Next(key^math.MaxUint64) + bits.RotateLeft64(splitmix.Next(trimmed), 17))
}
