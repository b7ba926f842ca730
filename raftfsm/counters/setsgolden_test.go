package counters

import (
	"bytes"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// The encodings of ops on members, and of snapshots that name or contain sets, must not change.
func TestMemberBytesAreGolden(t *testing.T) {
	store, err := members.Open(members.Config{Dir: t.TempDir(), MemoryBytes: members.MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	sets, err := store.Group(3)
	if err != nil {
		t.Fatal(err)
	}
	c := New(raftfsm.Places{Members: sets})
	defer c.Close()

	entry := func(write func(w *raftfsm.RequestWriter)) []byte {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		w.SetSettings(raftfsm.SettingsOf([]string{"repost", "comment", "like"}, column.Settings[int64]{Floors: map[string]int64{"like": 0}}))
		write(&w)
		data := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 3), time.UnixMilli(1_790_000_000_000), testLimits)
		return codec.AppendChecksum(append(data, w.Section()...))
	}
	changes := entry(func(w *raftfsm.RequestWriter) {
		for _, op := range []engine.Op{
			engine.Join(7, 2, 1<<64-1), engine.Join(7, 2, 5), engine.Leave(7, 2, 5), engine.Leave(8, 2, 5),
			engine.Copy(9, 1, 6, uint64(members.StampOf(1_780_000_000_000))), engine.Join(9, 0, 4),
		} {
			Ops{op}.AppendTo(w, op.ID, 0)
		}
		AppendPurge(w, 2048)
	})
	rafttest.Golden(t, "entry-members.bin", changes)
	r := c.Apply(rafttest.Command(1, changes)).(*raftfsm.Result)
	if want := []int{0, 1, 2, 4, 5}; !slices.Equal(r.Changed, want) || len(r.Overflows) > 0 {
		t.Errorf("ops %v changed a set, want %v; refused %v", r.Changed, want, r.Overflows)
	}
	named := rafttest.Persisted(t, c)
	rafttest.Golden(t, "snapshot-members.bin", named)
	if last := c.Apply(rafttest.Command(2, entry(func(w *raftfsm.RequestWriter) { Ops{{ID: 7, Kind: engine.OpDelete}}.AppendTo(w, 7, 0) }))); last.(*raftfsm.Result).Rows[2] != 0 {
		t.Errorf("a deleted row is %v", last.(*raftfsm.Result).Rows)
	}
	carried, err := CarryBlocks(bytes.NewReader(named), nil, sets)
	if err != nil {
		t.Fatal(err)
	}
	defer carried.Close()
	sent, err := io.ReadAll(carried)
	if err != nil {
		t.Fatal(err)
	}
	rafttest.Golden(t, "carried-members.bin", sent)

	cleared := entry(func(w *raftfsm.RequestWriter) { AppendClearMembers(w) })
	rafttest.Golden(t, "entry-members-clear.bin", cleared)
	if c.Apply(rafttest.Command(3, cleared)); sets.State().Pairs != 0 {
		t.Errorf("%d pairs are left", sets.State().Pairs)
	}
}
