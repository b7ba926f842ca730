package raftfsm

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/outbox"
)

// This file joins outboxes to a shard of counters: the outbox of an author is under the key
// of the author's row, and a publish or a removal changes both or neither.
//
//   - The table calls a judge right before it applies an op, so an op is judged by what all ops
//     before it left, in the table and in the outboxes.
//   - If the count of a publish overflows, the judge undoes the publish before the next op.
//   - If rows of the entry cannot be read, the table fails before the first op.

const (
	// PostsColumn is the column of the posts of an author.
	PostsColumn = 0

	// UnchangedColumn in a Cut stands for an op on an outbox that changed nothing.
	UnchangedColumn = engine.ColumnsMax - 1
	// TooOldColumn in an Overflow stands for a publish that was refused as outbox.TooOld.
	TooOldColumn = PostsColumn + 1

	// outboxPageBytesMax is the size at which a page of outboxes is split. A publish copies
	// its page.
	outboxPageBytesMax = 512
)

// outboxes are the outboxes of a shard.
type outboxes struct {
	// pages holds the bodies by author; nil until the first outbox.
	pages atomic.Pointer[feedPages]
	clock atomic.Uint32
	sum   uint64 // digest of all outboxes
}

// body returns the outbox of an author, nil for none.
func (o *outboxes) body(key uint64) []byte {
	if pages := o.pages.Load(); pages != nil {
		return pages.get(key)
	}
	return nil
}

// set replaces the outbox of an author.
func (o *outboxes) set(key uint64, body []byte) {
	pages := o.pages.Load()
	if pages == nil {
		pages = newFeedPages(&o.clock, outboxPageBytesMax)
		o.pages.Store(pages)
	}
	pages.mu.Lock()
	defer pages.mu.Unlock()
	pages.set(key, body)
}

func (o *outboxes) clear() {
	o.pages.Store(nil)
	o.sum = 0
}

func (o *outboxes) bytes() uint64 {
	pages := o.pages.Load()
	if pages == nil {
		return 0
	}
	return uint64(pages.bytes.Load()) + uint64(8*len(pages.dir.Load().slots))
}

// outboxOp is an op on an outbox among the ops of a batch.
type outboxOp struct {
	outbox.Op
	op   int // number of the op
	cell int // position of the cell that counts it, -1 for none
}

// outboxOp decodes an op on an outbox. For the table it is one that adds 1 to the posts, or
// takes 1 away; a judge corrects that.
func (b *batch) outboxOp(p []byte) ([]byte, error) {
	kind, ok := outbox.KindOf(p[0])
	if !ok || len(p) < opSizeMin {
		return nil, fmt.Errorf("%w: op of head %#x and %d bytes", codec.ErrEntry, p[0], len(p))
	}
	key := binary.LittleEndian.Uint64(p[1:])
	o := outboxOp{Op: outbox.Op{Kind: kind}, op: len(b.ops), cell: -1}
	rest, ok := o.Parse(p[opSizeMin:])
	if !ok {
		return nil, fmt.Errorf("%w: op %d on an outbox", codec.ErrEntry, kind)
	}
	switch kind {
	case outbox.Publish:
		b.cells = append(b.cells, engine.Cell{Column: PostsColumn, Value: 1})
		o.cell = len(b.cells) - 1
	case outbox.Remove:
		if o.HasFloor {
			b.cells = append(b.cells, engine.Cell{Column: engine.FloorMark | PostsColumn, Value: o.Floor})
		}
		b.cells = append(b.cells, engine.Cell{Column: PostsColumn, Value: -1})
		o.cell = len(b.cells) - 1
	}
	b.outbox = append(b.outbox, o)
	b.ops = append(b.ops, engine.Op{ID: key, Kind: engine.OpAdd})
	b.ends = append(b.ends, len(b.cells))
	return rest, nil
}

// NewestPosts is which posts of some authors a read asks for: the newest Limit, up to the id
// Last. The first Below authors have no posts of the id Last itself: a page ended behind
// them.
type NewestPosts struct {
	Last  uint64
	Below int
	Limit int
}

// newestAtOnce is how many authors Newest looks up at once, so that their cache misses
// overlap.
const newestAtOnce = 32

