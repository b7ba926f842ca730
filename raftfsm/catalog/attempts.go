package catalog

import "slices"

// This file has what the nodes ask about a growth.

// SplitOf describes the place of a group in the growth of its keyspace.
type SplitOf struct {
	Keyspace Keyspace
	Parent   uint32  // the group itself, or the group of which the attempt made it; 0 unless the keyspace grows
	Attempt  Attempt // to split the parent; a zero Attempt for none
}

// SplitOf returns the place of a group in the growth of its keyspace.
func (v *View) SplitOf(group uint32) SplitOf {
	s := SplitOf{Keyspace: v.keyspaceOf(group)}
	if s.Keyspace.Growth == nil {
		return s
	}
	for _, parent := range s.Keyspace.Groups {
		if a := s.Keyspace.attempt(parent); parent == group || slices.Contains(a.Children, group) {
			s.Parent, s.Attempt = parent, a
			break
		}
	}
	return s
}

// AttemptsOver returns a number of an attempt. All attempts with lower numbers to split the shard of the group
// are over: they were abandoned, or all their children have begun. In a view that is too old to know an attempt,
// the number of that attempt is not lower.
func (v *View) AttemptsOver(group uint32) uint32 {
	if s := v.SplitOf(group); s.Parent == group && len(s.Attempt.Pending) > 0 {
		return s.Attempt.Number
	}
	return v.NextGroup
}

// Parent returns the shard of which a growth has made a shard, or false if the keyspace was created with the
// shard.
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
