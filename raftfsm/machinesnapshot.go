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
// entries that the replica has not applied. If the shard grows, Snapshot may return ErrNotNow.
func (m *Base) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.Stuck(); err != nil {
		return nil, err
	}
	if err := m.notNow(); err != nil {
		return nil, err
	}
	head := codec.Head{Index: m.applied.Load(), Route: m.Route(), Abandoned: m.Abandoned()}
	return &machineSnapshot{kind: m.kind, head: head, memory: m.memory.Capture(), contents: m.contents.Capture()}, nil
}

// ErrColdLost is returned if cold rows, bodies or sets that a replica's own snapshot names are not
// on its disk.
var ErrColdLost = errors.New("cold rows that the snapshot names are lost")

type machineSnapshot struct {
	kind     codec.Kind
	head     codec.Head
	memory   *dedup.View
	contents Captured
}

// Persist streams the snapshot to sink. The stream names generations of cold rows. Persist pins
// these generations for as long as a snapshot with the sink's name exists. On an error the caller
// cancels the sink, as raft does.
func (s *machineSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := writeShard(sink, s.kind, s.head, s.contents, s.memory); err != nil {
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
	head, once, err := readShard(snapshot, m.kind, m.first, held)
	if err != nil {
		held.Dispose()
		err = fmt.Errorf("cannot restore %s: %w", m.kind, err)
		if errors.Is(err, ErrColdLost) {
			m.unborn.Store(false) // it has a snapshot; stuck, it still serves nothing
			m.stopAt(head.Index, err)
			return nil
		}
		return err
	}
	before := m.route.Load()
	m.withdraw(head.Route)
	if err := held.Adopt(); err != nil {
		m.route.Store(before)
		held.Dispose()
		return fmt.Errorf("cannot restore %s: %w", m.kind, err)
	}
	m.whole.Lock()
	defer m.whole.Unlock()
	m.publish(held, head.Route)
	m.abandoned.Store(head.Abandoned)
	m.marks = nil
	m.remember(once)
	m.stuck.Store(nil)
	m.growing.restored()
	m.advance(head.Index)
	return nil
}
