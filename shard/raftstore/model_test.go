package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/must"
)

var mustDo, eventually = must.Do, must.Become

// model is the expected contents of a log, in the simplest form.
type model map[ReplicaID]*modelReplica

type modelReplica struct {
	entries []raft.Log // without a gap
	values  map[string]string
}

func (m model) clone() model {
	c := model{}
	for id, r := range m {
		values := map[string]string{}
		for k, v := range r.values {
			values[k] = v
		}
		c[id] = &modelReplica{append([]raft.Log{}, r.entries...), values}
	}
	return c
}

func (r *modelReplica) last() uint64 {
	if len(r.entries) == 0 {
		return 0
	}
	return r.entries[len(r.entries)-1].Index
}

// cut deletes entries first to last.
func (r *modelReplica) cut(first, last uint64) {
	var left []raft.Log
	for _, e := range r.entries {
		if e.Index < first || e.Index > last {
			left = append(left, e)
		}
	}
	r.entries = left
}

// differs returns the difference between a log and the model, or "".
func (m model) differs(l *Log) string {
	for _, id := range l.Replicas() {
		if m[id] == nil {
			return fmt.Sprintf("%s is there", id)
		}
	}
	for id, want := range m {
		if !l.Has(id) {
			return fmt.Sprintf("%s is not there", id)
		}
		r, err := l.Replica(id)
		if err != nil {
			return err.Error()
		}
		if diff := want.differs(r); diff != "" {
			return fmt.Sprintf("%s: %s", id, diff)
		}
	}
	return ""
}

func (r *modelReplica) differs(got *Replica) string {
	first, _ := got.FirstIndex()
	last, _ := got.LastIndex()
	wantFirst := uint64(0)
	if len(r.entries) > 0 {
		wantFirst = r.entries[0].Index
	}
	if first != wantFirst || last != r.last() {
		return fmt.Sprintf("entries %d to %d, want %d to %d", first, last, wantFirst, r.last())
	}
	for _, want := range r.entries {
		var e raft.Log
		if err := got.GetLog(want.Index, &e); err != nil {
			return fmt.Sprintf("entry %d: %v", want.Index, err)
		}
		if e.Index != want.Index || e.Term != want.Term || e.Type != want.Type || !bytes.Equal(e.Data, want.Data) ||
			!bytes.Equal(e.Extensions, want.Extensions) || !e.AppendedAt.Equal(want.AppendedAt) {
			return fmt.Sprintf("entry %d is %+v, want %+v", want.Index, e, want)
		}
	}
	for _, index := range []uint64{wantFirst - 1, r.last() + 1} {
		//nolint:errorlint // raft compares the error itself
		if err := got.GetLog(index, &raft.Log{}); err != raft.ErrLogNotFound {
			return fmt.Sprintf("entry %d: %v", index, err)
		}
	}
	for key, want := range r.values {
		if value, err := got.Get([]byte(key)); err != nil || string(value) != want {
			return fmt.Sprintf("%s is %q, want %q; %v", key, value, want, err)
		}
	}
	if _, err := got.Get([]byte("no such key")); !errors.Is(err, ErrNoValue) {
		return fmt.Sprintf("an absent key: %v", err)
	}
	return ""
}

// op is one change to a model and to a log.
type op struct {
	model func(m model)
	log   func(l *Log) error
}

// both applies the change to the log and to the model.
func (o op) both(l *Log, m model) error {
	o.model(m)
	return o.log(l)
}

// randomOp returns a random valid change.
func randomOp(random *rand.Rand, m model, entryBytesMax int) op {
	id := ReplicaID{Group: uint32(random.IntN(3)), Number: uint64(random.IntN(2))}
	r := m[id]
	if r == nil {
		return op{
			func(m model) { m[id] = &modelReplica{values: map[string]string{}} },
			func(l *Log) error { _, err := l.Replica(id); return err },
		}
	}
	with := func(change func(m *modelReplica), log func(r *Replica) error) op {
		return op{func(m model) { change(m[id]) }, func(l *Log) error {
			r, err := l.Replica(id)
			if err != nil {
				return err
			}
			return log(r)
		}}
	}
	switch n := random.IntN(100); {
	case n < 60:
		first := r.last() + 1
		if len(r.entries) == 0 {
			first = 1 + uint64(random.IntN(100))
		}
		entries := randomEntries(random, first, 1+random.IntN(4), entryBytesMax)
		return with(func(m *modelReplica) {
			for _, e := range entries {
				m.entries = append(m.entries, *e)
			}
		}, func(r *Replica) error { return r.StoreLogs(entries) })
	case n < 75:
		key, value := []string{"term", "vote"}[random.IntN(2)], fmt.Sprint(random.Uint64())
		return with(func(m *modelReplica) { m.values[key] = value },
			func(r *Replica) error { return r.Set([]byte(key), []byte(value)) })
	case n < 77:
		return op{func(m model) { delete(m, id) }, func(l *Log) error { return l.Drop(id) }}
	}
	first, last := cutBounds(random, r)
	return with(func(m *modelReplica) { m.cut(first, last) },
		func(r *Replica) error { return r.DeleteRange(first, last) })
}

// cutBounds returns the bounds of a range of entries: the first ones, the last ones, or all.
func cutBounds(random *rand.Rand, r *modelReplica) (first, last uint64) {
	if len(r.entries) == 0 {
		return 1, 10
	}
	from, to := r.entries[0].Index, r.last()
	middle := from + random.Uint64N(to-from+1)
	switch n := random.IntN(10); {
	case n < 6:
		return from, middle
	case n < 9:
		return middle, to
	}
	return from, to
}

func randomEntries(random *rand.Rand, first uint64, n, bytesMax int) []*raft.Log {
	var entries []*raft.Log
	for i := range n {
		data := make([]byte, random.IntN(bytesMax))
		for k := range data {
			data[k] = byte(random.Uint32())
		}
		e := &raft.Log{Index: first + uint64(i), Term: 1 + random.Uint64N(1000), Type: raft.LogType(random.IntN(4)), Data: data}
		if random.IntN(2) == 0 {
			e.Extensions, e.AppendedAt = []byte("extension"), time.Unix(0, 1+random.Int64N(1<<60))
		}
		entries = append(entries, e)
	}
	return entries
}

const testDir = "node/log"

func openTest(t testing.TB, fs vfs.FS) *Log {
	t.Helper()
	l, err := Open(testDir, Options{FS: fs, SegmentBytes: segmentBytesMin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// A log behaves like a naive model, also after it is reopened.
func TestLogIsAsTheModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random, fs, m := rand.New(rand.NewPCG(seed, 1)), vfs.NewMem(), model{}
			l := openTest(t, fs)
			for i := range 400 {
				if err := randomOp(random, m, 2000).both(l, m); err != nil {
					t.Fatalf("change %d: %v", i, err)
				}
				if random.IntN(30) == 0 {
					mustDo(t, l.Close())
					l = openTest(t, fs)
				}
				if i%20 == 0 {
					if diff := m.differs(l); diff != "" {
						t.Fatalf("after change %d: %s", i, diff)
					}
				}
			}
			if diff := m.differs(l); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}
