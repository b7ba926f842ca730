package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

// FolloweesMax bounds the followees of one user: a poll reads the posts of each.
const FolloweesMax = 5000

// FeedOp is one change of one user's feed. Followees ascend by id without duplicates.
// FeedUnfollow ignores their posts. A result row has the number of followees after the
// op.
//
// In an entry, with a shard's key in place of the user:
//
//	kind (1) | key (8) | Since (uvarint) | followees
//	and of an op on a group:  length of its name (1) | name
//
//	followees:  number (uvarint) | id less the id before (uvarint), posts (varint) …
type FeedOp struct {
	Kind      OpKind
	User      uint64
	Followees []Followee
	Since     uint64 // stamp of the feed before the proposer read the posts, see below; 0 if it read none, as for an unfollow or a restore
	Group     string // only for FeedPutGroup and FeedDropGroup
}

// The proposer reads the numbers of posts before it proposes an op. So the log may order two ops
// differently than their proposers read. This rule ensures that a user's seen posts never go back:
//
//  1. A feed has a stamp: the index of the last entry that set its posts by an op with Since.
//  2. The proposer learns the stamp, then reads the posts. It proposes the stamp or less as Since, at
//     least 1.
//  3. If the stamp is not above Since, every earlier op that set posts was applied before this op's
//     posts were read. So this op's posts are newer. They replace the others, even by lower numbers:
//     a followee may have deleted posts.
//  4. If the stamp is above Since, the replica cannot tell which posts were read later. It keeps the
//     higher ones, which is right unless the followee deleted posts meanwhile, and reports that in
//     the row (FeedMerged). The proposer then reads the posts again and proposes a FeedRead with a
//     newer Since, until rule 3 holds. A round fails only if another op of the user overtook it.
//
// Rule 3 relies on one fact: a stamp that a proposer has learned is the index of an applied entry. It
// is, because replicas show only applied entries. A lower Since is always safe. A feed that loses
// its last followee loses its stamp too: no posts are left that could go back.
//
// Ops of restores have no Since: they replace the posts, and set no stamp.

// FeedMerged is the column of a result row that has FeedOvertaken if rule 4 applied, and 0 if not.
// The first column has the number of followees, which is never FeedOvertaken.
const (
	FeedMerged    = 1
	FeedOvertaken = -1
)

// setsPosts reports whether the op sets posts of followees.
func (op *FeedOp) setsPosts() bool {
	return (op.Kind == FeedReset || op.Kind == FeedFollow || op.Kind == FeedRead) && len(op.Followees) > 0
}

// overtaken reports whether rule 4 applies to the op on a feed with a stamp. It never applies to
// FeedFollow, which does not change the posts of existing followees.
func (op *FeedOp) overtaken(stamp uint64) bool {
	return op.Since > 0 && stamp > op.Since && op.setsPosts() && op.Kind != FeedFollow
}

// merge returns the followee with the higher of two numbers of posts: that of the feed and that of
// the op.
func merge(was, named Followee) Followee {
	named.Posts = max(named.Posts, was.Posts)
	return named
}

// OfGroup reports whether an op names a group.
func (k OpKind) OfGroup() bool { return k == FeedPutGroup || k == FeedDropGroup }

// takes reports whether an op of the kind may have this number of followees.
func (k OpKind) takes(followees int) bool {
	if k == FeedClear || k == FeedDropGroup {
		return followees == 0
	}
	return k >= FeedReset && k <= FeedDropGroup && followees <= FolloweesMax
}

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
	dst = appendFolloweeList(binary.AppendUvarint(dst, op.Since), op.Followees)
	if op.Kind.OfGroup() {
		dst = append(append(dst, byte(len(op.Group))), op.Group...)
	}
	return dst
}

// appendFolloweeList appends followees in their form in entries and snapshots.
func appendFolloweeList(dst []byte, followees []Followee) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(followees)))
	last := uint64(0)
	for _, f := range followees {
		dst = binary.AppendVarint(binary.AppendUvarint(dst, f.ID-last), f.Posts)
		last = f.ID
	}
	return dst
}

// readFollowees reads what appendFolloweeList appended, and appends the followees to dst. It fails
// r for anything else.
func readFollowees(dst []Followee, r *wire.Reader) []Followee {
	id := uint64(0)
	for i := range r.CountTo(2, FolloweesMax) {
		gap := r.Uint()
		if i > 0 && id+gap <= id {
			r.Fail("an id out of order")
		}
		id += gap
		dst = append(dst, Followee{id, r.Int()})
	}
	return dst
}

// feedBatch holds the decoded ops of one entry and reuses its memory.
type feedBatch struct {
	ops       []FeedOp
	followees []Followee
	ends      []int // where each op's followees end, for link: followees may move until all are decoded
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
	op := FeedOp{Kind: OpKind(p[0])}
	if op.Kind < FeedReset || op.Kind > FeedDropGroup {
		return nil, errOp(p, codec.KindFeed)
	}
	r, first := wire.Reader{Rest: p[1:]}, len(b.followees)
	op.User, op.Since = r.Fixed64(), r.Uint()
	b.followees = readFollowees(b.followees, &r)
	if !op.Kind.takes(len(b.followees) - first) {
		r.Fail("so many followees")
	}
	if op.Kind.OfGroup() {
		if op.Group = string(r.Take(uint64(r.Byte()))); !ValidGroupName(op.Group) {
			r.Fail("the name of a group")
		}
	}
	if r.Err != nil {
		return nil, fmt.Errorf("%w: %s: %w", codec.ErrEntry, op.Kind, r.Err)
	}
	b.ops = append(b.ops, op)
	b.ends = append(b.ends, len(b.followees))
	return r.Rest, nil
}

func (b *feedBatch) link() {
	start := 0
	for i, end := range b.ends {
		b.ops[i].Followees = b.followees[start:end]
		start = end
	}
}
