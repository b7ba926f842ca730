package counters

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/countd/countd/internal/wire"
)

// outboxOutcome is the outcome of an op on an outbox.
//
// Invariant: between two removals of an id, at most one publish of that id has the outcome
// outboxChanged. Once limits may have removed an id, its publishes are refused for ever, because
// nothing shows whether the id was published before.
type outboxOutcome uint8

// The outcomes of ops on outboxes.
const (
	outboxUnchanged outboxOutcome = iota // nothing to publish or remove
	outboxChanged
	// outboxTooOld is a refused publish. The limits may have removed the id before, or would remove
	// it at once.
	outboxTooOld
)

// outboxChange computes changes of outboxes. It reuses its memory.
type outboxChange struct {
	// Body is the body after the change, or nil if the outbox is empty then. It is valid if the
	// outcome is outboxChanged.
	Body []byte
	// Digest is to be added to the shard's digest.
	Digest uint64

	was, now Outbox
}

// Apply computes the effect of op on body, the outbox of key. The kind of op must not be
// ClearOutboxes. now is the log's time in Unix milliseconds. Apply does not change body.
func (c *outboxChange) Apply(op *PostOp, key uint64, body []byte, now int64) outboxOutcome {
	switch op.Kind {
	case Publish:
		return c.publish(op, key, body, now)
	case Unpublish:
		return c.remove(op.ID, key, body)
	}
	c.decode(body)
	c.now.IDs, c.now.Trimmed = append(c.now.IDs[:0], op.Outbox.IDs...), op.Outbox.Trimmed
	c.Digest = outboxDigest(key, &c.now) - outboxDigest(key, &c.was)
	c.encode()
	return outboxChanged
}

// Drop computes the effect of removing body, the outbox of key.
func (c *outboxChange) Drop(key uint64, body []byte) {
	c.decode(body)
	c.Body, c.Digest = nil, -outboxDigest(key, &c.was)
}

func (c *outboxChange) decode(body []byte) {
	c.was.IDs = c.was.IDs[:0]
	decodeOutboxBody(&c.was, body)
}

func (c *outboxChange) encode() {
	if c.Body = appendOutboxBody(c.Body[:0], &c.now); c.now.empty() {
		c.Body = nil
	}
}

func (c *outboxChange) publish(op *PostOp, key uint64, body []byte, now int64) outboxOutcome {
	if c.appendNewest(op, key, body, now) {
		return outboxChanged
	}
	c.decode(body)
	ids, l := c.was.IDs, &op.Limits
	at, found := slices.BinarySearchFunc(ids, op.ID, func(a, b uint64) int { return cmp.Compare(b, a) })
	if found {
		return outboxUnchanged
	}
	cut := l.cut(l.newest(op.ID, ids, now))
	if op.ID <= c.was.Trimmed && c.was.Trimmed > 0 || l.expired(op.ID, cut) || at >= l.Posts {
		return outboxTooOld
	}
	c.now.IDs = append(append(append(c.now.IDs[:0], ids[:at]...), op.ID), ids[at:]...)
	c.now.Trimmed, c.Digest = c.was.Trimmed, postDigest(key, op.ID)
	c.trim(key, l, cut)
	c.encode()
	return outboxChanged
}

