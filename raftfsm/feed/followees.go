package feed

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/countd/countd/internal/wire"
)

// Followee is a followed user, with the number of that user's posts that the follower has seen.
type Followee struct {
	ID    uint64
	Posts int64 // the number of posts when the follower last saw them
}

// The followees of one user in memory, ascending by id:
//
//	number (uvarint) | first id (uvarint) | k of gaps (1) | k of posts (1) | Rice codes, to a whole byte
//	codes, for each:  gap to the id before less 1, not of the first; posts
//	if riceStamped is set in k of posts:  stamp (uvarint)
//
// If some numbers of posts are below 0, riceSigned is set in the k of posts, and all posts are
// zigzag coded. Rice codes come within half a bit of the optimum for gaps between arbitrary ids
// (Golomb, 1966). Each body has its own k of posts, which fits the size of the user's numbers.
const (
	riceSigned  = 1 << 7
	riceStamped = 1 << 6
)

// appendBody appends followees in their form in memory. It appends the stamp unless the stamp is 0
// or there are no followees. An empty list takes two bytes, because the first byte of a body must
// not be 0: only marks begin with 0.
func appendBody(dst []byte, followees []Followee, stamp uint64) []byte {
	if len(followees) == 0 {
		return append(dst, 0x80, 0)
	}
	dst = binary.AppendUvarint(dst, uint64(len(followees)))
	first, last := followees[0].ID, followees[len(followees)-1].ID
	dst = binary.AppendUvarint(dst, first)
	gapK := uint8(0)
	if n := uint64(len(followees) - 1); n > 0 {
		gapK = wire.RiceKOfMean((last - first) / n)
	}
	k := postsK(followees)
	stamped := uint8(0)
	if stamp > 0 {
		stamped = riceStamped
	}
	w := wire.RiceWriter{Buf: append(dst, gapK, k|stamped)}
	for i, f := range followees {
		if i > 0 {
			w.Put(f.ID-followees[i-1].ID-1, gapK)
		}
		w.Put(posts(f.Posts, k), k&^riceSigned)
	}
	if dst = w.End(); stamp > 0 {
		dst = binary.AppendUvarint(dst, stamp)
	}
	return dst
}

// posts returns the number that encodes n posts: n itself, or its zigzag form if riceSigned is set
// in k.
func posts(n int64, k uint8) uint64 {
	if k&riceSigned != 0 {
		return wire.Zigzag(n)
	}
	return uint64(n)
}

// postsK returns the k with which the codes of the posts are shortest.
func postsK(followees []Followee) uint8 {
	signed := uint8(0)
	for _, f := range followees {
		if f.Posts < 0 {
			signed = riceSigned
		}
	}
	var lengths [65]int // lengths[n] is the number of values of n bits
	for _, f := range followees {
		lengths[bits.Len64(posts(f.Posts, signed))]++
	}
	return wire.RiceK(&lengths) | signed
}

// decodeBody decodes the result of appendBody. It appends the followees to dst, and returns the
// stamp, or 0, and the bytes of the groups. data must have wire.RicePadding bytes after its end.
func decodeBody(dst []Followee, data []byte) (_ []Followee, stamp uint64, groups []byte) {
	n, size := binary.Uvarint(data)
	if n == 0 {
		return dst, 0, data[size:]
	}
	id, m := binary.Uvarint(data[size:])
	at := size + m
	gapK, k := data[at], data[at+1]&^(riceSigned|riceStamped)
	signed := data[at+1]&riceSigned != 0
	r := wire.RiceReader{Buf: data[:cap(data):cap(data)], At: uint64(at+2) * 8}
	v := r.Take(k)
	for left := n - 1; ; left-- {
		if signed {
			v = v>>1 ^ -(v & 1)
		}
		dst = append(dst, Followee{id, int64(v)})
		if left == 0 {
			groups = data[(r.At+7)/8:]
			if data[at+1]&riceStamped != 0 {
				stamp, size = binary.Uvarint(groups)
				groups = groups[size:]
			}
			return dst, stamp, groups
		}
		var gap uint64
		gap, v = r.TakeTwo(gapK, k)
		id += gap + 1
	}
}

// findFollowee returns the index of the followee with an id, or the index at which it would be
// inserted.
func findFollowee(followees []Followee, id uint64) (at int, found bool) {
	return slices.BinarySearchFunc(followees, id, func(f Followee, id uint64) int { return cmp.Compare(f.ID, id) })
}

// Unread returns how many of a followee's posts are new, given the current number of posts. It returns
// 0 if that number is below f.Posts.
func (f Followee) Unread(now int64) int64 {
	if now <= f.Posts {
		return 0
	}
	if n := uint64(now) - uint64(f.Posts); n <= math.MaxInt64 {
		return int64(n)
	}
	return math.MaxInt64
}
