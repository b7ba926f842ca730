package raftfsm

import (
	"errors"
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
)

// Split describes how a shard splits into parts: see shard/GROWTH.md.
type Split struct {
	Index  uint64               // index of the entry that splits the shard
	Routes []codec.Route        // of the parts; the shard becomes the first part
	PartOf func(key uint64) int // returns the part of a key
}

// ErrUndivided is returned by Split for a kind whose keyspaces always have one shard.
var ErrUndivided = errors.New("a shard of this kind cannot be split")

// Split implements Machine. Equal machines have equal parts:
//
//   - Each row, body and pair is unchanged, and in exactly one part. So the numbers of rows, bodies
//     and pairs of the parts add up to those of the shard. So do the digests, without the digest of
//     positions.
//   - After the split, a part answers each op and each read of its keys as the undivided shard
//     would. Its contents are those of the undivided shard without the keys of the other parts.
//     There are exceptions: the progress of a sweep, the hot lists, the stamps of feeds, and the
//     stamps of members who join in the same millisecond.
//   - All data of a part is unpacked and in memory, except members of sets.
//
// Split does not split the request memory: the other machines have an empty one.
func (m *Base) Split(s *Split, others []Machine) error {
	own := m.fresh()
	parts := []Contents{own}
	for _, o := range others {
		parts = append(parts, o.base().contents)
	}
	if err := m.contents.Split(s, parts); err != nil {
		own.Dispose()
		return fmt.Errorf("cannot split %s: %w", m.kind, err)
	}
	m.whole.Lock()
	defer m.whole.Unlock()
	m.contents, m.route = own, s.Routes[0]
	m.show(own)
	for i, o := range others {
		o.SetRoute(s.Routes[i+1])
	}
	return nil
}

func (m *Base) base() *Base { return m }

var _ interface{ base() *Base } = (*Base)(nil) // Machine has this method from Base