// Newest adds the posts of authors, which are positions in keys, or in all authors of the
// read if at has the positions there.
func (c *Counters) Newest(keys []uint64, at []int, q *NewestPosts, into *outbox.Newest) {
	pages := c.outboxes.Load().pages.Load()
	if pages == nil {
		return
	}
	var of [newestAtOnce]*feedPage
	var bodies [newestAtOnce][]byte
	for first := 0; first < len(keys); first += newestAtOnce {
		some := keys[first:min(first+newestAtOnce, len(keys))]
		users := 0
		for i, key := range some {
			of[i] = pages.page(feedHash(key))
		}
		for i := range some {
			users += of[i].users()
		}
		if users == 0 { // and else the first line of each page is on its way
			continue
		}
		for i, key := range some {
			bodies[i] = of[i].bodyOf(key)
		}
		for i := range some {
			author := first + i
			if at != nil {
				author = at[author]
			}
			if last, has := q.lastOf(author); has && bodies[i] != nil {
				into.Add(author, bodies[i], last)
			}
		}
	}
}

// lastOf returns the id up to which the read has posts of an author, or false if it has none.
func (q *NewestPosts) lastOf(author int) (last uint64, has bool) {
	if author >= q.Below {
		return q.Last, true
	}
	return q.Last - 1, q.Last > 0
}

// The outboxes of a snapshot, in sections of about outboxSectionBytes:
//
//	outboxes:  authors (4) | key (8), outbox as in an op … by the authors' hashes
//
// The hash is that of feedHash; it orders all authors of the stream.
const outboxSectionBytes = 1 << 20

// capturedOutboxes are the outboxes at one moment.
type capturedOutboxes struct {
	pages []*feedPage
	sum   uint64
}

func (o *outboxes) capture() (c capturedOutboxes) {
	if pages := o.pages.Load(); pages != nil {
		pages.mu.Lock()
		defer pages.mu.Unlock()
		c.pages, c.sum = pages.pages(), o.sum
	}
	return c
}

// write writes the sections of outboxes: none if there are none, so that an older program
// reads the snapshot of a shard that never had any.
func (c *capturedOutboxes) write(w *codec.StreamWriter) error {
	var box outbox.Outbox
	page, author := 0, 0
	for page < len(c.pages) {
		if author == c.pages[page].users() {
			page, author = page+1, 0
			continue
		}
		err := w.Section(codec.StreamOutboxes, func(b []byte) []byte {
			start, authors := len(b), uint32(0)
			b = append(b, 0, 0, 0, 0)
			for page < len(c.pages) && len(b)-start < outboxSectionBytes {
				p := c.pages[page]
				if author == p.users() {
					page, author = page+1, 0
					continue
				}
				box.IDs = box.IDs[:0]
				outbox.DecodeBody(&box, p.body(author))
				b = outbox.AppendOutbox(binary.LittleEndian.AppendUint64(b, p.key(author)), &box)
				author, authors = author+1, authors+1
			}
			binary.LittleEndian.PutUint32(b[start:], authors)
			return b
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// outboxReader decodes the sections of outboxes of a stream, in order.
type outboxReader struct {
	box    outbox.Outbox
	hash   uint64 // of the previous author
	behind bool   // there is a previous author
}

// section calls visit with each author of a section.
func (r *outboxReader) section(p []byte, visit func(key uint64, box *outbox.Outbox) error) error {
	if len(p) < 4 {
		return fmt.Errorf("%w: outboxes of %d bytes", codec.ErrSnapshot, len(p))
	}
	authors := binary.LittleEndian.Uint32(p)
	p = p[4:]
	for range authors {
		if len(p) < 8 {
			return fmt.Errorf("%w: outbox of %d bytes", codec.ErrSnapshot, len(p))
		}
		key := binary.LittleEndian.Uint64(p)
		hash := feedHash(key)
		rest, ok := outbox.ParseOutbox(&r.box, p[8:])
		if !ok || r.behind && hash <= r.hash || len(r.box.IDs) == 0 && r.box.Trimmed == 0 {
			return fmt.Errorf("%w: outbox of key %d", codec.ErrSnapshot, key)
		}
		p, r.hash, r.behind = rest, hash, true
		if err := visit(key, &r.box); err != nil {
			return err
		}
	}
	if len(p) > 0 {
		return fmt.Errorf("%w: %d bytes behind the outboxes", codec.ErrSnapshot, len(p))
	}
	return nil
}

// loadOutboxes adds a section of outboxes.
func (c *counts) loadOutboxes(p []byte) error {
	var body []byte
	return c.outs.section(p, func(key uint64, box *outbox.Outbox) error {
		body = outbox.AppendBody(body[:0], box)
		c.out.set(key, body)
		c.out.sum += outbox.Digest(key, box)
		return nil
	})
}

// NoLast is the last id of a read that begins with the newest post.
const NoLast = math.MaxUint64
