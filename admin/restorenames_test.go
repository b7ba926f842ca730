package admin

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/shard"
)

// A restore keeps when numbers were given, also if it takes several writes for that: RestoreShard compares
// the digest, which covers that.
func TestRestoreKeepsTheAgeOfNames(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 1)
	ks, err := n.CreateKeyspace(t.Context(), shard.Keyspace{Name: "articles", Columns: []string{"view"}, Shards: 1, IDs: shard.IDsText})
	must.Do(t, err)
	const hours, perHour = restoreOpsMax + restoreOpsMax/2, 3
	at := func(hour int) int64 { return time.UnixMilli(0).Add(time.Duration(hour) * time.Hour).UnixMilli() }
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	var ops names.Ops
	for hour := 1; hour <= hours; hour++ {
		ops = append(ops, names.Op{Kind: names.Put, Number: uint64(hour * perHour), At: at(hour)})
	}
	for i := range 100 {
		ops = append(ops, names.Op{Kind: names.Put, Text: fmt.Sprintf("text %d", i), Number: uint64(i)*400 + 1})
	}
	for i := range ops {
		ops.AppendTo(&w, 0, i)
	}
	m := kinds.All.New(codec.KindNames, raftfsm.Places{})
	m.Apply(rafttest.Command(1, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindNames, 0), w.Section()...))))
	space := n.Keyspace(ks.Names)
	facts, err := a.RestoreShard(must.Context(t), space.FirstGroup, bytes.NewReader(rafttest.Persisted(t, m)), RestoreOptions{})
	if err != nil || facts.Rows != 100 {
		t.Fatalf("restored %+v, %v", facts, err)
	}
	for _, hour := range []int{1, 2, hours / 2, hours - 1, hours} {
		q := names.AgeQuery{Until: at(hour)}
		must.Do(t, n.Read(space, &q, nil, &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: time.Now().Add(must.BecomeMax)}))
		if want := uint64(hour*perHour + 1); q.Young != want {
			t.Errorf("in hour %d, number %d is young, want %d", hour, q.Young, want)
		}
	}
}

// A names shard without texts may have given numbers, after Erase or after countctl recover. A restore keeps these, and
// takes the texts. It fails if texts that it has written are gone at its end.
func TestRestoreIntoNamesWithoutTexts(t *testing.T) {
	t.Parallel()
	a, n := openCluster(t, 1)
	ks, err := n.CreateKeyspace(t.Context(), shard.Keyspace{Name: "articles", Columns: []string{"view"}, Shards: 1, IDs: shard.IDsText})
	must.Do(t, err)
	space := n.Keyspace(ks.Names)
	write := func(ops ...names.Op) (rows []int64) {
		rows = make([]int64, len(ops))
		must.Do(t, n.Write(space, &shard.Write{Ops: names.Ops(ops), Width: 1, Rows: rows, Deadline: time.Now().Add(must.BecomeMax)}))
		return rows
	}
	write(names.Op{Kind: names.Skip, Number: 1000})
	m := kinds.All.New(codec.KindNames, raftfsm.Places{})
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	ops := names.Ops{{Kind: names.Put, Text: "a", Number: 1}, {Kind: names.Put, Text: "b", Number: 7}}
	for i := range ops {
		ops.AppendTo(&w, 0, i)
	}
	m.Apply(rafttest.Command(1, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindNames, 0), w.Section()...))))
	backup := rafttest.Persisted(t, m)
	for range 2 { // a restore may be repeated
		facts, err := a.RestoreShard(must.Context(t), space.FirstGroup, bytes.NewReader(backup), RestoreOptions{})
		if err != nil || facts.Rows != 2 {
			t.Fatalf("restored %+v, %v", facts, err)
		}
	}
	if got := write(names.Op{Kind: names.Assign, Text: "b"}, names.Op{Kind: names.Assign, Text: "c"}); got[0] != 7 || got[1] != 1001 {
		t.Errorf("numbers %d", got)
	}
	r := &restore{node: n, ctx: must.Context(t), keyspace: space, group: space.FirstGroup, kind: codec.KindNames, merges: true}
	must.Do(t, r.check(raftfsm.SnapshotFacts{Rows: 3}))
	if err := r.check(raftfsm.SnapshotFacts{Rows: 4}); !errors.Is(err, ErrRestoredOther) {
		t.Errorf("with a text too few: %v", err)
	}
}
