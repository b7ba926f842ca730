package shard

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/storage"
)

// memoryRecord is an Opened that outlives a node, but not the test.
type memoryRecord struct {
	mu     sync.Mutex
	groups map[uint32]bool
	err    error
}

func newMemoryRecord() *memoryRecord { return &memoryRecord{groups: map[uint32]bool{}} }

func (m *memoryRecord) WasOpened(group uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups[group]
}

func (m *memoryRecord) GroupOpened(group uint32) error  { return m.set(group, true) }
func (m *memoryRecord) GroupRemoved(group uint32) error { return m.set(group, false) }

func (m *memoryRecord) set(group uint32, in bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.groups[group] = in
	}
	return m.err
}

func openRecordedNode(t *testing.T, dir string, store storage.LogStore, record replica.Opened) (*Node, error) {
	t.Helper()
	n, err := Open(Config{
		Dir: dir, NodeKey: "n1.0", NodeName: "n1", Bootstrap: true, ClusterID: testClusterID, Version: "1.2.3", ClusterAddr: "127.0.0.1:0",
		Shards: fewShards(map[string]int{"posts": 1, "users": 1}), LogStore: store, Opened: record,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	if err == nil {
		t.Cleanup(func() { mustStop(t, n) })
		err = n.WaitReady(t.Context())
	}
	return n, err
}

// A group whose files are lost is not started again: it would serve zeros.
func TestLostLogIsRefused(t *testing.T) {
	t.Parallel()
	zero := func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, make([]byte, info.Size()), 0o600)
	}
	empty := func(path string) error { return os.Truncate(path, 0) }
	for _, test := range []struct {
		name     string
		group    string
		recorded bool
		harm     func(dir, log string) error
		refused  bool
	}{
		{"log emptied", "00001.1", true, func(_, log string) error { return empty(log) }, true},
		{"log removed", "00001.1", true, func(_, log string) error { return os.Remove(log) }, true},
		{"log of zeros", "00001.1", true, func(_, log string) error { return zero(log) }, true},
		{"directory removed", "00001.1", true, func(dir, _ string) error { return os.RemoveAll(dir) }, true},
		{"catalog emptied", "00000", true, func(_, log string) error { return empty(log) }, true},
		{"catalog removed", "00000", true, func(dir, _ string) error { return os.RemoveAll(dir) }, true},
		{"catalog emptied, no record", "00000", false, func(_, log string) error { return empty(log) }, true},
		{"catalog removed, no record", "00000", false, func(dir, _ string) error { return os.RemoveAll(dir) }, true},
		{"nothing", "00001.1", true, func(string, string) error { return nil }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			const store = storage.LogStoreBoltDB
			dir, record := t.TempDir(), replica.Opened(nil)
			if test.recorded {
				record = newMemoryRecord()
			}
			n, err := openRecordedNode(t, dir, store, record)
			mustDo(t, err)
			mustWrite(t, n, n.Keyspace("posts"), addTo(7, 0, 41))
			mustStop(t, n)
			group := filepath.Join(dir, test.group)
			mustDo(t, test.harm(group, store.Path(group)))
			n, err = openRecordedNode(t, dir, store, record)
			if !test.refused {
				mustDo(t, err)
				if got := mustGet(t, n, n.Keyspace("posts"), ReadOptions{}, 7); got[0] != 41 {
					t.Errorf("count %d", got[0])
				}
				return
			}
			if !errors.Is(err, storage.ErrDamaged) || !strings.Contains(err.Error(), group) {
				t.Fatalf("opened with %v", err)
			}
			knows := test.group != "00000" // unless the catalog is lost, the node learns from it that there is no other node
			text := err.Error()
			if knows && (strings.Contains(text, "wipe") || !strings.Contains(text, "the only node of its cluster")) ||
				!knows && !strings.Contains(text, "only in a larger cluster, wipe it") {
				t.Errorf("advice: %v", err)
			}
		})
	}
}

