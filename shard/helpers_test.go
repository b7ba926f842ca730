package shard

import (
	"errors"
	"testing"
	"time"

	"github.com/countd/countd/shard/storage"
)

// eventuallyMax is for how long a test waits for what must come: on a busy machine of
// few cores that takes many times as long as on an idle one.
const eventuallyMax = time.Minute

// eventually polls until what holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(eventuallyMax)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var errNoDisk = errors.New("the disk is broken")

// failedFuture is of a proposal that failed.
type failedFuture struct{ err error }

func (f failedFuture) Error() error { return f.err }
func (failedFuture) Index() uint64  { return 0 }
func (failedFuture) Response() any  { return nil }

// bothStores runs a test over both log stores.
func bothStores(t *testing.T, test func(t *testing.T, store storage.LogStore)) {
	for _, store := range []storage.LogStore{storage.LogStoreBoltDB, storage.LogStoreShared} {
		t.Run(string(store), func(t *testing.T) { test(t, store) })
	}
}
