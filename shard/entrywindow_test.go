package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"

	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/storage"
)

func TestEntryWindowKeepsTheNewestEntries(t *testing.T) {
	var w entryWindow
	fsm := watchFSM(&sumFSM{}, &w, new(committedMembers)).(raft.BatchingFSM)
	if got := w.rising(); len(got) != 0 {
		t.Fatalf("an empty window has %v", got)
	}
	index := uint64(0)
	for _, batch := range []int{1, 5, entriesKept - 6, 1, 0, 63, 64, 2*entriesKept + 3, 7} {
		var entries []*raft.Log
		for range batch {
			index++
			entries = append(entries, &raft.Log{Index: index, Term: index / 10, Data: number(index)})
		}
		fsm.ApplyBatch(entries)
		got := w.rising()
		if len(got) != int(min(index, entriesKept)) {
			t.Fatalf("after entry %d the window has %d entries", index, len(got))
		}
		for i, m := range got {
			at := index - uint64(len(got)-1-i)
			want := markOf(&raft.Log{Index: at, Term: at / 10, Data: number(at)})
			if m != want {
				t.Fatalf("after entry %d the window has %v, want %v", index, m, want)
			}
		}
	}
	if err := fsm.Restore(io.NopCloser(bytes.NewReader(make([]byte, 16)))); err != nil {
		t.Fatal(err)
	}
	if got := w.rising(); len(got) != 0 {
		t.Errorf("after a restore the window has %v", got)
	}
	fsm.ApplyBatch([]*raft.Log{{Index: 1000, Term: 7, Data: number(1)}})
	if got := w.rising(); len(got) != 1 || got[0].Index != 1000 {
		t.Errorf("after a restore and an entry the window has %v", got)
	}
}

// An entry of a shard ends with its own CRC32C. Any two of one length would have the same
// CRC32C as a whole.
func TestEntryMarksDifferThoughPayloadsEndWithTheirChecksum(t *testing.T) {
	sealed := func(payload string) *raft.Log {
		data := []byte(payload)
		return &raft.Log{Index: 5, Term: 2, Data: binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))}
	}
	if a, b := markOf(sealed("add 1")), markOf(sealed("add 2")); a.CRC == b.CRC {
		t.Errorf("both have CRC %08x", a.CRC)
	}
	a := &raft.Log{Index: 5, Term: 2, Data: []byte("ab"), Extensions: []byte("c")}
	b := &raft.Log{Index: 5, Term: 2, Data: []byte("a"), Extensions: []byte("bc")}
	if markOf(a).CRC == markOf(b).CRC {
		t.Error("an entry whose data end elsewhere has the same CRC")
	}
}

// Two nodes that each lead a group of the same number apply entries of different
// terms or payloads at one index, and their windows show which.
func TestEntryWindowsOfTwoLeadersDiffer(t *testing.T) {
	windowOf := func(id string, adds ...uint64) []EntryMark {
		cfg := testConfig(t, testMux(t), id)
		cfg.Initial, cfg.Timing = aloneIn(cfg), timingOfAnHour
		g := mustOpen(t, cfg)
		mustBeReady(t, g)
		for _, n := range adds {
			mustAdd(t, g, n)
		}
		return g.entries.rising()
	}
	commands := func(w []EntryMark) []EntryMark { return w[1:] } // the first has the members
	a, b := commands(windowOf("n1", 1, 2, 3)), commands(windowOf("n2", 1, 2, 4))
	if len(a) != 3 || !slices.Equal(a[:2], b[:2]) {
		t.Errorf("of the same entries the windows have %v and %v", a, b)
	}
	if a[2].Index != b[2].Index || a[2].Term != b[2].Term || a[2].CRC == b[2].CRC {
		t.Errorf("of different entries the windows have %v and %v", a[2], b[2])
	}
}

// A replica whose log has another entry than the others reports it. It follows its
// leader as if nothing were wrong.
func TestReportsShowAnEntryThatDiffers(t *testing.T) {
	all := openMembers(t, 3)
	posts := all[0].Keyspace("posts")
	group := all[0].groups.Load().byFirst[posts.firstGroup][0]
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for range 3 {
		w := once(&Write{Deadline: soon(), Width: 4, Ops: []engine.Op{addTo(0, 2, 63)}})
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

	at := func(r NodeReport) EntryMark {
		for _, replica := range r.Replicas {
			for _, e := range replica.Entries {
				if replica.ID == group.number && e.Index == forged {
					return e
				}
			}
		}
		return EntryMark{}
	}
	eventually(t, "all nodes report the entry", func() bool {
		reports := all[0].Reports(ctx)
		return len(reports) == 3 && !slices.ContainsFunc(all, func(n *Node) bool { return at(reports[n.cfg.NodeKey]) == EntryMark{} })
	})
	reports := all[0].Reports(ctx)
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

// forgeLastEntry has the last write in the log of a closed node's replica add another
// amount, checksum and all, and returns its index.
func forgeLastEntry(t *testing.T, n *Node, number uint32) uint64 {
	t.Helper()
	replica, _ := n.dirs.number(number)
	cfg := n.groupConfig(number, replica, "posts", nil)
	var err error
	if cfg.NodeLog != nil {
		cfg.NodeLog, err = raftstore.Open(cfg.logPath(), raftstore.Options{})
		mustDo(t, err)
		defer cfg.NodeLog.Close()
	}
	stores, err := storage.OpenStores(cfg.stores())
	mustDo(t, err)
	log := storage.NewLog(stores, number, cfg.Dir, 1<<30, storage.NewFailStop(n.fatal))
	index, err := log.LastIndex()
	mustDo(t, err)
	var entry raft.Log
	for mustDo(t, log.GetLog(index, &entry)); entry.Type != raft.LogCommand; index-- {
		mustDo(t, log.GetLog(index-1, &entry))
	}
	body := entry.Data[:len(entry.Data)-4] // a CRC32C stands behind it
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
