package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/codec/codectest"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
)

const (
	growingParents = 2
	growingFactor  = 3
	growingFirst   = 100 // number of the group of shard 0; the group of shard s has number growingFirst+10*s
	growingNames   = 900 // the parent of shard s judges under growingNames+s after its split
)

// growingKeyspace is a keyspace whose shards split, with the writer of a node. The groups are state
// machines without raft. They refuse sections, lose them or their answers, and apply copies late.
type growingKeyspace struct {
	t  *testing.T
	wr writer
	ks *Keyspace

	mu        sync.Mutex
	r         *rand.Rand
	calm      bool
	now       time.Time
	ahead     map[uint32]time.Duration // of the clock of a group's leader
	machines  map[uint32]raftfsm.Machine
	replicas  []*shardReplica
	committed bool // the catalog has the children
	behind    int  // how many calls this node's catalog does not have them
	late      []func()
	calls     []*growingCall
}

// growingCall is one call of Node.Write.
type growingCall struct {
	of      *growingWrite
	applied []bool // by op: a section of this call was applied
	refused []bool // by op: the answer promises that this call applied nothing
}

// growingWrite is a write with rows that no other write changes. Each op adds 1.
type growingWrite struct {
	name    string
	id      dedup.RequestID
	ids     []uint64
	exec    bool // the ops must be applied together
	counted []int
	acked   []bool
	done    bool
	born    time.Time
}

func newGrowingKeyspace(t *testing.T, n *Node, seed uint64) *growingKeyspace {
	w := &growingKeyspace{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), now: time.UnixMilli(1_800_000_000_000), machines: map[uint32]raftfsm.Machine{}, ahead: map[uint32]time.Duration{},
		ks: &Keyspace{Name: "g", Kind: kinds.Counters, Shards: growingParents, FirstGroup: growingFirst, Divisor: growingParents, Columns: []string{"a"}},
	}
	router := *n.writer.router
	router.registry = &registry{}
	w.wr = n.writer
	w.wr.router, w.wr.asking = &router, &rpc.Questions{}
	for s := range growingParents * growingFactor {
		g := &shardReplica{number: growingFirst + 10*uint32(s), shard: s, kind: codec.KindCounters}
		g.forward = rpc.NewBatcher(rpc.BatcherConfig[*propose.ForwardedPart, *propose.Proposal]{
			Send: func(_ context.Context, parts []*propose.ForwardedPart) ([]*propose.Proposal, error) {
				return w.send(g, parts)
			},
			Size: func(f *propose.ForwardedPart) int { return len(f.Section) }, InFlight: 4, Items: 1000, Bytes: 1 << 20, CallItems: 10, CallBytes: 1 << 20,
		})
		t.Cleanup(g.forward.Close)
		w.replicas = append(w.replicas, g)
		w.ahead[g.number] = time.Duration(w.r.IntN(120)-60) * time.Second
	}
	for s, g := range w.replicas[:growingParents] {
		m := kinds.All.New(codec.KindCounters, raftfsm.Places{})
		m.SetRoute(codec.Route{Modulus: growingParents, Residue: uint32(s)})
		w.machines[g.number] = m
	}
	router.registry.groups.Store(&groupTable{byFirst: map[uint32]*keyspaceShards{
		growingFirst: {route: raftfsm.NewRoute(growingParents, growingParents, false), all: w.replicas[:growingParents]},
	}})
	return w
}

// follow is replicas.follow. The catalog of this node is behind for some calls.
func (w *growingKeyspace) follow() {
	if w.behind--; w.committed && w.behind < 0 {
		route := raftfsm.NewRoute(growingParents, growingParents*growingFactor, false).Growing(slices.Repeat([]uint32{growingParents}, growingParents))
		w.wr.registry.publish(&groupTable{byFirst: map[uint32]*keyspaceShards{growingFirst: {route: route, all: w.replicas}}})
	}
}

// split splits a parent, unless it has split.
func (w *growingKeyspace) split(s int) {
	g := w.replicas[s]
	m, before := w.machines[g.number], codec.Route{Modulus: growingParents, Residue: uint32(s)}
	if m.Route() != before {
		return
	}
	w.committed, w.behind = true, w.r.IntN(3)
	split := &raftfsm.Split{
		Index: m.Applied() + 1, Attempt: 1, From: before, Group: g.number,
		PartOf: func(key uint64) int { return int(key % growingFactor) },
	}
	var others []raftfsm.Machine
	for part := range growingFactor {
		child := w.replicas[s+part*growingParents]
		name := child.number
		if part == 0 {
			name = growingNames + uint32(s)
		} else {
			w.machines[child.number] = kinds.All.New(codec.KindCounters, raftfsm.Places{})
			others = append(others, w.machines[child.number])
		}
		split.Parts = append(split.Parts, dedup.Part{Route: codec.Route{Modulus: growingParents * growingFactor, Residue: uint32(child.shard)}, Judge: name})
	}
	if err := m.Split(split, others); err != nil {
		w.t.Error(err)
	}
}

