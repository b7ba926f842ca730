package raftfsm

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Snapshot captures the state between two entries; raft persists it while it applies further
// entries. A stuck replica takes no snapshot, because raft would store it as the state after
// entries that the replica has not applied.
func (m *Base) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.Stuck(); err != nil {
		return nil, err
	}
	return &machineSnapshot{kind: m.kind, route: m.route, index: m.applied.Load(), memory: m.memory.Capture(), contents: m.contents.Capture()}, nil
}

// ErrColdLost is returned if cold rows, bodies or sets that a replica's own snapshot names are not
// on its disk.
var ErrColdLost = errors.New("cold rows that the snapshot names are lost")

type machineSnapshot struct {
	kind     codec.Kind
	route    codec.Route
	index    uint64
	memory   *dedup.View
	contents Captured
}

// Persist streams the snapshot to sink. The stream names generations of cold rows. Persist pins
// these generations for as long as a snapshot with the sink's name exists. On an error the caller
// cancels the sink, as raft does.
func (s *machineSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := writeShard(sink, s.kind, s.route, s.index, s.contents, s.memory); err != nil {
		return err
	}
	if err := s.contents.Keep(sink.ID()); err != nil {
		return err
	}
	return sink.Close()
}

func (s *machineSnapshot) Release() { s.contents.Release() }

// Restore replaces the state by the state in a snapshot. On an error, the state stays unchanged. If
// the snapshot names cold rows that no longer exist, Restore returns no error: the replica keeps
// its contents and is stuck.
func (m *Base) Restore(snapshot io.ReadCloser) error {
	defer snapshot.Close()
	held := m.fresh()
	index, once, err := readShard(snapshot, m.kind, m.route, held)
	if err != nil {
		held.Dispose()
		err = fmt.Errorf("cannot restore %s: %w", m.kind, err)
		if errors.Is(err, ErrColdLost) {
			m.stopAt(index, err)
			return nil
		}
		return err
	}
	if err := held.Adopt(); err != nil {
		held.Dispose()
		return fmt.Errorf("cannot restore %s: %w", m.kind, err)
	}
	m.whole.Lock()
	defer m.whole.Unlock()
	m.contents = held
	m.show(held)
	m.marks = nil
	m.memory = once
	m.positions = once.PositionsDigest()
	m.publishSizes()
	m.stuck.Store(nil)
	m.advance(index)
	return nil
}
