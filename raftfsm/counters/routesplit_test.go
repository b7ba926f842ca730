package counters

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
)

// added returns an entry that adds 1 to each of the keys.
func added(route codec.Route, keys ...uint64) []byte {
	var w raftfsm.RequestWriter
	w.Reset(nil, route, &dedup.RequestID{})
	for _, key := range keys {
		Ops{{Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 0, Value: 1}}}}.AppendTo(&w, key, 0)
	}
	return codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindCounters, 1), w.Section()...))
}

// While a shard splits:
//
//  1. a read with the old route returns each row or is refused; it never misses the rows of other
//     parts;
//  2. a read with a new route returns only the rows of its part, or is refused;
//  3. after the split, only reads with a new route are answered.
func TestReadsBesideASplit(t *testing.T) {
	const keys, parts = 300, 3
	early := codec.Whole
	for range 50 {
		m := New(raftfsm.Places{})
		all := make([]uint64, keys)
		for i := range all {
			all[i] = uint64(i)
		}
		m.Apply(rafttest.Next(m, added(early, all...)))
		s := splitOf(m, early, parts)
		count := func(route codec.Route) (read int, err error) {
			p := &raftfsm.Part{Route: route, Keys: all}
			if err = raftfsm.Answer(&rows.Query{Width: 1}, m, p, true, soon()); err != nil {
				return 0, err
			}
			for _, n := range p.Words {
				read += int(n)
			}
			return read, nil
		}
		done := make(chan struct{})
		var reading sync.WaitGroup
		for route, want := range map[codec.Route]int{early: keys, s.Parts[0].Route: keys / parts} {
			reading.Go(func() {
				for {
					if read, err := count(route); err == nil && read != want || err != nil && !errors.Is(err, codec.ErrRoute) {
						t.Errorf("%s: read %d of %d, %v", route, read, want, err)
					}
					q := &rows.Query{Width: 1, Rows: make([]int64, 1)}
					if raftfsm.One(q, m, route, 1) && q.Rows[0] != int64(want/keys) {
						t.Errorf("%s: key 1 is %d", route, q.Rows[0])
					}
					select {
					case <-done:
						return
					default:
					}
				}
			})
		}
		others := []raftfsm.Machine{New(raftfsm.Places{}), New(raftfsm.Places{})}
		if err := m.Split(s, others); err != nil {
			t.Fatal(err)
		}
		close(done)
		reading.Wait()
		if _, err := count(early); !errors.Is(err, codec.ErrRoute) {
			t.Errorf("the old route, after the split: %v", err)
		}
		if read, err := count(s.Parts[0].Route); err != nil || read != keys/parts {
			t.Errorf("the new route, after the split: read %d, %v", read, err)
		}
		m.Close()
	}
}

// Join of a PostsQuery reads the outboxes. If the shard has split since Answer, Join asks for
// another Answer, which then refuses the old route.
func TestPostsBesideASplit(t *testing.T) {
	m := New(raftfsm.Places{})
	defer m.Close()
	publish := PostOp{Kind: Publish, ID: 5, Limits: OutboxLimits{Posts: 10}}
	m.Apply(rafttest.Next(m, outboxEntry(1, outboxSection(&dedup.RequestID{}, nil, outboxAct{key: 1, op: publish}))))
	q, s := &PostsQuery{Limit: 3}, splitOf(m, codec.Whole, 3)
	read := &raftfsm.Read{IDs: []uint64{1}, Parts: []raftfsm.Part{{Route: codec.Whole, Keys: []uint64{1}, At: []int{0}}}, Route: raftfsm.NewRoute(1, 1, false), Deadline: soon()}
	q.Split(read)
	answer := func() error { return raftfsm.Answer(q, m, &read.Parts[0], false, soon()) }
	if err := answer(); err != nil || q.Join(read) || len(q.Posts) != 1 {
		t.Fatalf("before the split: %v, %v", q.Posts, err)
	}
	q.Split(read)
	if err := answer(); err != nil {
		t.Fatal(err)
	}
	if err := m.Split(s, []raftfsm.Machine{New(raftfsm.Places{}), New(raftfsm.Places{})}); err != nil {
		t.Fatal(err)
	}
	if !q.Join(read) {
		t.Errorf("the read of the old route has %v", q.Posts)
	}
	if err := answer(); !errors.Is(err, codec.ErrRoute) {
		t.Errorf("the old route, after the split: %v", err)
	}
}

