package replica

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

var errBrokenDisk = errors.New("the disk is broken")

// noFatal fails the test when a group stops for good.
func noFatal(t *testing.T) *storage.FailStop {
	stop := storage.NewFailStop(func(err error) { t.Error(err) }, func(error) {})
	mustDo(t, stop.Arm())
	return stop
}

// countFatal counts the calls of notify.
func countFatal(t *testing.T) (*storage.FailStop, *int) {
	n := new(int)
	stop := storage.NewFailStop(func(error) { *n++ }, func(error) {})
	mustDo(t, stop.Arm())
	return stop, n
}

// eachStore runs a test over both log stores.
func eachStore(t *testing.T, test func(t *testing.T, store storage.LogStore)) {
	for _, store := range []storage.LogStore{storage.LogStoreBoltDB, storage.LogStoreShared} {
		t.Run(string(store), func(t *testing.T) { test(t, store) })
	}
}

// mustOpenStores opens the stores of a group in dir.
func mustOpenStores(t *testing.T, store storage.LogStore, dir string) storage.Stores {
	t.Helper()
	s, err := storage.OpenStores(storage.Config{Dir: dir, LogStore: store})
	mustDo(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func testEntry(index uint64, data string) *raft.Log {
	return &raft.Log{Index: index, Term: 3, Type: raft.LogCommand, Data: []byte(data), AppendedAt: time.Unix(int64(index), 0)}
}