// A node whose log is lost, in part or completely, does not start again. If only the directory of a
// replica is lost, the node starts, because the log still has all entries.
func TestLostNodeLogIsRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		recorded bool
		harm     func(dir, log string) error
		named    string // what the refusal names, "" for none
	}{
		{"log removed", true, func(_, log string) error { return os.RemoveAll(log) }, "00000"},
		{"log removed, no record", false, func(_, log string) error { return os.RemoveAll(log) }, "00000"},
		{"segment removed", true, func(_, log string) error { return os.Remove(filepath.Join(log, "0000000001.log")) }, "0000000001.log"},
		{"segment emptied", true, func(_, log string) error { return os.Truncate(filepath.Join(log, "0000000001.log"), 0) }, "0000000001.log"},
		{"segment of zeros", true, func(_, log string) error {
			return os.WriteFile(filepath.Join(log, "0000000001.log"), make([]byte, 1<<20), 0o600)
		}, "0000000001.log"},
		{"all groups removed", true, func(dir, _ string) error {
			all, err := filepath.Glob(filepath.Join(dir, "*"))
			for _, path := range all {
				err = errors.Join(err, os.RemoveAll(path))
			}
			return err
		}, "00000"},
		{"directory of a replica removed", true, func(dir, _ string) error { return os.RemoveAll(filepath.Join(dir, "00001.1")) }, ""},
		{"the next segment removed", true, func(_, log string) error { return os.Remove(filepath.Join(log, "0000000002.log")) }, ""},
		{"nothing", true, func(string, string) error { return nil }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, record := t.TempDir(), replica.Opened(nil)
			if test.recorded {
				record = newMemoryRecord()
			}
			n, err := openRecordedNode(t, dir, storage.LogStoreShared, record)
			mustDo(t, err)
			mustWrite(t, n, n.Keyspace("posts"), addTo(7, 0, 41))
			mustStop(t, n)
			mustDo(t, test.harm(dir, filepath.Join(dir, storage.NodeLogDir)))
			n, err = openRecordedNode(t, dir, storage.LogStoreShared, record)
			if test.named != "" {
				if !errors.Is(err, storage.ErrDamaged) || !strings.Contains(err.Error(), test.named) {
					t.Errorf("opened with %v", err)
				}
				return
			}
			mustDo(t, err)
			if got := mustGet(t, n, n.Keyspace("posts"), ReadOptions{}, 7); got[0] != 41 {
				t.Errorf("count %d", got[0])
			}
		})
	}
}

// If a crash interrupted the creation of its log, a replica has acknowledged nothing, so it starts
// empty.
func TestUnrecordedLogBeginsAnew(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]func(log string) error{
		"an empty file": func(log string) error { return os.WriteFile(log, nil, 0o600) },
		"zeros":         func(log string) error { return os.WriteFile(log, make([]byte, 16<<10), 0o600) },
		"a directory":   func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bothStores(t, func(t *testing.T, store storage.LogStore) {
				dir, record := t.TempDir(), newMemoryRecord()
				n, err := openRecordedNode(t, dir, store, record)
				mustDo(t, err)
				mustStop(t, n)
				group := filepath.Join(dir, "00001.1")
				mustDo(t, os.RemoveAll(group))
				mustDo(t, record.GroupRemoved(1))
				mustDo(t, os.MkdirAll(group, 0o750))
				if store == storage.LogStoreShared {
					dropFromLog(t, dir, raftstore.ReplicaID{Group: 1, Number: 1})
				} else {
					mustDo(t, left(store.Path(group)))
				}
				n, err = openRecordedNode(t, dir, store, record)
				mustDo(t, err)
				mustWrite(t, n, n.Keyspace("posts"), addTo(7, 0, 41))
				if !record.WasOpened(0) || !record.WasOpened(1) || !record.WasOpened(5) || record.WasOpened(6) {
					t.Errorf("recorded %v", record.groups)
				}
			})
		})
	}
}

// dropFromLog deletes a replica's entries from the log of a closed node.
func dropFromLog(t *testing.T, dir string, id raftstore.ReplicaID) {
	t.Helper()
	l, err := raftstore.Open(filepath.Join(dir, storage.NodeLogDir), raftstore.Options{})
	mustDo(t, err)
	if !l.Has(id) {
		t.Errorf("%s is not in the log: %v", id, l.Replicas())
	}
	mustDo(t, l.Drop(id))
	mustDo(t, l.Close())
}

// A node that cannot record a group does not open it.
func TestRecordThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	record := newMemoryRecord()
	record.err = errNoDisk
	if _, err := openRecordedNode(t, t.TempDir(), storage.LogStoreBoltDB, record); !errors.Is(err, errNoDisk) {
		t.Errorf("opened with %v", err)
	}
}

// A replica that comes back to a node is a new replica: it has another Raft id, begins without the
// group's first members, and waits until the leader adds it.
func TestReplicaThatComesBackIsAnother(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	number := all[0].Keyspace("posts").FirstGroup
	was := all[0].router.holders(number)
	var back *Node
	var away string
	for _, n := range all {
		if n.cfg.NodeKey == was[0] {
			back = n
		}
		if !slices.Contains(was, n.cfg.NodeKey) {
			away = n.cfg.NodeKey
		}
	}
	first := back.registry.Replica(number).ID()
	place := func(from, to []string) {
		t.Helper()
		mustDo(t, all[0].catalogClient.MustChange(t.Context(), &catalog.Command{Place: &catalog.PlaceEntry{Group: number, Was: from, Target: to}}))
		eventually(t, "those vote that are to", func() bool { return votesAre(all, number, to) })
	}
	elsewhere := []string{away, was[1], was[2]}
	place(was, elsewhere)
	eventually(t, "its replica is deleted", func() bool { return back.registry.Replica(number) == nil })
	eventually(t, "its log too", func() bool {
		return !slices.ContainsFunc(back.log.Replicas(), func(id raftstore.ReplicaID) bool { return id.Group == number })
	})
	place(elsewhere, was)
	g := back.registry.Replica(number)
	if g.ID() == first || replica.NodeOf(g.ID()) != replica.NodeOf(first) || g.Began() {
		t.Errorf("it is %s and was %s, or begins with the group", g.ID(), first)
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
}