// splitOf returns a Split of a machine at its next entry.
func splitOf(m raftfsm.Machine, from codec.Route, parts int) *raftfsm.Split {
	s := &raftfsm.Split{Index: m.Applied() + 1, Attempt: 1, From: from, Group: 1, PartOf: func(key uint64) int { return int(key) % parts }}
	for i := range uint32(parts) {
		s.Parts = append(s.Parts, dedup.Part{Route: codec.Route{Modulus: from.Modulus * uint32(parts), Residue: from.Residue + i*from.Modulus}, Judge: 10 + i})
	}
	return s
}

// adopting wraps contents and calls the function adopt in place of their Adopt.
type adopting struct {
	*contents
	adopt func() error
}

func (a adopting) Adopt() error { return a.adopt() }

// Restore replaces the sets on disk before the other contents. If the route changes, the replica
// refuses reads meanwhile. After an error, it has its old route again.
func TestRestoreWithdrawsTheRoute(t *testing.T) {
	first, later := codec.Route{Modulus: 2, Residue: 1}, codec.Route{Modulus: 6, Residue: 1}
	m := &Machine{outboxes: newOutboxBodies(raftfsm.Places{}.Bodies)}
	var adopt func() error
	m.Init(codec.KindCounters, func() raftfsm.Contents {
		return adopting{newContents(raftfsm.Places{}, m.outboxes.New(), &m.parting), func() error { return adopt() }}
	}, func(held raftfsm.Contents) { m.replace(held.(adopting).contents) })
	m.SetRoute(first)
	failed := errors.New("the disk fails")
	for _, step := range []struct {
		to, after codec.Route
		during    bool // reads with the route to are answered while Restore replaces the sets
		err       error
	}{{first, first, true, nil}, {later, first, false, failed}, {later, later, false, nil}, {later, later, true, failed}} {
		from := New(raftfsm.Places{})
		from.SetRoute(step.to)
		adopt = func() error {
			if m.Routed(step.to) != step.during || step.to != first && m.Routed(first) {
				t.Errorf("%+v: %s, withdrawn %v", step, m.Route(), !m.Routed(m.Route()))
			}
			return step.err
		}
		if err := rafttest.Restore(m, rafttest.Persisted(t, from)); !errors.Is(err, step.err) || !m.Routed(step.after) {
			t.Errorf("%+v: %v, it has %s", step, err, m.Route())
		}
	}
}

