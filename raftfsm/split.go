package raftfsm

import (
	"errors"
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Split describes how a shard splits into parts: see shard/GROWTH.md.
type Split struct {
	Index   uint64               // index of the entry that splits the shard
	Attempt uint64               // number of the attempt to split the shard, at least 1; later attempts have higher numbers
	From    codec.Route          // route of the shard before the split
	Group   uint32               // number of the shard's group
	Parts   []dedup.Part         // the shard becomes the first part
	PartOf  func(key uint64) int // returns the index of the part of a key
	By      Partition            // if it is set, PartOf is By.Of, and tables that Machine.Part has parted need no copy
	Copies  bool                 // set if tables must be copied nevertheless
	// Adopts is set if Contents.Split moves a parked part, as the only part, to the group that adopts
	// it. The tables stay in use by the parked part too. Index is then the index of the entry that adopts it.
	Adopts *AdoptEntry

	withdraw func()
	applied  func() // called once the parts are published, under whole; nil for no call
}

// Withdraw makes the shard refuse reads until Split returns. Contents call it before they change
// data on disk that reads use.
func (s *Split) Withdraw() { s.withdraw() }

// ErrVoid is returned by Split if the shard was already split or the attempt was abandoned. Abandon
// returns it if the shard was already split.
var ErrVoid = errors.New("the shard was split, or the attempt to split it was abandoned")

// ErrUndivided is returned by Split for a kind whose keyspaces always have one shard.
var ErrUndivided = errors.New("a shard of this kind cannot be split")

// Split implements Machine. Equal machines have equal parts:
//
//   - Each row, body and pair is unchanged, and in exactly one part. So the numbers of rows, bodies
//     and pairs of the parts add up to those of the shard. So do the digests, without the digest of
//     positions.
//   - After the split, a part answers each op and each read of its keys as the undivided shard
//     would. Its contents are those of the undivided shard without the keys of the other parts.
//     There are exceptions: the progress of a sweep, the errors in hot lists, the stamps of feeds, and
//     the stamps of members who join in the same millisecond.
//   - All data of a part is in memory, except members of sets, bodies, and rows on disk if the shard was parted by s.By. Bodies
//     and rows on disk stay there.
//
// Each part has a copy of the request memory. So the digest of each part includes that of all
// positions. A Split that returns ErrVoid changes nothing. If the copies do not add up to the shard, Split
// returns ErrUneven.
func (m *Base) Split(s *Split, others []Machine) error {
	if m.Route() != s.From || s.Attempt <= m.Abandoned() {
		return ErrVoid
	}
	own := m.fresh()
	parts := []Contents{own}
	for _, o := range others {
		parts = append(parts, o.base().contents)
	}
	before := m.route.Load()
	s.withdraw = func() { m.withdraw(s.Parts[0].Route) }
	err := m.contents.Split(s, parts)
	if err == nil {
		err = m.checkParts(parts)
	}
	if err != nil {
		m.route.Store(before)
		for _, part := range parts {
			part.Dispose()
		}
		return fmt.Errorf("cannot split %s: %w", m.kind, err)
	}
	s.Withdraw()
	m.whole.Lock()
	defer m.whole.Unlock()
	m.publish(own, s.Parts[0].Route)
	for i, memory := range m.memory.Split(s.Group, s.Parts) {
		others[i].base().show(parts[i+1]) // it may have other tables now
		others[i].SetRoute(s.Parts[i+1].Route)
		others[i].base().remember(memory)
	}
	if s.applied != nil {
		s.applied()
	}
	return nil
}

// ErrUneven is returned by Split if the rows or digests of the parts do not add up to those of the
// shard. It is a fault of this machine's memory, because the copy depends only on the contents.
var ErrUneven = errors.New("the parts do not add up to the shard")

// checkParts returns ErrUneven unless the parts add up to the contents. All replicas of a child compare
// their part only with the leader's, so a wrong part of the leader would spread.
func (m *Base) checkParts(parts []Contents) error {
	rows, digest := m.contents.Stats().Rows, m.contents.Digest()
	for _, part := range parts {
		rows -= part.Stats().Rows
		digest -= part.Digest()
	}
	if rows != 0 || digest != 0 {
		return ErrUneven
	}
	return nil
}

// Abandon implements Machine.
func (m *Base) Abandon(from codec.Route, attempt uint64) error {
	if m.Route() != from {
		return ErrVoid
	}
	m.abandoned.Store(max(m.Abandoned(), attempt))
	return nil
}

// withdraw makes the replica refuse reads until publish, unless its contents already have the
// route.
func (m *Base) withdraw(route codec.Route) {
	if !m.Routed(route) {
		m.route.Store(packed(route) | showing)
	}
}

// publish replaces the contents and the route. The caller must have called withdraw, and must have
// locked whole.
func (m *Base) publish(held Contents, route codec.Route) {
	m.contents = held
	m.show(held)
	m.route.Store(packed(route))
}

// showing is a bit of Base.route. It is set while contents of that route replace contents of
// another route, in memory or on disk.
const showing = 1 << 63

func packed(r codec.Route) uint64 { return uint64(r.Modulus)<<32 | uint64(r.Residue) } // ModulusMax leaves showing free

func (m *Base) base() *Base { return m }

var _ interface{ base() *Base } = (*Base)(nil) // Machine has this method from Base
