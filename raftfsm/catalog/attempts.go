package catalog

import "slices"

// This file has what the nodes ask about a growth.

// SplitOf describes the place of a group in the growth of its keyspace.
type SplitOf struct {
	Keyspace Keyspace
	Parent   uint32  // the group itself, or the group of which the attempt made it; 0 unless the keyspace grows
	Attempt  Attempt // to split the parent; a zero Attempt for none
	// Over is a number of an attempt. All attempts with lower numbers to split the shard of the group are over:
	// they were abandoned, or all their children have begun. In a view that is too old to know an attempt, the
	// number of that attempt is not lower.
	Over uint32
}

// SplitOf returns the place of a group in the growth of its keyspace.
func (v *View) SplitOf(group uint32) SplitOf {
	s := SplitOf{Keyspace: v.keyspaceOf(group), Over: v.NextGroup}
	if s.Keyspace.Growth == nil {
		return s
	}
	for _, parent := range s.Keyspace.Groups {
		if a := s.Keyspace.attempt(parent); parent == group || slices.Contains(a.Children, group) {
			s.Parent, s.Attempt = parent, a
			break
		}
	}
	if s.Parent == group && len(s.Attempt.Pending) > 0 {
		s.Over = s.Attempt.Number
	}
	return s
}

// Parent returns the parent of a shard that a growth has made. It returns false for a shard with which the
// keyspace was created.
func (k *Keyspace) Parent(shard int) (parent int, made bool) {
	before := k.Divisor
	for _, shards := range append(slices.Clip(k.Grown), k.shardsAfter()) {
		if shard >= before && shard < shards {
			return shard % before, true
		}
		before = shards
	}
	return 0, false
}

// Moduli returns, while the keyspace grows, the modulus of each parent. A parent may have split later than the
// catalog shows. If the keyspace does not grow, Moduli returns nil.
func (k *Keyspace) Moduli() []uint32 {
	if k.Growth == nil {
		return nil
	}
	moduli := make([]uint32, len(k.Groups))
	for shard, parent := range k.Groups {
		moduli[shard] = uint32(len(k.Groups))
		if a := k.attempt(parent); len(a.Pending) < len(a.Children) {
			moduli[shard] = uint32(k.Growth.Shards)
		}
	}
	return moduli
}
