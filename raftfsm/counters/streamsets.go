package counters

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// These sections of sets come right after the head of a stream. A snapshot that a replica stores
// only names its sets; a stream that a node sends contains them (see CarryBlocks):
//
//	members:         generation (4) | state of the sets as of the snapshot
//	carried members: state as of the snapshot | state of the carried sets | blocks (4)
//	member block:    a block of engine/members
//
//	state:           index (8) | digest (8) | pairs (8) | stamp (8)
//
// Carried sets may be those after a later entry than the snapshot's. Then the stream also has the
// outcomes of the entries in between, as the disk of a restarted replica has.
const (
	setsStateSize   = 32
	setsNamedSize   = 4 + setsStateSize
	setsCarriedSize = 2*setsStateSize + 4
)

// errMembersLost is returned if the replica's own snapshot names sets that are not on its disk.
var errMembersLost = fmt.Errorf("%w: members that the snapshot names", raftfsm.ErrColdLost)

func appendSetsState(dst []byte, s members.State) []byte {
	for _, n := range [...]uint64{s.Index, s.Digest, s.Pairs, uint64(s.Stamp)} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	return dst
}

func parseSetsState(p []byte) members.State {
	return members.State{
		Index: binary.LittleEndian.Uint64(p), Digest: binary.LittleEndian.Uint64(p[8:]),
		Pairs: binary.LittleEndian.Uint64(p[16:]), Stamp: members.Stamp(binary.LittleEndian.Uint64(p[24:])),
	}
}

// setsCapture is the state of the sets when a snapshot was captured.
type setsCapture struct {
	group      *members.Group
	generation uint32
	at         members.State
	err        error
}

func (s *sets) capture() setsCapture {
	if s.group == nil || s.at.Index == 0 {
		return setsCapture{}
	}
	return setsCapture{group: s.group, generation: s.group.Generation(), at: s.at, err: s.group.Capture()}
}

func (s *setsCapture) write(w *codec.StreamWriter) error {
	if s.group == nil || s.err != nil {
		return s.err
	}
	return w.Section(codec.StreamMembers, func(b []byte) []byte {
		return appendSetsState(binary.LittleEndian.AppendUint32(b, s.generation), s.at)
	})
}

// keep makes the sets durable up to the snapshot.
func (s *setsCapture) keep() error {
	if s.group == nil {
		return nil
	}
	return s.group.Sync()
}

// loadNamed makes s use the sets on this node's disk, after it has checked that a replay can start
// from the named state.
func (s *sets) loadNamed(p []byte) error {
	if len(p) != setsNamedSize || s.named {
		return fmt.Errorf("%w: members of %d bytes", codec.ErrSnapshot, len(p))
	}
	if s.group == nil {
		return fmt.Errorf("%w: it names members, and there are none here", codec.ErrSnapshot)
	}
	at := parseSetsState(p[4:])
	if err := s.group.Adopts(binary.LittleEndian.Uint32(p), at); err != nil {
		return fmt.Errorf("%w: %w", errMembersLost, err)
	}
	s.at, s.named = at, true
	return nil
}

// loadCarried loads the sets in the stream. The old sets on this node's disk stay until adopt.
func (s *sets) loadCarried(stream *codec.StreamReader, p []byte) (err error) {
	at, found, blocks, err := parseCarriedSets(p)
	if err != nil || s.named {
		return errors.Join(err, fmt.Errorf("%w: members of %d bytes", codec.ErrSnapshot, len(p)))
	}
	if s.group == nil {
		return fmt.Errorf("%w: it carries members, and there is no place for them here", codec.ErrSnapshot)
	}
	if s.load, err = s.group.Load(); err != nil {
		return err
	}
	err = eachMemberBlock(stream, blocks, s.load.Block)
	if err == nil {
		err = s.load.Check(found)
	}
	if errors.Is(err, members.ErrDamaged) {
		err = fmt.Errorf("%w: %w", codec.ErrSnapshot, err)
	}
	s.at, s.found, s.named = at, found, true
	return err
}

func parseCarriedSets(p []byte) (at, found members.State, blocks int, err error) {
	if len(p) != setsCarriedSize {
		return at, found, 0, fmt.Errorf("%w: carried members of %d bytes", codec.ErrSnapshot, len(p))
	}
	at, found = parseSetsState(p), parseSetsState(p[setsStateSize:])
	if found.Index < at.Index {
		return at, found, 0, fmt.Errorf("%w: it carries members of entry %d, and names entry %d", codec.ErrSnapshot, found.Index, at.Index)
	}
	return at, found, int(binary.LittleEndian.Uint32(p[2*setsStateSize:])), nil
}

// eachMemberBlock calls fn with each of the next blocks of a stream. blocks is their number.
func eachMemberBlock(s *codec.StreamReader, blocks int, fn func([]byte) error) error {
	for range blocks {
		kind, b, err := s.Next()
		if err != nil {
			return err
		}
		if kind != codec.StreamMemberBlock {
			return fmt.Errorf("%w: section kind %d in place of members", codec.ErrSnapshot, kind)
		}
		if err := fn(b); err != nil {
			return err
		}
	}
	return nil
}

// adopt durably replaces the replica's sets by the loaded ones. If the snapshot neither names nor
// contains sets, the shard had no sets at that time, and later entries created the sets on disk.
// adopt then removes the sets on disk, and the replay of the later entries creates them again.
func (s *sets) adopt() error {
	switch load := s.load; {
	case load != nil:
		s.load = nil
		return load.Switch(s.found)
	case s.group != nil && !s.named:
		return s.group.Reset()
	}
	return nil
}
