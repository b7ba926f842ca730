package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
)

// FolloweesMax bounds the followees of one user: a poll reads the posts of each.
const FolloweesMax = 5000

// FeedOpKind is what a FeedOp does. The values are part of the log format and never
// change meaning.
type FeedOpKind uint8

// The kinds of ops on feeds.
const (
	// FeedReset replaces the user's followees.
	FeedReset FeedOpKind = 1
	// FeedFollow adds the followees that the user lacks. It is refused if the user
	// would have more than FolloweesMax.
	FeedFollow FeedOpKind = 2
	// FeedUnfollow removes followees.
	FeedUnfollow FeedOpKind = 3
	// FeedRead sets the posts of the followees that the user has.
	FeedRead FeedOpKind = 4
	// FeedClear removes the feeds of all users of the shard. It has no followees.
	FeedClear FeedOpKind = 5
	// FeedPutGroup makes a group of some of the user's followees, in place of one of that
	// name. It is refused if the user does not follow one of them, or would have more than
	// GroupsMax groups. Its row has the number of followees of the group. It needs
	// catalog.VersionOfTimelines.
	FeedPutGroup FeedOpKind = 6
	// FeedDropGroup removes a group. Its row has 0. It needs catalog.VersionOfTimelines.
	FeedDropGroup FeedOpKind = 7
)

// FeedOp is one change of one user's feed. Followees ascend by id without duplicates.
// FeedUnfollow ignores their posts. A result row has the number of followees after the
// op.
//
// In an entry, with a shard's key in place of the user:
//
//	kind (1) | key (8) | followees (4) | id less the id before (uvarint), posts (varint) …
//	and of an op on a group:  length of its name (1) | name
type FeedOp struct {
	Kind      FeedOpKind
	User      uint64
	Followees []Followee
	Group     string // of FeedPutGroup and FeedDropGroup
}

// OfGroup reports whether an op names a group.
func (k FeedOpKind) OfGroup() bool { return k == FeedPutGroup || k == FeedDropGroup }

// takes reports whether an op of the kind may have so many followees.
func (k FeedOpKind) takes(followees int) bool {
	if k == FeedClear || k == FeedDropGroup {
		return followees == 0
	}
	return k >= FeedReset && k <= FeedDropGroup && followees <= FolloweesMax
}

const (
	feedOpSizeMin   = 13
	followeeSizeMin = 2
)

func (op *FeedOp) check() error {
	if !op.Kind.takes(len(op.Followees)) || op.Kind.OfGroup() && !ValidGroupName(op.Group) {
		return fmt.Errorf("a feed op of kind %d with %d followees has no form in a log entry", op.Kind, len(op.Followees))
	}
	for i := 1; i < len(op.Followees); i++ {
		if op.Followees[i].ID <= op.Followees[i-1].ID {
			return errors.New("a feed op whose followees do not ascend has no form in a log entry")
		}
	}
	return nil
}

func (op *FeedOp) appendTo(dst []byte, key uint64) []byte {
	dst = binary.LittleEndian.AppendUint64(append(dst, byte(op.Kind)), key)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(op.Followees)))
	dst = appendFolloweeList(dst, op.Followees)
	if op.Kind.OfGroup() {
		dst = append(append(dst, byte(len(op.Group))), op.Group...)
	}
	return dst
}

// appendFolloweeList appends followees in their form in entries and snapshots.
func appendFolloweeList(dst []byte, followees []Followee) []byte {
	last := uint64(0)
	for _, f := range followees {
		dst = binary.AppendVarint(binary.AppendUvarint(dst, f.ID-last), f.Posts)
		last = f.ID
	}
	return dst
}

// parseFolloweeList appends n followees to dst and returns the bytes behind them, or
// false.
func parseFolloweeList(dst []Followee, p []byte, n int) ([]Followee, []byte, bool) {
	id := uint64(0)
	for i := range n {
		gap, size := binary.Uvarint(p)
		if size <= 0 || i > 0 && id+gap <= id {
			return dst, nil, false
		}
		posts, m := binary.Varint(p[size:])
		if m <= 0 {
			return dst, nil, false
		}
		id += gap
		dst = append(dst, Followee{id, posts})
		p = p[size+m:]
	}
	return dst, p, true
}

// feedBatch holds the decoded ops of one entry and reuses its memory.
type feedBatch struct {
	ops       []FeedOp
	followees []Followee
	ends      []int // followees of op i end here; set until they no longer move
}

func (b *feedBatch) begin() { b.ops, b.followees, b.ends = b.ops[:0], b.followees[:0], b.ends[:0] }

// users calls yield with the user of each op that needs or changes one feed.
func (b *feedBatch) users(yield func(user uint64)) {
	for i := range b.ops {
		if b.ops[i].Kind != FeedClear {
			yield(b.ops[i].User)
		}
	}
}

func (b *feedBatch) op(p []byte) ([]byte, error) {
	if len(p) < feedOpSizeMin {
		return nil, fmt.Errorf("%w: op of %d bytes", codec.ErrEntry, len(p))
	}
	op := FeedOp{Kind: FeedOpKind(p[0]), User: binary.LittleEndian.Uint64(p[1:])}
	n := binary.LittleEndian.Uint32(p[9:])
	p = p[feedOpSizeMin:]
	if n > FolloweesMax || !op.Kind.takes(int(n)) || int(n) > len(p)/followeeSizeMin {
		return nil, fmt.Errorf("%w: feed op %d of %d followees", codec.ErrEntry, op.Kind, n)
	}
	var ok bool
	if b.followees, p, ok = parseFolloweeList(b.followees, p, int(n)); !ok {
		return nil, fmt.Errorf("%w: followees of a feed op", codec.ErrEntry)
	}
	if op.Kind.OfGroup() {
		var err error
		if op.Group, p, err = groupName(p); err != nil {
			return nil, err
		}
	}
	b.ops = append(b.ops, op)
	b.ends = append(b.ends, len(b.followees))
	return p, nil
}

func (b *feedBatch) link() {
	start := 0
	for i, end := range b.ends {
		b.ops[i].Followees = b.followees[start:end]
		start = end
	}
}
