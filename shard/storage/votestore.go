package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/countd/countd/shard/raftstore"
)

// The keys that raft uses.
var (
	keyTerm     = []byte("CurrentTerm")
	keyVoteTerm = []byte("LastVoteTerm")
	keyVoteFor  = []byte("LastVoteCand")
)

// keyVote stores the term and the candidate of the last vote in one record.
var keyVote = []byte("Vote")

// A stored value:
//
//	┌───────────┬──────────────────────┬───────┐
//	│ version 1 │ crc32c little endian │ value │
//	│  1 byte   │       4 bytes        │       │
//	└───────────┴──────────────────────┴───────┘
//
// crc32c covers the key and the value. The value of CurrentTerm is the term (8 bytes, little
// endian). The value of Vote is the term followed by the candidate.
const (
	stableVersion   = 1
	stableHeadBytes = 5
)

func stableChecksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

func sealStable(dst, key, value []byte) []byte {
	dst = append(dst, stableVersion)
	dst = binary.LittleEndian.AppendUint32(dst, stableChecksum(key, value))
	return append(dst, value...)
}

// unsealStable verifies a stored value and returns the value without its head.
func unsealStable(key, stored []byte) ([]byte, error) {
	if len(stored) < stableHeadBytes || stored[0] != stableVersion {
		return nil, fmt.Errorf("%w: the value has no checksum of a known version", ErrDamaged)
	}
	value := stored[stableHeadBytes:]
	if binary.LittleEndian.Uint32(stored[1:]) != stableChecksum(key, value) {
		return nil, fmt.Errorf("%w: the value's checksum does not match", ErrDamaged)
	}
	return value, nil
}

// stableBytes stores values by key.
type stableBytes interface {
	Set(key, value []byte) error
	Get(key []byte) ([]byte, error) // returns raftboltdb.ErrKeyNotFound for an absent key
}

// Votes stores raft's term and vote. raft saves a vote in two calls, the term and then the
// candidate. A crash between two separate writes would leave the new term with the old candidate, a
// vote that was never cast. So Votes keeps the term of the first call in memory, and the second
// call stores the term and the candidate in one transaction.
//
// Any error except raftboltdb.ErrKeyNotFound stops the group for good. If the log cannot create a
// file for the value, the write waits until it can, because raft panics if it cannot store its
// term.
type Votes struct {
	store stableBytes
	group uint32
	path  string
	stop  *FailStop

	mu struct { // held during a write, because writes of one StallGauge must not overlap
		sync.Mutex
		writing  StallGauge
		voteTerm uint64 // term of the first call, not yet stored; 0 for none
	}
}

var _ raft.StableStore = (*Votes)(nil)

// NewVotes returns the Votes over store. path appears in error messages.
func NewVotes(store stableBytes, group uint32, path string, stop *FailStop) *Votes {
	return &Votes{store: store, group: group, path: path, stop: stop}
}

// Term returns the stored term, or 0 if there is none.
func (s *Votes) Term() (uint64, error) {
	term, err := s.GetUint64(keyTerm)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return 0, nil
	}
	return term, err
}

// SetTerm stores the term.
func (s *Votes) SetTerm(term uint64) error { return s.SetUint64(keyTerm, term) }

// SetUint64 implements raft.StableStore.
func (s *Votes) SetUint64(key []byte, value uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case bytes.Equal(key, keyVoteTerm):
		s.mu.voteTerm = value
		return s.stop.Failure()
	case bytes.Equal(key, keyTerm):
		return s.writeLocked(keyTerm, binary.LittleEndian.AppendUint64(nil, value))
	}
	return s.unknown(key)
}

// Set implements raft.StableStore.
func (s *Votes) Set(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Equal(key, keyVoteFor) {
		return s.unknown(key)
	}
	if s.mu.voteTerm == 0 {
		return s.fail("store", key, errors.New("no term came before the candidate"))
	}
	vote := binary.LittleEndian.AppendUint64(nil, s.mu.voteTerm)
	s.mu.voteTerm = 0
	return s.writeLocked(keyVote, append(vote, value...))
}

// GetUint64 implements raft.StableStore. It returns raftboltdb.ErrKeyNotFound unwrapped, because
// raft compares the error's text.
func (s *Votes) GetUint64(key []byte) (uint64, error) {
	switch {
	case bytes.Equal(key, keyVoteTerm):
		term, _, err := s.vote()
		return term, err
	case bytes.Equal(key, keyTerm):
		value, err := s.read(keyTerm)
		if err == nil && len(value) != 8 {
			err = s.fail("read", key, fmt.Errorf("%w: it has %d bytes", ErrDamaged, len(value)))
		}
		if err != nil {
			return 0, err
		}
		return binary.LittleEndian.Uint64(value), nil
	}
	return 0, s.unknown(key)
}

// Get implements raft.StableStore.
func (s *Votes) Get(key []byte) ([]byte, error) {
	if !bytes.Equal(key, keyVoteFor) {
		return nil, s.unknown(key)
	}
	_, candidate, err := s.vote()
	return candidate, err
}

func (s *Votes) vote() (term uint64, candidate []byte, err error) {
	value, err := s.read(keyVote)
	if err == nil && len(value) < 8 {
		err = s.fail("read", keyVote, fmt.Errorf("%w: it has %d bytes", ErrDamaged, len(value)))
	}
	if err != nil {
		return 0, nil, err
	}
	return binary.LittleEndian.Uint64(value), value[8:], nil
}

func (s *Votes) read(key []byte) ([]byte, error) {
	if err := s.stop.Failure(); err != nil {
		return nil, err
	}
	stored, err := s.store.Get(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, raftboltdb.ErrKeyNotFound
	}
	var value []byte
	if err == nil {
		value, err = unsealStable(key, stored)
	}
	if err != nil {
		return nil, s.fail("read", key, err)
	}
	return value, nil
}

func (s *Votes) writeLocked(key, value []byte) error {
	if err := s.stop.Failure(); err != nil {
		return err
	}
	var err error
	for {
		s.mu.writing.Begin()
		err = s.store.Set(key, sealStable(nil, key, value))
		s.mu.writing.End()
		if !errors.Is(err, raftstore.ErrNoSegment) {
			break
		}
		if err := s.stop.Wait(err); err != nil { // wait: after an error, raft would continue with a vote that is not stored
			return err
		}
	}
	if err != nil {
		return s.fail("store", key, err)
	}
	return s.stop.Failure()
}

// unknown refuses a key that this version of raft does not use, because a later version might save
// its value in two calls, like the vote.
func (s *Votes) unknown(key []byte) error {
	return s.fail("serve", key, errors.New("raft is not known to use it"))
}

func (s *Votes) fail(verb string, key []byte, err error) error {
	return s.stop.Fail(fmt.Errorf("group %d: log %s: cannot %s %s: %w", s.group, s.path, verb, key, err))
}
