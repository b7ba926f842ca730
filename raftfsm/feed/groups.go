package feed

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"

	"github.com/countd/countd/internal/wire"
)

// The bounds of the groups of one user.
const (
	GroupsMax         = 32
	GroupNameBytesMax = 63
)

// Group is a group of followees: a named list of some of a user's followees.
type Group struct {
	Name      string
	Followees []uint64 // ascending
}

// ValidGroupName reports whether name is valid for a group. A valid name needs no escaping in JSON
// or in a path.
func ValidGroupName[T string | []byte](name T) bool { return wire.IsLabel(name, GroupNameBytesMax) }

// appendGroups appends the groups of one user, which follow the followees in memory and in
// snapshots:
//
//	groups (1) | length of name (1), name, followees (uvarint), position of each among the
//	followees of the user, the first whole and the others less the one before (uvarint) …
//
// Groups ascend by name. In memory, nothing follows the followees of a user without groups.
func appendGroups(dst []byte, groups []Group, followees []Followee) []byte {
	if len(groups) == 0 {
		return dst
	}
	dst = append(dst, byte(len(groups)))
	for _, g := range groups {
		dst = append(append(dst, byte(len(g.Name))), g.Name...)
		dst = binary.AppendUvarint(dst, uint64(len(g.Followees)))
		at, last := 0, 0
		for _, id := range g.Followees {
			for followees[at].ID != id {
				at++
			}
			dst = binary.AppendUvarint(dst, uint64(at-last))
			last = at
		}
	}
	return dst
}

// readGroups reads the groups of a user with the given followees; the byte 0 stands for no groups.
// It sets r.Err if the bytes are invalid.
func readGroups(r *wire.Reader, followees []Followee) (groups []Group) {
	n := r.Byte()
	if n > GroupsMax {
		r.Fail("the number of groups")
	}
	for i := range int(n) {
		g := Group{Name: string(r.Take(uint64(r.Byte())))}
		if !ValidGroupName(g.Name) || i > 0 && groups[i-1].Name >= g.Name {
			r.Fail("the name of a group")
		}
		at := uint64(0)
		for j := range r.CountTo(1, len(followees)) {
			gap := r.Uint()
			if at += gap; j > 0 && gap == 0 || gap >= uint64(len(followees)) || at >= uint64(len(followees)) {
				r.Fail("the position of a followee")
			}
			if r.Err != nil {
				return nil
			}
			g.Followees = append(g.Followees, followees[at].ID)
		}
		groups = append(groups, g)
	}
	return groups
}

// decodeGroups returns the groups in the bytes after a user's followees.
func decodeGroups(p []byte, followees []Followee) []Group {
	if len(p) == 0 {
		return nil
	}
	r := wire.Reader{Rest: p}
	groups := readGroups(&r, followees)
	if r.Err != nil {
		panic("groups in memory that cannot be read")
	}
	return groups
}

// These are the values of Overflow.Column for a refused op on a feed.
const (
	RefusedFollowees   = 0 // the user would have more than FolloweesMax followees
	RefusedNotFollowed = 1 // the user does not follow all users of the group
	RefusedGroups      = 2 // the user would have more than GroupsMax groups
)

// changeGroups returns the groups after the op, given the groups before it and the followees after
// it. If it refuses the op, why is the column of the Overflow.
func (op *Op) changeGroups(was []Group, now []Followee) (groups []Group, why uint8, refused bool) {
	follows := func(id uint64) bool {
		_, found := findFollowee(now, id)
		return found
	}
	for _, g := range was {
		if op.Kind == PutGroup || op.Kind == DropGroup {
			if g.Name != op.Group {
				groups = append(groups, g)
			}
			continue
		}
		g.Followees = slices.DeleteFunc(slices.Clone(g.Followees), func(id uint64) bool { return !follows(id) })
		groups = append(groups, g)
	}
	if op.Kind != PutGroup {
		return groups, 0, false
	}
	put := Group{Name: op.Group}
	for _, f := range op.Followees {
		if !follows(f.ID) {
			return was, RefusedNotFollowed, true
		}
		put.Followees = append(put.Followees, f.ID)
	}
	if len(groups) == GroupsMax {
		return was, RefusedGroups, true
	}
	at, _ := slices.BinarySearchFunc(groups, put.Name, func(g Group, name string) int { return strings.Compare(g.Name, name) })
	return slices.Insert(groups, at, put), 0, false
}

func sameGroups(a, b []Group) bool {
	return slices.EqualFunc(a, b, func(a, b Group) bool {
		return a.Name == b.Name && slices.Equal(a.Followees, b.Followees)
	})
}

// groupsDigest returns the digest of a user's groups. It is the sum of a hash of user and name for
// each group, and a hash of user, name and followee for each followee in a group.
func groupsDigest(key uint64, groups []Group) (sum uint64) {
	for _, g := range groups {
		h := wire.MixNext(^key)
		for i := range len(g.Name) {
			h = wire.MixNext(h ^ uint64(g.Name[i]))
		}
		sum += h
		for _, id := range g.Followees {
			sum += wire.MixNext(h + bits.RotateLeft64(wire.MixNext(id), 32))
		}
	}
	return sum
}

func groupSize(groups []Group, name string) int64 {
	for _, g := range groups {
		if g.Name == name {
			return int64(len(g.Followees))
		}
	}
	return 0
}
