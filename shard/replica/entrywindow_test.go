package replica

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

func TestEntryWindowKeepsTheNewestEntries(t *testing.T) {
	var w entryWindow
	fsm := watchedFSM{BatchingFSM: &sumFSM{}, group: 7, stop: noFatal(t), entries: &w, members: new(committedMembers), applies: new(storage.StallGauge)}
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

// An entry of a shard ends with its own CRC32C. So any two entries of one length would have the
// same CRC32C over their whole length.
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

// If two replicas apply entries with different payloads at one index, their windows differ at that
// index.
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
	commands := func(w []EntryMark) []EntryMark { return w[1:] } // the first entry is the configuration
	a, b := commands(windowOf("n1", 1, 2, 3)), commands(windowOf("n2", 1, 2, 4))
	if len(a) != 3 || !slices.Equal(a[:2], b[:2]) {
		t.Errorf("of the same entries the windows have %v and %v", a, b)
	}
	if a[2].Index != b[2].Index || a[2].Term != b[2].Term || a[2].CRC == b[2].CRC {
		t.Errorf("of different entries the windows have %v and %v", a[2], b[2])
	}
}

// Each of the first voters of a group writes the first configuration itself, here with the old
// address of a voter that has moved. Replicas do not differ by addresses, only by members.
func TestFirstConfigurationsOfOneGroupAreAlike(t *testing.T) {
	first := func(index uint64, servers ...raft.Server) EntryMark {
		return markOf(&raft.Log{Index: index, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{Servers: servers})})
	}
	a, moved := raft.Server{ID: "n1", Address: "a1"}, raft.Server{ID: "n1", Address: "a9"}
	b := raft.Server{ID: "n2", Address: "a2"}
	if first(1, a, b) != first(1, moved, b) {
		t.Error("an address makes the first configurations differ")
	}
	if first(1, a, b) == first(1, a) || first(1, a, b) == first(1, a, raft.Server{ID: "n2", Address: "a2", Suffrage: raft.Nonvoter}) {
		t.Error("other members are not seen")
	}
	if first(2, a, b) == first(2, moved, b) {
		t.Error("another address in an entry of one leader is not seen")
	}
}