// apply applies an entry with one section to a group.
func (w *growingKeyspace) apply(g *shardReplica, f *propose.ForwardedPart, call *growingCall) *propose.Proposal {
	m := w.machines[g.number]
	if m == nil {
		return propose.Settled(errs.ErrNoLeader)
	}
	entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, f.Width), w.now.Add(w.ahead[g.number]), LimitsDefault)
	q := propose.Settled(nil)
	q.Result = m.Apply(codectest.Next(m, codec.AppendChecksum(append(entry, f.Section...)))).(*raftfsm.Result)
	q.Ops, q.Width = f.Ops, f.Width
	if q.Outcome() == dedup.Applied {
		ops := 0
		for i, id := range call.of.ids {
			if int(id%uint64(m.Route().Modulus)) != int(m.Route().Residue) {
				continue
			}
			if f.Ops == 0 {
				continue // only the judge's part has no ops
			}
			ops++
			call.applied[i] = true
			if call.of.counted[i]++; call.of.counted[i] > 1 {
				w.t.Errorf("doubled: op %d of %s, now in %s", i, call.of.name, m.Route())
			}
			if call.refused[i] {
				w.t.Errorf("false refusal: op %d of %s is applied in %s", i, call.of.name, m.Route())
			}
		}
		if f.Ops != ops || call.of.exec && ops != len(call.of.ids) {
			w.t.Errorf("torn: %s applies %d of %d ops of %s, the section has %d", m.Route(), ops, len(call.of.ids), call.of.name, f.Ops)
		}
	}
	return q
}

// send is the call to a group's leader.
func (w *growingKeyspace) send(g *shardReplica, parts []*propose.ForwardedPart) ([]*propose.Proposal, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.follow()
	call := w.calls[len(w.calls)-1]
	var answer []byte
	for _, f := range parts {
		f := &propose.ForwardedPart{Section: slices.Clone(f.Section), Width: f.Width, Judges: f.Judges, Ops: f.Ops}
		copied := func() { w.apply(g, f, call) }
		var q *propose.Proposal
		chance := w.r.IntN(16)
		if w.calm {
			chance = 16
		} else if w.r.IntN(12) == 0 {
			w.split(w.r.IntN(growingParents))
		}
		switch chance {
		case 0:
			q = propose.Settled(errs.ErrNoLeader)
		case 1, 2:
			w.late = append(w.late, copied)
			q = propose.Settled(errs.ErrOutcomeUnknown)
		case 3, 4:
			w.apply(g, f, call)
			q = propose.Settled(errs.ErrOutcomeUnknown)
		default:
			if q = w.apply(g, f, call); chance < 6 && call.of.id.Exists() { // a network doubles no message, but an identified call is repeated
				w.late = append(w.late, copied)
			}
		}
		if n := len(w.late); n > 0 && !w.calm && w.r.IntN(8) == 0 {
			i := w.r.IntN(n)
			deliver := w.late[i]
			w.late = slices.Delete(w.late, i, i+1)
			deliver()
		}
		err := q.Wait(time.NewTimer(time.Hour))
		if answer = propose.AppendOutcome(answer, q, err); err == nil && f.Judges {
			answer = propose.AppendUse(answer, q)
		}
	}
	return propose.ParseOutcomes(answer, parts)
}

