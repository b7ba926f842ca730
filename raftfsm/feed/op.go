package feed

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// FolloweesMax bounds the followees of one user, because a poll reads the number of posts of each.
const FolloweesMax = 5000

// OpKind is the number of an op in a log entry.
type OpKind uint8

// Ops on feeds. The first column of an op's result row is the number of the user's followees. For
// an op on a group, it is the number of the group's followees.
const (
	Reset    OpKind = 32 // replaces the user's followees
	Follow   OpKind = 33 // adds those followees whom the user does not follow yet; refused above FolloweesMax
	Unfollow OpKind = 34 // removes followees
	Read     OpKind = 35 // sets the posts of those followees whom the user follows
	Clear    OpKind = 36 // removes the feeds of all users of the shard; only for a restore
	// PutGroup creates or replaces a group of some of the user's followees. The shard refuses it if
	// the user does not follow all of them, or would have more than GroupsMax groups.
	PutGroup  OpKind = 37
	DropGroup OpKind = 38
)

// opNames is read only.
var opNames = [...]string{
	Reset: "reset feed", Follow: "follow", Unfollow: "unfollow", Read: "read feed",
	Clear: "clear feeds", PutGroup: "put group", DropGroup: "drop group",
}

func (k OpKind) String() string { return fmt.Sprintf("op %d (%s)", uint8(k), opNames[k]) }

// Ops are ops on feeds. They implement raftfsm.Ops.
type Ops []Op

func (o Ops) Len() int         { return len(o) }
func (o Ops) ID(op int) uint64 { return o[op].User }
func (o Ops) Fits(kind codec.Kind, _ int) error {
	return raftfsm.FitsOnly(codec.KindFeed, kind)
}
func (o Ops) Refusable(int, []int64, *raftfsm.Settings) (engine.Overflow, bool) {
	return engine.Overflow{}, true
}

func (o Ops) See(v raftfsm.Visitor, key uint64, op int) error {
	if o[op].Kind == Clear {
		return nil
	}
	return v.Body(key, &o[op])
}

func (o Ops) AppendTo(w *raftfsm.RequestWriter, key uint64, op int) {
	if err := o[op].check(); err != nil {
		panic(err.Error())
	}
	sent := o[op]
	if sent.Since > 1 && sent.Modulus != w.Modulus() {
		sent.Since = 1
	}
	w.Put(sent.appendTo(w.Buffer(), key), false)
}

// Grows implements raftfsm.Machine. An op may make a feed larger if it stores a group, or more
// followees than the user has now.
func (f *Machine) Grows(key uint64, op any) bool {
	o, is := op.(*Op)
	if !is || o.Kind != Reset && o.Kind != Follow || len(o.Followees) == 0 {
		return is && o.Kind == PutGroup
	}
	was, _, inMemory := f.Followees(nil, key)
	return o.Kind == Follow || !inMemory || len(was) < len(o.Followees)
}

// Op is one change of one user's feed. Followees ascend by id without duplicates. Unfollow ignores
// their posts.
//
// In an entry, an op names the user by the shard's key for the user. It has this form:
//
//	kind (1) | key (8) | Since (uvarint) | followees
//	and for an op on a group: length of its name (1) | name
//
//	followees:  number (uvarint) | id less the id before (uvarint), posts (varint) …
type Op struct {
	Kind      OpKind
	User      uint64
	Followees []Followee
	Since     uint64 // stamp of the feed before the proposer read the posts (see below); 0 if it read no posts, as for an unfollow or a restore
	Modulus   uint32 // of the route by which the proposer read the stamp; by another route, Since becomes 1, because the stamp is an index of another log
	Group     string // only for PutGroup and DropGroup
}

// The proposer reads the numbers of posts before it proposes an op. So the order of two ops in the
// log may differ from the order in which their proposers read. These rules ensure that seen posts
// never become unread again:
//
//  1. A feed has a stamp: the index of the last entry that set its posts by an op with Since.
//  2. The proposer reads the stamp, and then the posts. As Since, it proposes the stamp or a lower
//     number, but at least 1.
//  3. If the stamp is not above Since, every earlier op that set posts was applied before this op's
//     posts were read. So this op's posts are newer. They replace the posts in the feed, even by
//     lower numbers, because a followee may have deleted posts.
//  4. If the stamp is above Since, the replica cannot tell which posts were read later. It keeps
//     the higher number, which is right unless the followee deleted posts meanwhile. It reports
//     this case in the column Merged of the result row. The proposer then reads the posts again and
//     proposes a Read with a newer Since, until rule 3 holds. The proposer repeats this
//     only if another op of the user overtook its op.
//
// Rule 3 requires that every stamp that a proposer reads is the index of an applied entry. That is
// so, because replicas return only the effects of applied entries. It also requires that the stamp is
// of the log that gets the op, see Op.Modulus. A lower Since is always safe. A
// feed that loses its last followee loses its stamp too, because it then has no seen posts.
//
// Ops of restores have no Since: they replace the posts, and set no stamp.

// Merged is a column of the result row. Its value is Overtaken if rule 4 applied, and otherwise 0.
const (
	Merged    = 1
	Overtaken = -1
)

// setsPosts reports whether the op sets posts of followees.
func (op *Op) setsPosts() bool {
	return (op.Kind == Reset || op.Kind == Follow || op.Kind == Read) && len(op.Followees) > 0
}

// overtaken reports whether rule 4 applies to the op on a feed with a stamp. It never applies to
// Follow, which does not change the posts of existing followees.
func (op *Op) overtaken(stamp uint64) bool {
	return op.Since > 0 && stamp > op.Since && op.setsPosts() && op.Kind != Follow
}

// merge returns the followee with the higher number of posts: the number in the feed or in the op.
func merge(was, named Followee) Followee {
	named.Posts = max(named.Posts, was.Posts)
	return named
}

// OfGroup reports whether ops of the kind name a group.
func (k OpKind) OfGroup() bool { return k == PutGroup || k == DropGroup }

// takes reports whether an op of the kind may have this number of followees.
func (k OpKind) takes(followees int) bool {
	if k == Clear || k == DropGroup {
		return followees == 0
	}
	return k >= Reset && k <= DropGroup && followees <= FolloweesMax
}

func (op *Op) check() error {
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

func (op *Op) appendTo(dst []byte, key uint64) []byte {
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

// readFollowees reads followees in the form of appendFolloweeList, and appends them to dst. It sets
// r.Err if the bytes are invalid.
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

// batch holds the decoded ops of one entry and reuses its memory.
type batch struct {
	ops       []Op
	followees []Followee
	ends      []int // end of each op's followees in followees; link needs it, because decoding may reallocate followees
}

func (b *batch) begin() { b.ops, b.followees, b.ends = b.ops[:0], b.followees[:0], b.ends[:0] }

// users calls yield with the user of each op on a single feed.
func (b *batch) users(yield func(user uint64)) {
	for i := range b.ops {
		if b.ops[i].Kind != Clear {
			yield(b.ops[i].User)
		}
	}
}

func (b *batch) op(p []byte) ([]byte, error) {
	op := Op{Kind: OpKind(p[0])}
	if op.Kind < Reset || op.Kind > DropGroup {
		return nil, raftfsm.ErrOp(p, codec.KindFeed)
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

func (b *batch) link() {
	start := 0
	for i, end := range b.ends {
		b.ops[i].Followees = b.followees[start:end]
		start = end
	}
}
