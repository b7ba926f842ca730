package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/storage"
)

// A replica whose log has another entry than the others reports it. It follows its
// leader as if nothing were wrong.
func TestReportsShowAnEntryThatDiffers(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	posts := all[0].Keyspace("posts")
	group := all[0].registry.groups.Load().byFirst[posts.FirstGroup].all[0]
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for range 3 {
		w := once(&Write{Deadline: soon(), Width: 4, Ops: counters.Ops{addTo(0, 2, 63)}})
		w.Rows = make([]int64, w.Width)
		mustDo(t, all[0].Write(posts, w))
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })

	odd := all[2]
	cfg := odd.cfg
	cfg.Metrics, cfg.ClusterAddr = prometheus.NewRegistry(), odd.mux.Addr().String()
	mustDo(t, odd.Close(ctx))
	forged := forgeLastEntry(t, odd, group.number)
	again, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustDo(t, again.Close(context.Background())) })
	mustDo(t, again.WaitReady(ctx))

	at := func(r NodeReport) replica.EntryMark {
		for _, replica := range r.Replicas {
			for _, e := range replica.Entries {
				if replica.ID == group.number && e.Index == forged {
					return e
				}
			}
		}
		return replica.EntryMark{}
	}
	eventually(t, "all nodes report the entry", func() bool {
		reports := all[0].MarkedReports(ctx)
		return len(reports) == 3 && !slices.ContainsFunc(all, func(n *Node) bool { return at(reports[n.cfg.NodeKey]) == replica.EntryMark{} })
	})
	reports := all[0].MarkedReports(ctx)
	one, two, three := at(reports["n1.0"]), at(reports["n2.0"]), at(reports["n3.0"])
	if one != two || one.Term != three.Term || one.CRC == three.CRC {
		t.Errorf("at index %d the nodes report %v, %v and %v", forged, one, two, three)
	}
	for _, replica := range reports["n2.0"].Replicas {
		if len(replica.Entries) == 0 {
			t.Errorf("group %d reports no entries", replica.ID)
		}
	}
}

// forgeLastEntry changes the amount of the last write in the log of a closed node's replica, with
// valid checksums. It returns the index of that entry.
func forgeLastEntry(t *testing.T, n *Node, number uint32) uint64 {
	t.Helper()
	replica, _ := n.registry.dirs.Number(number)
	cfg := n.groupConfig(number, replica, "posts", nil)
	var err error
	if cfg.NodeLog != nil {
		cfg.NodeLog, err = raftstore.Open(cfg.LogPath(), raftstore.Options{})
		mustDo(t, err)
		defer cfg.NodeLog.Close()
	}
	stores, err := storage.OpenStores(cfg.Stores())
	mustDo(t, err)
	log := storage.NewLog(stores, number, cfg.Dir, 1<<30, storage.NewFailStop(n.fatal, func(error) {}))
	index, err := log.LastIndex()
	mustDo(t, err)
	var entry raft.Log
	for mustDo(t, log.GetLog(index, &entry)); entry.Type != raft.LogCommand; index-- {
		mustDo(t, log.GetLog(index-1, &entry))
	}
	body := entry.Data[:len(entry.Data)-4] // a CRC32C follows it
	if was := binary.AppendVarint(nil, 63); !bytes.HasSuffix(body, was) {
		t.Fatalf("entry %d does not end with the delta: %x", entry.Index, entry.Data)
	}
	copy(body[len(body)-1:], binary.AppendVarint(nil, 62))
	binary.LittleEndian.PutUint32(entry.Data[len(body):], crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	mustDo(t, log.DeleteRange(entry.Index, entry.Index))
	mustDo(t, log.StoreLog(&entry))
	mustDo(t, stores.Close())
	return entry.Index
}
