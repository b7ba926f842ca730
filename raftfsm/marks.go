package raftfsm

import "slices"

const (
	// markEvery is how many log indexes lie between two marks. Replicas that are
	// looked at one after the other under a full load of entries are some
	// hundreds apart.
	markEvery = 64
	// marksKept is how many marks are remembered: those of 4,096 entries, a third
	// of a second of the most that a group commits.
	marksKept = 64
)

// Mark is the digest of a table after the entry of an index. Replicas take it at
// the same indexes, so those of a group that is written to can be compared
// though they are never looked at when they are at the same one.
type Mark struct {
	Index  uint64 `json:"index"`
	Digest uint64 `json:"digest"`
}

// marks is the newest marks, in a ring.
type marks struct {
	ring [marksKept]Mark
	next int // where the next one goes
	kept int
}

// note remembers the state after an entry if there is a mark to be taken.
func (m *marks) note(index uint64, digest func() uint64) {
	if index%markEvery != 0 {
		return
	}
	m.ring[m.next] = Mark{index, digest()}
	m.next = (m.next + 1) % marksKept
	m.kept = min(m.kept+1, marksKept)
}

// rising returns the marks by index.
func (m *marks) rising() []Mark {
	first := (m.next - m.kept + marksKept) % marksKept
	return append(slices.Clone(m.ring[first:min(first+m.kept, marksKept)]), m.ring[:max(0, first+m.kept-marksKept)]...)
}
