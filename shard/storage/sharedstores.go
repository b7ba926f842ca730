package storage

import (
	"errors"
	"path/filepath"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/countd/countd/shard/raftstore"
)

// OpenNodeLog opens the shared log of a node's groups, below dir.
func OpenNodeLog(dir string) (*raftstore.Log, error) {
	return raftstore.Open(filepath.Join(dir, NodeLogDir), raftstore.Options{})
}

// sharedStores is a replica's part of a raftstore.Log.
type sharedStores struct {
	*raftstore.Replica
	own *raftstore.Log // log of this replica alone, which Close closes; nil if the replica uses the node's log
}

// openSharedStores opens a replica's part of the node's log or, without a node log, a log of its
// own.
func openSharedStores(cfg *Config) (*sharedStores, error) {
	if cfg.NodeLog != nil {
		r, err := cfg.NodeLog.Replica(cfg.ID)
		return &sharedStores{Replica: r}, err
	}
	own, err := raftstore.Open(cfg.LogStore.Path(cfg.Dir), raftstore.Options{})
	if err != nil {
		return nil, err
	}
	r, err := own.Replica(raftstore.ReplicaID{})
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	return &sharedStores{Replica: r, own: own}, nil
}

// Get implements stableBytes.
func (s *sharedStores) Get(key []byte) ([]byte, error) {
	value, err := s.Replica.Get(key)
	if errors.Is(err, raftstore.ErrNoValue) {
		return nil, raftboltdb.ErrKeyNotFound
	}
	return value, err
}

func (s *sharedStores) Close() error {
	s.Replica.Close()
	if s.own == nil {
		return nil
	}
	return s.own.Close()
}
