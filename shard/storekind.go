package shard

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// LogStore names what all groups of a node keep their logs in. It is chosen
// when the node is made and stays.
type LogStore string

// The log stores. Both keep the same promises: what is acknowledged is synced,
// and what is damaged is refused when the node starts.
const (
	LogStoreBoltDB LogStore = "boltdb" // hashicorp/raft-boltdb: two syncs a write; the default
	LogStoreWAL    LogStore = "wal"    // hashicorp/raft-wal: one
)

var (
	// ErrUnknownLogStore is returned for a name that is none of the above.
	ErrUnknownLogStore = errors.New("the log store is neither boltdb nor wal")
	// ErrOtherLogStore is returned when a node was made with another log store
	// than it is opened with.
	ErrOtherLogStore = errors.New("the node was made with another log store")
)

// Check returns ErrUnknownLogStore for a name that is none of the constants.
func (s LogStore) Check() error {
	if s != LogStoreBoltDB && s != LogStoreWAL {
		return fmt.Errorf("%w: %q", ErrUnknownLogStore, string(s))
	}
	return nil
}

// path is where a group keeps its log in its directory: a file, or of wal a
// directory.
func (s LogStore) path(dir string) string {
	if s == LogStoreWAL {
		return filepath.Join(dir, "wal")
	}
	return filepath.Join(dir, "raft.db")
}

// votePath is the file of a group's directory that holds its term and vote. No
// log is without it.
func (s LogStore) votePath(dir string) string {
	if s == LogStoreWAL {
		return filepath.Join(s.path(dir), walMetaName)
	}
	return s.path(dir)
}

// groupStores is where a group keeps its log, term and vote.
type groupStores interface {
	raft.LogStore
	stableBytes
	close() error
}

// openStores opens or creates a group's stores in its directory. The logs of
// the other store are refused, not passed by: the group would begin anew.
func openStores(store LogStore, dir string, logger hclog.Logger) (groupStores, error) {
	other := LogStoreBoltDB
	if store == LogStoreBoltDB {
		other = LogStoreWAL
	}
	if _, err := os.Stat(other.path(dir)); !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%w: %s is there, and not that of %s", ErrOtherLogStore, other.path(dir), store), err)
	}
	if store == LogStoreWAL {
		return openWALStore(store.path(dir), walSegmentBytes, logger)
	}
	return openBoltFile(store.path(dir))
}

// logStoreFile holds the name of the log store, in the directory of a node's
// groups:
//
//	countd log store 1: wal
const (
	logStoreFile = "log-store"
	logStoreHead = "countd log store 1: "
	// logStoreBytesMax bounds what is read; a real file has under 30 bytes.
	logStoreBytesMax = 64
)

// chooseLogStore returns the log store of the node whose groups are in dir, and
// records it when there is no record: that of the groups, else what is asked
// for, else boltdb. Nodes of versions that had boltdb alone have none.
func chooseLogStore(dir string, asked LogStore) (LogStore, error) {
	if asked != "" {
		if err := asked.Check(); err != nil {
			return "", err
		}
	}
	recorded, err := readLogStore(filepath.Join(dir, logStoreFile))
	if err != nil {
		return "", err
	}
	if recorded == "" {
		return recordLogStore(dir, asked)
	}
	return agreedLogStore(dir, recorded, asked)
}

func agreedLogStore(dir string, recorded, asked LogStore) (LogStore, error) {
	if asked != "" && asked != recorded {
		return "", fmt.Errorf("%w: %s holds logs of %s, and %s was asked for", ErrOtherLogStore, dir, recorded, asked)
	}
	return recorded, nil
}

func recordLogStore(dir string, asked LogStore) (LogStore, error) {
	store := cmp.Or(asked, LogStoreBoltDB)
	for _, s := range []LogStore{LogStoreBoltDB, LogStoreWAL} {
		logs, err := filepath.Glob(s.path(filepath.Join(dir, "[0-9]*")))
		if err == nil && len(logs) > 0 {
			store, err = agreedLogStore(dir, s, asked)
		}
		if err != nil {
			return "", err
		}
	}
	return store, writeLogStore(filepath.Join(dir, logStoreFile), store)
}

// readLogStore returns what writeLogStore wrote, "" for no file.
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
		return "", fmt.Errorf("%w: %d bytes", errDamaged, len(raw))
	}
	name, ok := strings.CutPrefix(string(raw), logStoreHead)
	name, ended := strings.CutSuffix(name, "\n")
	store := LogStore(name)
	if !ok || !ended || store.Check() != nil {
		return "", fmt.Errorf("%w: %q", errDamaged, raw)
	}
	return store, nil
}

// writeLogStore makes the file whole and durable or not at all.
func writeLogStore(path string, store LogStore) error {
	tmp, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot record log store: %w", err)
	}
	_, err = tmp.WriteString(logStoreHead + string(store) + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("cannot record log store: %w", err)
	}
	return nil
}
