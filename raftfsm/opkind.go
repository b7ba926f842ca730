package raftfsm

import (
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/outbox"
)

// Every op in a log entry begins with its kind. A number has one meaning for shards of all
// kinds, is never used again, and has no flags. Integers are little-endian.
//
//	add, set, take, raise, begin, place:  kind (1) | key (8) | cell …
//	delete, forget:                       kind (1) | key (8)
//	cell:     column (1) | delta or value (varint) | floor (varint), if bit 6 of column is set
//	join:     kind (1) | key (8) | column (1) | member (8)
//	leave:    kind (1) | key (8) | column (1) | member (8) | floor (varint), if bit 6 of column is set
//	copy:     kind (1) | key (8) | column (1) | member (8) | stamp (6)
//	purge:    kind (1) | pairs (uvarint)
//	clear:    kind (1)
//	sweep:    kind (1) | idle time in milliseconds (uvarint) | rows (uvarint)
//	publish, unpublish, put outbox:       kind (1) | key (8) | outbox/op.go
//	ops on feeds:                         feedop.go
//	ops on the board:                     boardop.go
//
// Bits 0 to 5 of a column are its number. Bit 6 says that a floor follows, which only a delta
// below 0 has. Bit 7, in a cell, says that another cell follows.
type opKind uint8

const (
	// Ops on the counts of a row, of counters and unread.
	opAdd    opKind = 1
	opSet    opKind = 2
	opDelete opKind = 3
	opTake   opKind = 4 // unread only; takes away up to the values

	// Ops on sets of members, of counters. They need the leader's time before them in the entry.
	opJoin         opKind = 8
	opLeave        opKind = 9
	opCopy         opKind = 10 // joins with the stamp that it had, 0 for now, and counts nothing: a restore
	opPurge        opKind = 11 // removes so many pairs of deleted rows
	opClearMembers opKind = 12 // removes all pairs of the shard: a restore

	// Ops on the outbox of an author, of counters.
	opPublish       = opKind(outbox.Publish)
	opUnpublish     = opKind(outbox.Remove)
	opPutOutbox     = opKind(outbox.Put)
	opClearOutboxes = opKind(outbox.Clear)

	// Ops on cursors, of unread. They need the leader's time before them in the entry. A value
	// is at least 1, and one more than the number of its notice or firing.
	opRaise  opKind = 24
	opBegin  opKind = 25 // sets what is not set
	opPlace  opKind = 26 // sets, also the day and to 0: a restore
	opForget opKind = 27 // deletes the row: a restore
	opSweep  opKind = 28

	// Ops on feeds: FeedOpKind.
	opResetFeed  opKind = 32
	opFollow     opKind = 33
	opUnfollow   opKind = 34
	opReadFeed   opKind = 35
	opClearFeeds opKind = 36
	opPutGroup   opKind = 37
	opDropGroup  opKind = 38

	// Ops on the board: BoardOpKind.
	opPublishNotice opKind = 48
	opRetract       opKind = 49
	opFire          opKind = 50
	opSetDot        opKind = 51
	opPutChannel    opKind = 52
	opPutDot        opKind = 53
	opClearBoard    opKind = 54
	opMakeChannel   opKind = 55
	opMakeDot       opKind = 56
)

// The bits of a column in an op.
const (
	columnNumber  = 1<<6 - 1
	columnFloored = 1 << 6
	columnMore    = 1 << 7
)

// opSizeMin is the size of an op's kind and key.
const opSizeMin = 9

// opNames is read only.
var opNames = [...]string{
	opAdd: "add", opSet: "set", opDelete: "delete", opTake: "take",
	opJoin: "join", opLeave: "leave", opCopy: "copy", opPurge: "purge", opClearMembers: "clear members",
	opPublish: "publish", opUnpublish: "unpublish", opPutOutbox: "put outbox", opClearOutboxes: "clear outboxes",
	opRaise: "raise", opBegin: "begin", opPlace: "place", opForget: "forget", opSweep: "sweep",
	opResetFeed: "reset feed", opFollow: "follow", opUnfollow: "unfollow", opReadFeed: "read feed",
	opClearFeeds: "clear feeds", opPutGroup: "put group", opDropGroup: "drop group",
	opPublishNotice: "publish notice", opRetract: "retract", opFire: "fire", opSetDot: "set dot",
	opPutChannel: "put channel", opPutDot: "put dot", opClearBoard: "clear board",
	opMakeChannel: "make channel", opMakeDot: "make dot",
}

func (k opKind) String() string {
	if int(k) < len(opNames) && opNames[k] != "" {
		return fmt.Sprintf("op %d (%s)", uint8(k), opNames[k])
	}
	return fmt.Sprintf("op %d, which this program does not know,", uint8(k))
}

// errOp returns the refusal of an op whose kind shards of a kind do not have.
func errOp(p []byte, of codec.Kind) error {
	return fmt.Errorf("%w: %s in a shard of %s", codec.ErrEntry, opKind(p[0]), of)
}
