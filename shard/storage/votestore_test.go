package storage

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
)

var errBrokenDisk = errors.New("the disk is broken")

// vote saves a vote like raft's persistVote.
func vote(s raft.StableStore, term uint64, candidate string) error {
	if err := s.SetUint64(keyVoteTerm, term); err != nil {
		return err
	}
	return s.Set(keyVoteFor, []byte(candidate))
}

func mustHaveVote(t *testing.T, s raft.StableStore, term uint64, candidate string) {
	t.Helper()
	gotTerm, err := s.GetUint64(keyVoteTerm)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(keyVoteFor)
	if err != nil {
		t.Fatal(err)
	}
	if gotTerm != term || string(got) != candidate {
		t.Errorf("vote %d for %q, want %d for %q", gotTerm, got, term, candidate)
	}
}

func TestVoteIsStoredAtOnce(t *testing.T) {
	m := &rafttest.Stable{}
	s := NewVotes(m, 7, "raft.db", noFatal(t))
	if _, err := s.GetUint64(keyVoteTerm); err == nil || err.Error() != "not found" {
		t.Errorf("no vote yet: %v; raft compares the text", err)
	}
	if err := s.SetUint64(keyTerm, 4); err != nil {
		t.Fatal(err)
	}
	m.Sets = 0
	if err := vote(s, 4, "n1"); err != nil {
		t.Fatal(err)
	}
	if m.Sets != 1 {
		t.Errorf("a vote took %d writes", m.Sets)
	}
	mustHaveVote(t, s, 4, "n1")
	term, err := s.GetUint64(keyTerm)
	if err != nil || term != 4 {
		t.Errorf("term %d, %v", term, err)
	}
}

func TestCrashInsideAVoteLeavesTheEarlierOne(t *testing.T) {
	eachStore(t, testCrashInsideAVoteLeavesTheEarlierOne)
}

func testCrashInsideAVoteLeavesTheEarlierOne(t *testing.T, store LogStore) {
	dir := t.TempDir()
	b := mustOpenStores(t, store, dir)
	s := NewVotes(b, 7, "log", noFatal(t))
	if err := vote(s, 4, "n1"); err != nil {
		t.Fatal(err)
	}
	if err := s.SetUint64(keyVoteTerm, 5); err != nil {
		t.Fatal(err)
	}
	mustHaveVote(t, s, 4, "n1")
	b.Close() // a crash before raft stores the candidate's address
	s = NewVotes(mustOpenStores(t, store, dir), 7, "log", noFatal(t))
	mustHaveVote(t, s, 4, "n1")
	if err := vote(s, 5, "n2"); err != nil {
		t.Fatal(err)
	}
	mustHaveVote(t, s, 5, "n2")
}

func TestFailedVoteStopsTheGroup(t *testing.T) {
	m := &rafttest.Stable{}
	stop, told := countFatal(t)
	s := NewVotes(m, 7, "raft.db", stop)
	if err := vote(s, 4, "n1"); err != nil {
		t.Fatal(err)
	}
	m.Err = errBrokenDisk
	if err := vote(s, 5, "n2"); !errors.Is(err, errBrokenDisk) {
		t.Errorf("a vote on a broken disk: %v", err)
	}
	m.Err = nil // after one failure, later writes must fail too, because the content of the disk is unknown
	if err := vote(s, 5, "n3"); !errors.Is(err, errBrokenDisk) {
		t.Errorf("the next vote: %v", err)
	}
	if err := s.SetUint64(keyTerm, 6); !errors.Is(err, errBrokenDisk) {
		t.Errorf("the next term: %v", err)
	}
	if *told != 1 {
		t.Errorf("told %d times", *told)
	}
	if m.Sets != 1 {
		t.Errorf("%d writes", m.Sets)
	}
}

func TestDamagedStableValueIsRefused(t *testing.T) {
	whole := &rafttest.Stable{}
	s := NewVotes(whole, 7, "raft.db", noFatal(t))
	if err := errors.Join(s.SetUint64(keyTerm, 4), vote(s, 4, "n1")); err != nil {
		t.Fatal(err)
	}
	read := map[string]func(raft.StableStore) error{
		string(keyTerm): func(s raft.StableStore) error { _, err := s.GetUint64(keyTerm); return err },
		string(keyVote): func(s raft.StableStore) error { _, err := s.Get(keyVoteFor); return err },
	}
	for key, stored := range whole.Values {
		for i := range stored {
			damaged := &rafttest.Stable{Values: map[string][]byte{key: changed(stored, i)}}
			stop, told := countFatal(t)
			if err := read[key](NewVotes(damaged, 7, "raft.db", stop)); !errors.Is(err, ErrDamaged) || *told != 1 {
				t.Errorf("%s, byte %d: %v, told %d times", key, i, err, *told)
			}
		}
		for n := range stored {
			damaged := &rafttest.Stable{Values: map[string][]byte{key: stored[:n]}}
			stop, _ := countFatal(t)
			if err := read[key](NewVotes(damaged, 7, "raft.db", stop)); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s cut to %d bytes: %v", key, n, err)
			}
		}
	}
	// Store the vote under the key of the term.
	swapped := &rafttest.Stable{Values: map[string][]byte{string(keyTerm): whole.Values[string(keyVote)]}}
	stop, _ := countFatal(t)
	if _, err := NewVotes(swapped, 7, "raft.db", stop).GetUint64(keyTerm); !errors.Is(err, ErrDamaged) {
		t.Errorf("the vote as term: %v", err)
	}
}

func TestUnknownStableKeyIsRefused(t *testing.T) {
	stop, told := countFatal(t)
	s := NewVotes(&rafttest.Stable{}, 7, "raft.db", stop)
	if err := s.SetUint64([]byte("NewVoteTerm"), 1); err == nil || *told != 1 {
		t.Errorf("%v, told %d times", err, *told)
	}
}

func FuzzUnsealStable(f *testing.F) {
	f.Add([]byte("Vote"), sealStable(nil, keyVote, []byte("12345678n1")))
	f.Add([]byte("Vote"), []byte{1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, key, stored []byte) {
		value, err := unsealStable(key, stored)
		if err == nil && !bytes.Equal(sealStable(nil, key, value), stored) {
			t.Errorf("accepted %x", stored)
		}
	})
}
