package raftfsm

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Snapshot captures the state between two entries; raft persists it while
// entries go on being applied. A replica that is stuck takes none: raft believes it to
// be further.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.Stuck(); err != nil {
		return nil, err
	}
	return &machineSnapshot{kind: m.kind, index: m.applied.Load(), memory: m.memory.Capture(), contents: m.contents.capture()}, nil
}

type machineSnapshot struct {
	kind     codec.Kind
	index    uint64
	memory   *dedup.View
	contents captured
}

// Persist streams the snapshot to sink. It names the generations of cold rows, and
// has them kept for as long as there is a snapshot of the sink's name. The caller
// closes or cancels the sink on an error, as raft does.
func (s *machineSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := writeShard(sink, s.kind, s.index, s.contents, s.memory); err != nil {
		return err
	}
	if err := s.contents.keep(sink.ID()); err != nil {
		return err
	}
	return sink.Close()
}

func (s *machineSnapshot) Release() { s.contents.release() }

// Restore replaces the state by a snapshot's. On an error the state stays what
// it was. A snapshot that names cold rows which are not there any more is no error:
// the replica is stuck then, with what it had.
func (m *machine) Restore(snapshot io.ReadCloser) error {
	defer snapshot.Close()
	held := m.fresh()
	index, once, err := readShard(snapshot, m.kind, held)
	if err != nil {
		held.dispose()
		err = fmt.Errorf("cannot restore %s: %w", m.kind, err)
		if errors.Is(err, errColdLost) {
			m.stopAt(index, err)
			return nil
		}
		return err
	}
	m.whole.Lock()
	defer m.whole.Unlock()
	m.contents = held
	m.show(held)
	m.marks = marks{}
	m.memory = once
	m.publishSizes()
	m.stuck.Store(nil)
	m.advance(index)
	return nil
}
