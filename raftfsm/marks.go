package raftfsm

import "slices"

const (
	// markEvery is the number of log indexes from one mark to the next. If a caller polls the
	// replicas one after the other under full load, their indexes differ by some hundred entries.
	markEvery = 64
	// marksKept is the number of marks that a replica keeps. They cover 4,096 entries, a third of a
	// second at a group's highest rate.
	marksKept = 64
)

// Mark is the digest of the contents just after the entry with the given index. All replicas take
// marks at the same indexes. So a caller can compare the replicas of a busy group, although they
// are at different indexes when it polls them.
type Mark struct {
	Index  uint64 `json:"index"`
	Digest uint64 `json:"digest"`
}

// marks are the newest marks, ascending by index.
type marks []Mark

// note adds a mark if the index is a multiple of markEvery.
func (m *marks) note(index uint64, digest func() uint64) {
	if index%markEvery != 0 {
		return
	}
	if len(*m) == marksKept {
		*m = slices.Delete(*m, 0, 1)
	}
	*m = append(*m, Mark{index, digest()})
}
