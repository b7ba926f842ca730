package shard

import (
	"errors"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
)

// Keys are compared by meaning once all nodes do so. A repeat of what came before that
// has the same bytes, and is a duplicate.
func TestMeaningComesWithTheClusterVersion(t *testing.T) {
	t.Parallel()
	cfg := memberConfig(t, t.TempDir(), 1, 2) // waits for a second node
	cfg.Place = nil
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustStop(t, n) })
	other := catalog.Node{Key: "n2.0", Name: "n2", ClusterAddr: "127.0.0.1:1", VersionMax: 4}
	put := func() {
		t.Helper()
		mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: other}}))
	}
	put()
	eventually(t, "there are keyspaces", func() bool { return n.Keyspace("posts") != nil })
	mustDo(t, n.WaitReady(t.Context()))
	write := func(key, bytes string) (duplicate bool, err error) {
		id := ByKey([]byte(key), []byte(bytes))
		id.SetMeaning([]byte("meaning"))
		w := &Write{Ops: []engine.Op{addTo(7, 0, 1)}, ID: id, Deadline: soon()}
		err = n.Write(n.Keyspace("posts"), w)
		return w.Duplicate, err
	}
	want := func(key, bytes string, duplicate bool, wantErr error) {
		t.Helper()
		if got, err := write(key, bytes); got != duplicate || !errors.Is(err, wantErr) {
			t.Errorf("%s %q: duplicate %v, %v", key, bytes, got, err)
		}
	}
	want("k", "{}", false, nil)
	want("k", "{}", true, nil)
	want("k", "{ }", false, ErrConflict)
	other.VersionMax = catalog.ClusterVersionMax
	put()
	mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: catalog.ClusterVersionMax}}))
	want("k", "{}", true, nil)
	want("k", "{ }", false, ErrConflict)
	want("l", "{}", false, nil)
	want("l", "{ }", true, nil)
}
