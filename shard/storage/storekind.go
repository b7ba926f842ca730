package storage

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/shard/raftstore"
)

// LogStore names the kind of log store of all groups of a node. The node's first start chooses it
// for ever.
type LogStore string

// The log stores. Both sync data before they acknowledge it, and both refuse damaged data when the
// node starts.
const (
	LogStoreShared LogStore = "shared" // shard/raftstore, the default: one log for all groups, one sync for all waiting writes
	LogStoreBoltDB LogStore = "boltdb" // hashicorp/raft-boltdb: a file for each group, two syncs for each write

	LogStoreDefault = LogStoreShared
)

var (
	// ErrUnknownLogStore is returned for a name other than LogStoreShared and LogStoreBoltDB.
	ErrUnknownLogStore = errors.New("the log store is neither shared nor boltdb")
	// ErrOtherLogStore is returned if the node has logs of the other log store.
	ErrOtherLogStore = errors.New("the node was made with another log store")
)

// Check returns ErrUnknownLogStore unless s is one of the constants.
func (s LogStore) Check() error {
	if s == LogStoreShared || s == LogStoreBoltDB {
		return nil
	}
	return fmt.Errorf("%w: %q", ErrUnknownLogStore, string(s))
}

// NodeLogDir is the directory of a node's shared log, beside the directories of its groups.
const NodeLogDir = "log"

// Path returns the path of a log for one group alone, in the group's directory dir: a file for
// LogStoreBoltDB, a directory for LogStoreShared.
func (s LogStore) Path(dir string) string {
	if s == LogStoreShared {
		return filepath.Join(dir, NodeLogDir)
	}
	return filepath.Join(dir, "raft.db")
}

// Stores is the storage of a group's log, term and vote.
type Stores interface {
	raft.LogStore
	stableBytes
	Close() error
}

// Config configures OpenStores.
type Config struct {
	Dir      string              // directory of the replica
	LogStore LogStore            // from ChooseLogStore
	NodeLog  *raftstore.Log      // the node's shared log for LogStoreShared, which must outlive the stores; nil if the replica has a log of its own
	ID       raftstore.ReplicaID // id of the replica in NodeLog
}

// LogPath returns the path of the replica's log.
func (c *Config) LogPath() string {
	if c.NodeLog != nil {
		return filepath.Join(filepath.Dir(c.Dir), NodeLogDir)
	}
	return c.LogStore.Path(c.Dir)
}

// OpenStores opens or creates a replica's stores. It refuses a replica with a log of the other
// kind, because the group would begin with an empty log.
func OpenStores(cfg Config) (Stores, error) {
	other := LogStoreBoltDB
	if cfg.LogStore == LogStoreBoltDB {
		other = LogStoreShared
	}
	if _, err := os.Stat(other.Path(cfg.Dir)); !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%w: %s is there, and not that of %s", ErrOtherLogStore, other.Path(cfg.Dir), cfg.LogStore), err)
	}
	if cfg.LogStore == LogStoreShared {
		return openSharedStores(&cfg)
	}
	return openBoltFile(cfg.LogStore.Path(cfg.Dir))
}

// logStoreFile records the name of the log store, in the directory of a node's groups:
//
//	countd log store 1: shared
const (
	logStoreFile = "log-store"
	logStoreHead = "countd log store 1: "
	// logStoreBytesMax bounds a read of the file; a valid file has under 30 bytes.
	logStoreBytesMax = 64
)

// ChooseLogStore returns the log store of the node whose groups are in dir. If logStoreFile is
// missing, it records wanted, or LogStoreDefault if wanted is empty. It refuses a wanted log store
// other than the recorded one, and a directory that has logs but no logStoreFile.
func ChooseLogStore(dir string, wanted LogStore) (LogStore, error) {
	if wanted != "" {
		if err := wanted.Check(); err != nil {
			return "", err
		}
	}
	recorded, err := readLogStore(filepath.Join(dir, logStoreFile))
	if err != nil {
		return "", err
	}
	if recorded == "" {
		return recordLogStore(dir, cmp.Or(wanted, LogStoreDefault))
	}
	if wanted != "" && wanted != recorded {
		return "", fmt.Errorf("%w: %s holds logs of %s, and %s was asked for", ErrOtherLogStore, dir, recorded, wanted)
	}
	return recorded, nil
}

func recordLogStore(dir string, store LogStore) (LogStore, error) {
	for _, files := range []string{LogStoreBoltDB.Path("[0-9]*"), NodeLogDir} {
		logs, err := filepath.Glob(filepath.Join(dir, files))
		if err == nil && len(logs) > 0 {
			err = fmt.Errorf("%w: %s is there without the file %s, which names its log store", ErrDamaged, logs[0], logStoreFile)
		}
		if err != nil {
			return "", err
		}
	}
	return store, writeLogStore(filepath.Join(dir, logStoreFile), store)
}

// readLogStore returns the recorded log store, or "" if there is no file.
func readLogStore(path string) (LogStore, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read log store: %w", err)
	}
	store, err := parseLogStore(raw)
	if err != nil {
		return "", fmt.Errorf("cannot read log store %s: %w", path, err)
	}
	return store, nil
}

func parseLogStore(raw []byte) (LogStore, error) {
	if len(raw) > logStoreBytesMax {
		return "", fmt.Errorf("%w: %d bytes", ErrDamaged, len(raw))
	}
	name, ok := strings.CutPrefix(string(raw), logStoreHead)
	name, ended := strings.CutSuffix(name, "\n")
	store := LogStore(name)
	if !ok || !ended || errors.Is(store.Check(), ErrUnknownLogStore) {
		return "", fmt.Errorf("%w: %q", ErrDamaged, raw)
	}
	return store, nil
}

// writeLogStore durably records the log store at path.
func writeLogStore(path string, store LogStore) error {
	if err := program.ReplaceFile(path, []byte(logStoreHead+string(store)+"\n")); err != nil {
		return fmt.Errorf("cannot record log store: %w", err)
	}
	return nil
}