// Replicas that apply the same log agree on the attempt that splits the shard, and on the sections
// that they refuse, whatever snapshots they start from:
//
//  1. the first split of an attempt that is not void takes effect, and no later split or abandon
//     does;
//  2. a section is applied if its route is the route of the shard at that entry;
//  3. a replica that begins with an empty state or with the snapshot of any other replica ends with
//     an equal state.
func TestAttemptsAreDecidedByTheLog(t *testing.T) {
	const parts = 3
	early, later := codec.Route{Modulus: 2, Residue: 1}, codec.Route{Modulus: 6, Residue: 1}
	begin := func() raftfsm.Machine {
		m := New(raftfsm.Places{})
		m.SetRoute(early)
		return m
	}
	rapid.Check(t, func(t *rapid.T) {
		all := []raftfsm.Machine{begin(), begin()}
		isSplit, abandoned, counted := false, uint64(0), int64(0)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			attempt, key := rapid.Uint64Range(1, 4).Draw(t, "attempt"), rapid.Uint64Range(0, 5).Draw(t, "key")
			route := rapid.SampledFrom([]codec.Route{early, later}).Draw(t, "route")
			step, index := rapid.SampledFrom([]string{"split", "abandon", "add", "restart"}).Draw(t, "step"), all[0].Applied()+1
			for i, m := range all {
				switch step {
				case "split":
					s := splitOf(m, early, parts)
					s.Attempt = attempt
					err := m.Split(s, []raftfsm.Machine{New(raftfsm.Places{}), New(raftfsm.Places{})})
					if void := isSplit || attempt <= abandoned; void && !errors.Is(err, raftfsm.ErrVoid) || !void && err != nil {
						t.Fatalf("split: void %v, %v", void, err)
					}
				case "abandon":
					if err := m.Abandon(early, attempt); errors.Is(err, raftfsm.ErrVoid) != isSplit {
						t.Fatalf("abandon after a split %v: %v", isSplit, err)
					}
				case "add":
					r := m.Apply(rafttest.Command(index, added(route, parts*key))).(*raftfsm.Result)
					if misrouted := (route == later) != isSplit; (r.Outcome(0) == dedup.Misrouted) != misrouted || r.Modulus != m.Route().Modulus {
						t.Fatalf("by %s, split %v: outcome %d of modulus %d", route, isSplit, r.Outcome(0), r.Modulus)
					}
				case "restart":
					if i == 0 {
						again := begin()
						if err := rafttest.Restore(again, rafttest.Persisted(t, m)); err != nil {
							t.Fatal(err)
						}
						all[0] = again
					}
				}
			}
			switch step {
			case "split":
				isSplit = isSplit || attempt > abandoned
			case "abandon":
				if !isSplit {
					abandoned = max(abandoned, attempt)
				}
			case "add":
				if (route == later) == isSplit {
					counted++
				}
			}
			if a, b := rafttest.Persisted(t, all[0]), rafttest.Persisted(t, all[1]); !bytes.Equal(a, b) {
				t.Fatalf("after %s, the snapshots differ: % x\n% x", step, a, b)
			}
		}
		sum := int64(0)
		p := &raftfsm.Part{Route: all[0].Route(), Keys: []uint64{0, parts, 2 * parts, 3 * parts, 4 * parts, 5 * parts}}
		if err := raftfsm.Answer(&rows.Query{Width: 1}, all[0], p, true, soon()); err != nil {
			t.Fatal(err)
		}
		for _, n := range p.Words {
			sum += n
		}
		if sum != counted {
			t.Fatalf("%d adds count, want %d", sum, counted)
		}
	})
}

// FuzzReadHead reads heads of arbitrary bytes. If a head is accepted, it is the same after it is
// written and read again.
func FuzzReadHead(f *testing.F) {
	write := func(h codec.Head) []byte {
		var b bytes.Buffer
		w := codec.NewStreamWriter(&b)
		_ = w.Head(codec.KindFeed, h, -1) // a write to a Buffer never fails
		_ = w.End(0, 0)
		return b.Bytes()
	}
	payload := func(stream []byte) []byte { return rafttest.PayloadOf(rafttest.SectionsOf(f, stream)[0]) }
	f.Add(payload(write(codec.Head{Index: 7, Route: codec.Route{Modulus: 21, Residue: 3}, Abandoned: 2})), uint32(7), uint32(3))
	f.Add(payload(write(codec.Head{Route: codec.Whole}))[:35], uint32(1), uint32(0))
	f.Fuzz(func(t *testing.T, head []byte, modulus, residue uint32) {
		first := codec.Route{Modulus: max(modulus, 1), Residue: residue}
		h, err := codec.NewStreamReader(bytes.NewReader(rafttest.Framed(codec.StreamHead, head))).Head(codec.KindFeed, first)
		if err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if !first.GrowsTo(h.Route) {
			t.Fatalf("%s grows to %s", first, h.Route)
		}
		again, err := codec.NewStreamReader(bytes.NewReader(write(h))).Head(codec.KindFeed, first)
		if err != nil || h != again {
			t.Fatalf("%+v is read as %+v, %v", h, again, err)
		}
	})
}