// write makes one call, and checks its answer.
func (w *growingKeyspace) write(u *growingWrite, wait time.Duration) {
	call := &growingCall{of: u, applied: make([]bool, len(u.ids)), refused: make([]bool, len(u.ids))}
	w.mu.Lock()
	w.calls = append(w.calls, call)
	w.mu.Unlock()
	q := &Write{ID: u.id, Width: 1, Rows: make([]int64, len(u.ids)), Deadline: time.Now().Add(wait)}
	for _, id := range u.ids {
		q.Ops = append(rowOps(q), engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}})
	}
	if u.exec {
		q.Whole = [][2]int{{0, len(u.ids)}}
	}
	err := w.wr.apply(w.ks, q)
	w.mu.Lock()
	defer w.mu.Unlock()
	partial, some := errors.AsType[*PartialError](err)
	u.done = err == nil
	for i := range u.ids {
		opErr := err
		if some {
			opErr = partial.Of(i)
		}
		switch {
		case opErr == nil:
			if u.acked[i] = true; u.counted[i] != 1 || q.Rows[i] != 1 {
				w.t.Errorf("lost: op %d of %s is acknowledged, with a count of %d and a row of %d", i, u.name, u.counted[i], q.Rows[i])
			}
		case errors.Is(opErr, errs.ErrOutcomeUnknown):
		default:
			if call.refused[i] = true; call.applied[i] {
				w.t.Errorf("false refusal: op %d of %s: %v", i, u.name, opErr)
			}
		}
	}
	switch {
	case errors.Is(err, errs.ErrConflict), errors.Is(err, errs.ErrExpired), errors.Is(err, errs.ErrOverloaded) && !errors.Is(err, errs.ErrTooLate):
		w.t.Errorf("refused: %s: %v", u.name, err)
	case errors.Is(err, errs.ErrCrossShard):
		if u.done = true; !u.exec {
			w.t.Errorf("refused: %s: %v", u.name, err)
		}
	case err != nil && w.calm && u.id.Exists() && !(u.exec && errors.Is(err, errs.ErrOutcomeUnknown)):
		w.t.Errorf("no answer: %s: %v", u.name, err)
	}
	u.done = u.done || !u.id.Exists() || u.exec && w.calm
}

// draw returns a new write. Its rows have numbers that begin at 100 times number.
func (w *growingKeyspace) draw(number int) *growingWrite {
	w.mu.Lock()
	defer w.mu.Unlock()
	u := &growingWrite{name: fmt.Sprint("write ", number), born: w.now}
	first := uint64(number * 100)
	for range 1 + w.r.IntN(4) {
		first += 1 + w.r.Uint64N(4)
		u.ids = append(u.ids, first)
	}
	name := fmt.Appendf(nil, "key%d", number)
	switch w.r.IntN(6) {
	case 0:
		u.name += " without identity"
	case 1:
		u.name, u.id = u.name+" of a producer", dedup.ByProducer([]byte("p"), uint64(number))
	case 2:
		key := fmt.Sprintf("%012x%s", w.now.UnixMilli(), fmt.Sprintf("7%03x8%015x", number, number))
		u.name, u.id = u.name+" with a key with a time", dedup.ByKey([]byte(key), name)
	default:
		u.name, u.id = u.name+" with a key", dedup.ByKey(name, name)
	}
	if !u.id.Keyed() && w.r.IntN(2) == 0 { // all ops are on one parent, as an EXEC checks
		u.name, u.exec = u.name+", an EXEC", true
		for i := range u.ids {
			u.ids[i] = u.ids[0] + uint64(growingParents*i*(1+w.r.IntN(2)))
		}
		slices.Sort(u.ids)
		u.ids = slices.Compact(u.ids)
	}
	u.counted, u.acked = make([]int, len(u.ids)), make([]bool, len(u.ids))
	return u
}

// The writer counts each op at most once, whatever shards split meanwhile, and each acknowledged op
// once. It never reports an op as refused that may have been applied, and answers in calm times.
func TestWritesWhileShardsSplit(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	other := catalog.Node{Key: "n2.0", Name: "n2", ClusterAddr: "127.0.0.1:1", VersionMax: catalog.ClusterVersionMax}
	mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: other}}))
	for seed := range uint64(growingSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newGrowingKeyspace(t, n, seed).run()
		})
	}
}

const growingSeeds = 24

func (w *growingKeyspace) run() {
	var all, open []*growingWrite
	for step := range 60 {
		w.mu.Lock()
		w.now = w.now.Add(time.Duration(w.r.IntN(2000)) * time.Millisecond)
		again := len(open) > 0 && w.r.IntN(3) > 0
		i := w.r.IntN(max(len(open), 1))
		w.mu.Unlock()
		if !again {
			u := w.draw(step + 1)
			all, open = append(all, u), append(open, u)
			i = len(open) - 1
		}
		if w.write(open[i], 90*time.Millisecond); open[i].done {
			open = slices.Delete(open, i, i+1)
		}
	}
	w.mu.Lock()
	for s := range growingParents {
		w.split(s)
	}
	for _, deliver := range w.late {
		deliver()
	}
	w.late, w.calm, w.behind = nil, true, 0
	w.mu.Unlock()
	for _, u := range open {
		for range 2 {
			w.write(u, eventuallyMax)
		}
	}
	acked := 0
	for _, u := range all {
		for i, count := range u.counted {
			if u.acked[i] {
				acked++
			}
			if u.acked[i] && count != 1 || u.exec && count != u.counted[0] {
				w.t.Errorf("%s: counts %v, acknowledged %v", u.name, u.counted, u.acked)
				break
			}
		}
	}
	if acked == 0 {
		w.t.Error("nothing is acknowledged")
	}
}
