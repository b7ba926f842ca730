package raftstore

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
)

// An item is one change of the log. After the kind byte, every item except begin, remove and end
// names a replica by two uvarints, its group and its own number. Other integers are uvarints too,
// unless their size is given.
//
//	entry   1  replica, index, term, type (1), appended at (varint), bytes of extensions,
//	           bytes of data, extensions, data
//	move    2  the same: an entry that an earlier segment has too; this copy counts
//	cut     3  replica, first, last: these entries are deleted
//	set     4  replica, bytes of key, bytes of value, key, value
//	create  5  replica, first, last: it exists and has these entries, which are in
//	           segments before this one; 0, 0 for none
//	drop    6  replica: it is deleted with its entries and values
//	begin   7  version, sectors, n, n live segments: the first item of a segment. The
//	           state of the log follows in the same batch, as create and set items
//	remove  8  segment: nothing in it is needed any more
//	end     9  the last item of a segment
const (
	itemEntry = iota + 1
	itemMove
	itemCut
	itemSet
	itemCreate
	itemDrop
	itemBegin
	itemRemove
	itemEnd
)

// formatVersion is the version of the format of segments and items.
const formatVersion = 1

// ReplicaID names one replica of this node: the number of its group, and its own number, which
// distinguishes it from earlier replicas of the group on this node.
type ReplicaID struct {
	Group  uint32
	Number uint64
}

func (id ReplicaID) String() string {
	return fmt.Sprintf("replica %d of group %d", id.Number, id.Group)
}

// item is a decoded item of any kind. Its slices point into the batch.
type item struct {
	kind        byte
	id          ReplicaID
	first, last uint64 // range of a cut or create; first is also the index of an entry
	term        uint64
	entryType   raft.LogType
	appendedAt  int64    // Unix time in nanoseconds; 0 for the zero time
	key, value  []byte   // of a set; for an entry, key has its extensions and value its data
	sectors     uint64   // begin
	segments    []uint32 // live segments of a begin; the one segment of a remove
}

func appendReplica(dst []byte, kind byte, id ReplicaID) []byte {
	dst = append(dst, kind)
	dst = binary.AppendUvarint(dst, uint64(id.Group))
	return binary.AppendUvarint(dst, id.Number)
}

func appendEntry(dst []byte, id ReplicaID, e *raft.Log) []byte {
	dst = appendReplica(dst, itemEntry, id)
	dst = binary.AppendUvarint(dst, e.Index)
	dst = binary.AppendUvarint(dst, e.Term)
	dst = append(dst, byte(e.Type))
	nanos := int64(0)
	if !e.AppendedAt.IsZero() {
		nanos = e.AppendedAt.UnixNano()
	}
	dst = binary.AppendVarint(dst, nanos)
	dst = binary.AppendUvarint(dst, uint64(len(e.Extensions)))
	dst = binary.AppendUvarint(dst, uint64(len(e.Data)))
	dst = append(dst, e.Extensions...)
	return append(dst, e.Data...)
}

// entryHeadMax bounds the bytes of an entry before its extensions.
const entryHeadMax = 1 + 5 + 10 + 10 + 10 + 1 + 10 + 10 + 10

func appendRange(dst []byte, kind byte, id ReplicaID, first, last uint64) []byte {
	dst = appendReplica(dst, kind, id)
	dst = binary.AppendUvarint(dst, first)
	return binary.AppendUvarint(dst, last)
}

func appendSet(dst []byte, id ReplicaID, key, value []byte) []byte {
	dst = appendReplica(dst, itemSet, id)
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	dst = append(dst, key...)
	return append(dst, value...)
}

func appendBegin(dst []byte, sectors int, segments []uint32) []byte {
	dst = append(dst, itemBegin)
	dst = binary.AppendUvarint(dst, formatVersion)
	dst = binary.AppendUvarint(dst, uint64(sectors))
	dst = binary.AppendUvarint(dst, uint64(len(segments)))
	for _, s := range segments {
		dst = binary.AppendUvarint(dst, uint64(s))
	}
	return dst
}

func appendRemove(dst []byte, segment uint32) []byte {
	return binary.AppendUvarint(append(dst, itemRemove), uint64(segment))
}

// itemReader decodes the items of a batch. It stops at the first decoding error.
type itemReader struct{ wire.Reader }

func readItems(batch []byte) itemReader { return itemReader{wire.Reader{Rest: batch}} }

// fault returns the first decoding error, or nil.
func (r *itemReader) fault() error {
	if r.Err == nil {
		return nil
	}
	return damage("an item: %v", r.Err)
}

// next decodes one item. It returns false at the end and after a decoding error.
func (r *itemReader) next(it *item) bool {
	if len(r.Rest) == 0 || r.Err != nil {
		return false
	}
	*it = item{kind: r.Byte()}
	switch it.kind {
	case itemEntry, itemMove, itemCut, itemSet, itemCreate, itemDrop:
		it.id.Group = uint32(r.UintTo(1<<32 - 1))
		it.id.Number = r.Uint()
	}
	switch it.kind {
	case itemEntry, itemMove:
		extensions, data := r.entryHead(it)
		it.key, it.value = r.Take(extensions), r.Take(data)
	case itemCut, itemCreate:
		it.first, it.last = r.Uint(), r.Uint()
	case itemSet:
		key, value := r.Uint(), r.Uint()
		it.key, it.value = r.Take(key), r.Take(value)
	case itemBegin:
		r.begin(it)
	case itemRemove:
		it.segments = []uint32{uint32(r.UintTo(1<<32 - 1))}
	case itemDrop, itemEnd:
	default:
		r.Fail(fmt.Sprintf("the unknown kind %d", it.kind))
	}
	return r.Err == nil
}

// entryHead decodes the fields of an entry between its replica and its extensions.
func (r *itemReader) entryHead(it *item) (extensions, data uint64) {
	it.first, it.term = r.Uint(), r.Uint()
	it.entryType = raft.LogType(r.Byte())
	it.appendedAt = r.Int()
	return r.Uint(), r.Uint()
}

func (r *itemReader) begin(it *item) {
	if version := r.Uint(); r.Err == nil && version != formatVersion {
		r.Fail(fmt.Sprintf("format version %d, this program knows %d", version, formatVersion))
	}
	it.sectors = r.UintTo(1 << 32)
	n := r.UintTo(uint64(len(r.Rest)))
	for range n {
		it.segments = append(it.segments, uint32(r.UintTo(1<<32-1)))
	}
}

// eachItem calls fn with each item of a batch, the item's bytes and its address (see position).
// The batch's data begins at addr.
func eachItem(batch []byte, addr uint32, fn func(it *item, raw []byte, addr uint32) error) error {
	r := readItems(batch)
	var it item
	for {
		start := len(batch) - len(r.Rest)
		if !r.next(&it) {
			return r.fault()
		}
		if err := fn(&it, batch[start:len(batch)-len(r.Rest)], addr+uint32(start)); err != nil {
			return err
		}
	}
}

// entry returns a copy of the log entry in the item.
func (it *item) entry() raft.Log {
	e := raft.Log{Index: it.first, Term: it.term, Type: it.entryType, Data: append([]byte{}, it.value...)}
	if len(it.key) > 0 {
		e.Extensions = append([]byte{}, it.key...)
	}
	if it.appendedAt != 0 {
		e.AppendedAt = time.Unix(0, it.appendedAt)
	}
	return e
}
