package rafttest

import (
	"bytes"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// Append returns a call with all fields set, and with entries of several types.
func Append() *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1.0#4"), Addr: []byte("n1.0#4@127.0.0.1:1")},
		Term:      1 << 40, PrevLogEntry: 300, PrevLogTerm: 1<<40 - 1, LeaderCommitIndex: 299,
		Entries: []*raft.Log{
			{Index: 301, Term: 1 << 40, Type: raft.LogCommand, Data: []byte("data"), AppendedAt: time.Unix(1, 999_999_999).UTC()},
			{Index: 302, Term: 1 << 40, Type: raft.LogConfiguration, Data: []byte{0}, Extensions: []byte("more"), AppendedAt: time.Unix(-1, 0).UTC()},
			{Index: 303, Term: 1 << 40, Type: raft.LogNoop},
		},
	}
}

// Heartbeat returns a call without entries.
func Heartbeat() *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("n1.0#4"), Addr: []byte("a")}, Term: 5}
}

// Taking returns the answer of a follower that accepts the call args.
func Taking(args *raft.AppendEntriesRequest) raft.RPCResponse {
	return raft.RPCResponse{Response: &raft.AppendEntriesResponse{Term: args.Term, LastLog: args.PrevLogEntry, Success: true}}
}

// Stable is a raft.StableStore in memory. It is not safe for concurrent use.
type Stable struct {
	Values map[string][]byte
	Sets   int   // number of successful calls of Set
	Err    error // returned by each Set; nil for none
}

// Set implements raft.StableStore.
func (s *Stable) Set(key, value []byte) error {
	if s.Err != nil {
		return s.Err
	}
	s.Sets++
	if s.Values == nil {
		s.Values = map[string][]byte{}
	}
	s.Values[string(key)] = bytes.Clone(value)
	return nil
}

// Get implements raft.StableStore.
func (s *Stable) Get(key []byte) ([]byte, error) {
	v, ok := s.Values[string(key)]
	if !ok {
		return nil, raftboltdb.ErrKeyNotFound
	}
	return bytes.Clone(v), nil
}
