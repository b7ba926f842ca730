package raftfsm

import (
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// SnapshotFacts are facts about a snapshot of a shard.
type SnapshotFacts struct {
	Index  uint64 // index of the last entry that the snapshot includes
	Route  codec.Route
	Rows   uint64
	Digest uint64 // digest of the contents; a shard with equal contents has the same digest
	// SetBack is the number of values that a restore has lowered to a bound. Only a restore sets
	// it. If it is above 0, Rows and Digest describe the restored shard.
	SetBack uint64
	// Later means that a part of the contents includes entries after Index.
	Later bool
	// Gone is the part of Digest that belongs to useless contents, which will be removed. The
	// visitor does not receive them.
	Gone uint64
}

// SnapshotReader reads a snapshot whose head was read already.
type SnapshotReader struct {
	stream *codec.StreamReader
	kind   Kind
	head   codec.Head
}

// Route returns the route of the shard.
func (s *SnapshotReader) Route() codec.Route { return s.head.Route }

// Visit reads the rest of the snapshot and calls the visitor with its contents. The snapshot may
// carry cold rows and sets, but must not name them. Visit verifies checksums and structure. Only a
// shard with the same contents can verify the digest. It returns the visitor's error unchanged. Any
// other error means that Visit refuses the stream.
func (s *SnapshotReader) Visit(v SnapshotVisitor) (SnapshotFacts, error) {
	facts := SnapshotFacts{Index: s.head.Index, Route: s.head.Route}
	walk := s.kind.Walk(&v, &facts)
	take := func(kind byte, p []byte) error {
		switch {
		case kind == codec.StreamPositions:
			all, digest, err := dedup.ParsePositions(p)
			if err != nil || v.Positions == nil {
				return err
			}
			return v.Positions(all, digest)
		case dedup.IsSection(kind):
			return nil
		}
		return walk(s.stream, kind, p)
	}
	err := readSections(s.stream, take, func(told codec.Totals) (codec.Totals, error) {
		facts.Digest = told.Digest
		return codec.Totals{Rows: facts.Rows, Digest: told.Digest}, nil
	})
	return facts, err
}
