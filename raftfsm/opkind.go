package raftfsm

import (
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/outbox"
)

// OpKind is the kind of an op, with which the op begins in a log entry. A number has one meaning
// for shards of all kinds, is never used again, and has no flags. Integers are little-endian.
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
type OpKind uint8

const (
	// Ops on the counts of a row, of counters and unread.
	opAdd    OpKind = 1
	opSet    OpKind = 2
	opDelete OpKind = 3
	opTake   OpKind = 4 // unread only; subtracts the values, but not below 0

	// Ops on sets of members, of counters. They need the leader's time before them in the entry.
	opJoin         OpKind = 8
	opLeave        OpKind = 9
	opCopy         OpKind = 10 // a restore: joins with the pair's stamp, 0 for now, and counts nothing
	opPurge        OpKind = 11 // removes a number of pairs of deleted rows
	opClearMembers OpKind = 12 // removes all pairs of the shard: a restore

	// Ops on the outbox of an author, of counters.
	opPublish       = OpKind(outbox.Publish)
	opUnpublish     = OpKind(outbox.Remove)
	opPutOutbox     = OpKind(outbox.Put)
	opClearOutboxes = OpKind(outbox.Clear)

	// Ops on cursors, of unread. They need the leader's time before them in the entry. A value
	// is at least 1, and one more than the number of its notice or firing.
	opRaise  OpKind = 24
	opBegin  OpKind = 25 // sets the cursors that are not set
	opPlace  OpKind = 26 // sets, also the day and to 0: a restore
	opForget OpKind = 27 // deletes the row: a restore
	opSweep  OpKind = 28

	// Ops on feeds. The result row of an op has the number of the user's followees. For an op on a
	// group, it has the number of the group's followees.
	FeedReset    OpKind = 32 // replaces the user's followees
	FeedFollow   OpKind = 33 // adds the followees that the user lacks; refused above FolloweesMax
	FeedUnfollow OpKind = 34 // removes followees
	FeedRead     OpKind = 35 // sets the posts of the followees that the user has
	FeedClear    OpKind = 36 // removes the feeds of all users of the shard: a restore
	// FeedPutGroup creates or replaces a group of some of the user's followees. It is refused if
	// the user does not follow all of them, or would have more than GroupsMax groups.
	FeedPutGroup  OpKind = 37
	FeedDropGroup OpKind = 38

	// Ops on the board. The result row has the number of the channel or dot. It also has the
	// channel's last notice or the dot's number of firings. A publish or fire that is repeated soon
	// returns its first result. A refused op has a Refusal as the column of its engine.Overflow;
	// RepeatedRefusal returns the refusal of a repeat.
	BoardPublish    OpKind = 48 // one more notice; makes the channel
	BoardRetract    OpKind = 49 // retracts the notice Seq
	BoardFire       OpKind = 50 // makes the dot
	BoardDot        OpKind = 51 // sets NewUsers; makes the dot
	BoardPutChannel OpKind = 52 // this and the next two: a restore
	BoardPutDot     OpKind = 53
	BoardClear      OpKind = 54
	// These two create what does not exist yet and change nothing else, so that a user can have a
	// position in a channel before its first notice, or at a dot before it is fired.
	BoardMakeChannel OpKind = 55
	BoardMakeDot     OpKind = 56
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
	FeedReset: "reset feed", FeedFollow: "follow", FeedUnfollow: "unfollow", FeedRead: "read feed",
	FeedClear: "clear feeds", FeedPutGroup: "put group", FeedDropGroup: "drop group",
	BoardPublish: "publish notice", BoardRetract: "retract", BoardFire: "fire", BoardDot: "set dot",
	BoardPutChannel: "put channel", BoardPutDot: "put dot", BoardClear: "clear board",
	BoardMakeChannel: "make channel", BoardMakeDot: "make dot",
}

func (k OpKind) String() string {
	if int(k) < len(opNames) && opNames[k] != "" {
		return fmt.Sprintf("op %d (%s)", uint8(k), opNames[k])
	}
	return fmt.Sprintf("op %d, which this program does not know,", uint8(k))
}

// errOp returns the refusal of an op that shards of a kind do not have.
func errOp(p []byte, of codec.Kind) error {
	return fmt.Errorf("%w: %s in a shard of %s", codec.ErrEntry, OpKind(p[0]), of)
}
