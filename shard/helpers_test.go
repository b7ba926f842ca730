package shard

import (
	"errors"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/storage"
)

const eventuallyMax = must.BecomeMax

type callNodes = rafttest.Nodes

var (
	mustDo, eventually            = must.Do, must.Become
	testContext, mustLeaveNothing = must.Context, must.LeaveNothing
)

var errNoDisk = errors.New("the disk is broken")

// failedFuture is the future of a failed proposal.
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

// rowOps returns the ops of a write on rows, or none.
func rowOps(w *Write) counters.Ops {
	ops, _ := w.Ops.(counters.Ops)
	return ops
}

// groupsOf returns the keyspace's shards.
func (t *router) groupsOf(ks *Keyspace) ([]*shardReplica, error) {
	shards, err := t.shardsOf(ks)
	if err != nil {
		return nil, err
	}
	return shards.all, nil
}