// newest returns the highest of id and ids that is not in the future, or 0 if all are. ids must
// descend.
func (l *OutboxLimits) newest(id uint64, ids []uint64, now int64) (newest uint64) {
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

// trim removes from c.now the ids that exceed the limits.
func (c *outboxChange) trim(key uint64, l *OutboxLimits, cut uint64) {
	kept, trimmed := c.now.IDs[:0], c.now.Trimmed
	for _, id := range c.now.IDs {
		if len(kept) < l.Posts && !l.expired(id, cut) {
			kept = append(kept, id)
			continue
		}
		trimmed = max(trimmed, id, 1) // at least 1: 0 means none
		c.Digest -= postDigest(key, id)
	}
	c.Digest += trimmedDigest(key, trimmed) - trimmedDigest(key, c.now.Trimmed)
	c.now.IDs, c.now.Trimmed = kept, trimmed
}

// appendNewest is the fast path for nearly all posts: the post is the newest of its author, and the
// limits then remove no post. appendNewest copies the body and decodes only the oldest block. For
// any other post it does nothing and returns false.
func (c *outboxChange) appendNewest(op *PostOp, key uint64, body []byte, now int64) bool {
	posts, trimmed, blocks := outboxHead(body)
	if op.ID <= trimmed && trimmed > 0 {
		return false
	}
	if len(blocks) == 0 {
		c.Body = appendOutboxBlock(appendOutboxHead(c.Body[:0], 1, trimmed), []uint64{op.ID})
		c.Digest = postDigest(key, op.ID)
		return true
	}
	newest := binary.LittleEndian.Uint64(blocks)
	if op.ID <= newest || posts >= op.Limits.Posts {
		return false
	}
	// If the oldest post has a time and does not expire, no post expires. Otherwise some post may
	// expire.
	if l := &op.Limits; l.Keep > 0 {
		if cut := l.cut(op.ID); l.future(op.ID, now) || cut > 0 && oldestOf(blocks) < max(cut, l.First) {
			return false
		}
	}
	c.Body = appendOutboxHead(c.Body[:0], posts+1, trimmed)
	c.Digest = postDigest(key, op.ID)
	n, size := int(blocks[8]), outboxBlockSize(blocks)
	if n == outboxBlockIDs {
		c.Body = append(appendOutboxBlock(c.Body, []uint64{op.ID}), blocks...)
		return true
	}
	at := len(c.Body)
	c.Body = append(binary.LittleEndian.AppendUint64(c.Body, op.ID), byte(n+1), 0, 0)
	c.Body = binary.AppendUvarint(c.Body, op.ID-newest)
	c.Body = append(c.Body, blocks[outboxBlockHeadSize:size]...)
	binary.LittleEndian.PutUint16(c.Body[at+9:], uint16(len(c.Body)-at-outboxBlockHeadSize))
	c.Body = append(c.Body, blocks[size:]...)
	return true
}

// oldestOf returns the last id of blocks.
func oldestOf(blocks []byte) uint64 {
	for size := outboxBlockSize(blocks); size < len(blocks); size = outboxBlockSize(blocks) {
		blocks = blocks[size:]
	}
	c := outboxCursor{rest: blocks}
	c.nextBlock()
	for c.left > 0 {
		c.next()
	}
	return c.ID
}

func (c *outboxChange) remove(id, key uint64, body []byte) outboxOutcome {
	var at outboxCursor
	if !at.Seek(body, id) || at.ID != id {
		return outboxUnchanged
	}
	c.decode(body)
	c.now.IDs, c.now.Trimmed = append(c.now.IDs[:0], c.was.IDs...), c.was.Trimmed
	c.now.IDs = slices.Delete(c.now.IDs, slices.Index(c.now.IDs, id), slices.Index(c.now.IDs, id)+1)
	c.Digest = -postDigest(key, id)
	c.encode()
	return outboxChanged
}

// Digest returns what the outbox adds to the digest of a shard in which its author has the given key.
func (o *Outbox) Digest(key uint64) uint64 { return outboxDigest(key, o) }

// outboxDigest returns what the outbox of key adds to the shard's digest. It is a sum over the ids,
// so a change hashes only the changed ids.
func outboxDigest(key uint64, o *Outbox) uint64 {
	sum := trimmedDigest(key, o.Trimmed)
	for _, id := range o.IDs {
		sum += postDigest(key, id)
	}
	return sum
}

// outboxBodyDigest is outboxDigest of a body.
func outboxBodyDigest(key uint64, body []byte) uint64 {
	_, trimmed, _ := outboxHead(body)
	sum := trimmedDigest(key, trimmed)
	var c outboxCursor
	for more := c.Seek(body, math.MaxUint64); more; more = c.Next() {
		sum += postDigest(key, c.ID)
	}
	return sum
}

func postDigest(key, id uint64) uint64 {
	return wire.MixNext(wire.MixNext(key) + bits.RotateLeft64(wire.MixNext(id), 32))
}

func trimmedDigest(key, trimmed uint64) uint64 {
	if trimmed == 0 {
		return 0
	}
	return wire.MixNext(wire.MixNext(key^math.MaxUint64) + bits.RotateLeft64(wire.MixNext(trimmed), 17))
}
