package shard

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

const (
	growingParents = 2
	growingFactor  = 3
	growingFirst   = 100 // number of the group of shard 0; the group of shard s has number growingFirst+10*s
	growingNames   = 900 // the parent of shard s judges under growingNames+s after its split
)

// growingKeyspace is a keyspace whose shards split, with the writer of a node. The groups are state
// machines without raft. They refuse sections, lose them or their answers, and apply copies late. The
// node leads some of the groups.
type growingKeyspace struct {
	t  *testing.T
	n  *Node
	wr writer
	ks *Keyspace

	mu        sync.Mutex
	r         *rand.Rand
	calm      bool
	next      func(g *shardReplica) growingFate // of the next call to a group; nil if it is random
	now       time.Time
	ahead     map[uint32]time.Duration // of the clock of a group's leader
	machines  map[uint32]raftfsm.Machine
	replicas  []*shardReplica
	led       map[uint32]bool      // groups that the node leads once they have a state machine
	unborn    map[uint32]int       // how many calls a group refuses, because it has no part yet
	committed [growingParents]bool // the catalog has the children
	behind    int                  // how many calls this node's catalog does not have them
	late      []func()
	calls     []*growingCall
	full      []*propose.Proposal // fill queues until the call ends
	unchecked bool                // the test itself checks what is counted
}

// growingFate is what happens to a call.
type growingFate int

const (
	fateRefused growingFate = iota
	fateDiskFull
	fateLate    // the outcome is unknown, and the section is applied later
	fateUnknown // the outcome is unknown, and the section is applied
	fateTwice   // the section is applied, and a copy later
	fateApplied
)

// growingCall is one call of Node.Write.
type growingCall struct {
	of      *growingWrite
	applied []bool // by op: a section of this call was applied
	refused []bool // by op: the answer promises that this call applied nothing
}

// growingWrite is a write with rows that no other write changes. Op i adds i+1, or subtracts it with a
// floor of 0.
type growingWrite struct {
	name    string
	id      dedup.RequestID
	ids     []uint64
	exec    bool // the ops must be applied together
	floored []bool
	counted []int
	names   map[int64][4]uint32 // by met of a use: the names of its judge
	acked   []bool
	done    bool
}

func newGrowingKeyspace(t *testing.T, n *Node, seed uint64) *growingKeyspace {
	w := &growingKeyspace{
		t: t, n: n, r: rand.New(rand.NewPCG(seed, 7)), now: time.Now(), machines: map[uint32]raftfsm.Machine{}, ahead: map[uint32]time.Duration{},
		led: map[uint32]bool{}, unborn: map[uint32]int{},
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
		w.ahead[g.number], w.led[g.number] = time.Duration(w.r.IntN(120)-60)*time.Second, w.r.IntN(3) == 0
	}
	for s, g := range w.replicas[:growingParents] {
		m := kinds.All.New(codec.KindCounters, raftfsm.Places{})
		m.SetRoute(codec.Route{Modulus: growingParents, Residue: uint32(s)})
		w.machines[g.number] = m
		w.lead(g)
	}
	router.registry.groups.Store(growingTable(raftfsm.NewRoute(growingParents, growingParents, false), w.replicas[:growingParents]))
	return w
}

// growingNode returns a node whose catalog has another node, so that it forwards parts of writes.
func growingNode(t *testing.T) *Node {
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	other := catalog.Node{Key: "n2.0", Name: "n2", ClusterAddr: "127.0.0.1:1", VersionMax: catalog.ClusterVersionMax}
	mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: other}}))
	return n
}

// follow is replicas.follow. The catalog of this node is behind for some calls.
func (w *growingKeyspace) follow() {
	if w.behind--; w.behind >= 0 {
		return
	}
	all := slices.Clone(w.replicas)
	for s := growingParents; s < len(all); s++ {
		if !w.committed[s%growingParents] {
			all[s] = nil
		}
	}
	route := raftfsm.NewRoute(growingParents, growingParents*growingFactor, false).Growing(slices.Repeat([]uint32{growingParents}, growingParents))
	w.wr.registry.publish(growingTable(route, all))
}

// growingTable returns a table of groups with one keyspace.
func growingTable(route raftfsm.Route, all []*shardReplica) *groupTable {
	table := &groupTable{byFirst: map[uint32]*keyspaceShards{growingFirst: {route: route, all: all}}, byNumber: map[uint32]*shardReplica{}}
	for _, g := range all {
		if g != nil {
			table.byNumber[g.number] = g
		}
	}
	return table
}

// lead makes the node lead a group if it should. Its entries go to growingLog.
func (w *growingKeyspace) lead(g *shardReplica) {
	if !w.led[g.number] {
		return
	}
	r := &localReplica{group: w.n.registry.meta, fsm: tiering.Machine{Machine: w.machines[g.number]}}
	cfg := w.n.proposerConfig(g, r)
	cfg.Group, cfg.Rounds = growingLog{w, g}, propose.NewRounds(nil)
	r.proposer.Store(propose.New(cfg))
	w.t.Cleanup(r.proposer.Load().Close)
	g.replica.Store(r)
}

// growingLog is the log of a group that the node leads.
type growingLog struct {
	w *growingKeyspace
	g *shardReplica
}

// growingFuture is an answer of growingLog, and the state machine that has given it.
type growingFuture struct {
	failedFuture
	raft.BatchingFSM
	result  *raftfsm.Result
	metrics *propose.Metrics
}

func (f growingFuture) ApplyBatch([]*raft.Log) []any { return []any{f.result} }

func (f growingFuture) Response() any {
	return propose.TimedFSM{BatchingFSM: f, Metrics: f.metrics}.Apply(nil)
}

func (growingLog) Failed() <-chan struct{} { return nil }

// Apply implements propose.Group.
func (l growingLog) Apply(entry []byte) raft.ApplyFuture {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	call, entry := l.w.calls[len(l.w.calls)-1], slices.Clone(entry)
	result, err := l.w.call(l.g, call, func() *raftfsm.Result { return l.w.apply(l.g, entry, call) })
	switch {
	case errors.Is(err, errs.ErrOutcomeUnknown):
		err = raft.ErrLeadershipLost
	case err != nil:
		err = raft.ErrNotLeader
	}
	return growingFuture{failedFuture: failedFuture{err}, result: result, metrics: l.w.n.metrics}
}

// fill fills the queue of a group that the node leads, until the call ends.
func (w *growingKeyspace) fill(g *shardReplica) {
	r := g.replica.Load()
	if r == nil {
		return
	}
	section := make([]byte, propose.QueueBytesMax)
	for range 200 { // what is reserved already is smaller
		q, err := r.proposer.Load().Reserve(section, 1, false, 0)
		if err == nil {
			w.full = append(w.full, q)
			return
		}
		section = section[1:]
	}
}

// split splits a parent, unless it has split.
func (w *growingKeyspace) split(s int) {
	g := w.replicas[s]
	m, before := w.machines[g.number], codec.Route{Modulus: growingParents, Residue: uint32(s)}
	if m.Route() != before {
		return
	}
	w.committed[s], w.behind = true, w.r.IntN(3)
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
			w.unborn[child.number] = w.r.IntN(16)
			defer w.lead(child)
			others = append(others, w.machines[child.number])
		}
		split.Parts = append(split.Parts, dedup.Part{Route: codec.Route{Modulus: growingParents * growingFactor, Residue: uint32(child.shard)}, Judge: name})
	}
	if err := m.Split(split, others); err != nil {
		w.t.Error(err)
	}
}

// apply applies an entry with one section of a call to a group.
func (w *growingKeyspace) apply(g *shardReplica, entry []byte, call *growingCall) *raftfsm.Result {
	m := w.machines[g.number]
	result := m.Apply(rafttest.Next(m, slices.Clone(entry))).(*raftfsm.Result)
	if result.Outcome(0) != dedup.Applied || w.unchecked {
		return result
	}
	ops := 0
	for i, id := range call.of.ids {
		if int(id%uint64(m.Route().Modulus)) != int(m.Route().Residue) || len(result.Rows) == 0 {
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
	if len(result.Rows) != ops || call.of.exec && ops != len(call.of.ids) {
		w.t.Errorf("torn: %s applies %d of %d ops of %s, the section has %d", m.Route(), ops, len(call.of.ids), call.of.name, len(result.Rows))
	}
	return result
}

// noteNames checks that all parts of a write state the same names of the judge for a use.
func (w *growingKeyspace) noteNames(g *shardReplica, f *propose.ForwardedPart, q *propose.Proposal, call *growingCall) {
	var met int64
	var names [4]uint32
	switch head := f.Section[7:]; { // after the route, which has two bytes
	case f.Section[0] == codec.SectionJudged:
		names[0], met = binary.LittleEndian.Uint32(head[32:]), int64(binary.LittleEndian.Uint64(head[36:]))
	case f.Section[0] == codec.SectionNamed:
		for i := range names {
			names[i] = binary.LittleEndian.Uint32(head[32+4*i:])
		}
		met = int64(binary.LittleEndian.Uint64(head[32+4*len(names):]))
	case f.Judges && q.Err == nil && (q.Outcome() == dedup.Applied || q.Outcome() == dedup.Duplicate):
		met, names = q.Use().Met, q.Use().Names
		names[0] = cmp.Or(names[0], g.number)
	default:
		return
	}
	if was, known := call.of.names[met]; known && was != names {
		w.t.Errorf("names: the use of %s at %d has %v and %v", call.of.name, met, was, names)
	}
	call.of.names[met] = names
}

// call is a call to a group's leader, or an entry of a leader here.
func (w *growingKeyspace) call(g *shardReplica, call *growingCall, apply func() *raftfsm.Result) (*raftfsm.Result, error) {
	fate := fateApplied
	if w.next != nil {
		fate = w.next(g)
	} else if !w.calm {
		switch w.r.IntN(24) {
		case 0, 1:
			w.split(w.r.IntN(growingParents))
		case 2:
			w.fill(w.replicas[w.r.IntN(len(w.replicas))])
		}
		fate = min(growingFate(w.r.IntN(16)), fateApplied)
		if w.unborn[g.number]--; w.unborn[g.number] > 0 {
			fate = fateRefused
		}
	}
	w.follow()
	copied := func() { apply() }
	if w.machines[g.number] == nil {
		fate = fateRefused
	}
	if n := len(w.late); n > 0 && !w.calm && w.r.IntN(8) == 0 {
		i := w.r.IntN(n)
		deliver := w.late[i]
		w.late = slices.Delete(w.late, i, i+1)
		deliver()
	}
	switch fate {
	case fateRefused:
		return nil, errs.ErrNoLeader
	case fateDiskFull:
		return nil, errs.ErrDiskFull
	case fateLate:
		w.late = append(w.late, copied)
		return nil, w.lose(g)
	case fateUnknown:
		apply()
		return nil, w.lose(g)
	case fateTwice:
		if call.of.id.Exists() { // a network doubles no message, but an identified call is repeated
			w.late = append(w.late, copied)
		}
	}
	return apply(), nil
}

// lose returns the error of a lost answer. Often the group then has no leader for a while, or its shard
// splits.
func (w *growingKeyspace) lose(g *shardReplica) error {
	if w.next == nil {
		switch w.r.IntN(3) {
		case 0:
			w.unborn[g.number] = w.r.IntN(8)
		case 1:
			w.split(g.shard % growingParents)
		}
	}
	return errs.ErrOutcomeUnknown
}

// send is the call to a group's leader on another node.
func (w *growingKeyspace) send(g *shardReplica, parts []*propose.ForwardedPart) ([]*propose.Proposal, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	call := w.calls[len(w.calls)-1]
	var answer []byte
	for _, f := range parts {
		q := propose.Settled(nil)
		q.Ops, q.Width = f.Ops, f.Width
		entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, f.Width), w.now.Add(w.ahead[g.number]), LimitsDefault)
		entry = codec.AppendChecksum(append(entry, f.Section...))
		if q.Result, q.Err = w.call(g, call, func() *raftfsm.Result { return w.apply(g, entry, call) }); q.Err == nil {
			w.noteNames(g, f, q, call)
		}
		err := q.Wait(time.NewTimer(time.Hour))
		if answer = propose.AppendOutcome(answer, q, err); err == nil && f.Judges {
			answer = propose.AppendUse(answer, q)
		} else if err == nil && f.OfSource() {
			answer = propose.AppendPosition(answer, q)
		}
	}
	return propose.ParseOutcomes(answer, parts)
}

// write makes one call, and checks its answer.
func (w *growingKeyspace) write(u *growingWrite, wait time.Duration) (*Write, error) {
	call := &growingCall{of: u, applied: make([]bool, len(u.ids)), refused: make([]bool, len(u.ids))}
	w.mu.Lock()
	w.calls = append(w.calls, call)
	w.mu.Unlock()
	q := &Write{ID: u.id, Width: 1, Rows: make([]int64, len(u.ids)), Deadline: time.Now().Add(wait)}
	for i, id := range u.ids {
		if q.Ops = append(rowOps(q), addTo(id, 0, int64(i+1))); u.floored[i] {
			rowOps(q)[i] = floored(id, 0, int64(-i-1), 0)
		}
	}
	if u.exec {
		q.Whole = [][2]int{{0, len(u.ids)}}
	}
	err := w.wr.apply(w.ks, q)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.full {
		q.Cancel()
	}
	full := len(w.full) > 0
	w.full = nil
	for i, c := range q.Cuts {
		if !u.floored[c.Op] || c.Added != 0 || i > 0 && c.Op <= q.Cuts[i-1].Op {
			w.t.Errorf("%s: cuts %v", u.name, q.Cuts)
		}
	}
	partial, some := errors.AsType[*PartialError](err)
	u.done = err == nil
	for i := range u.ids {
		opErr := err
		if some {
			opErr = partial.Of(i)
		}
		switch {
		case opErr == nil:
			row := int64(i + 1)
			if u.floored[i] {
				row = 0
			}
			if u.acked[i] = true; u.counted[i] != 1 || q.Rows[i] != row {
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
	case errors.Is(err, errs.ErrConflict), errors.Is(err, errs.ErrExpired), errors.Is(err, errs.ErrOverloaded) && !errors.Is(err, errs.ErrTooLate) && !full:
		w.t.Errorf("refused: %s: %v", u.name, err)
	case errors.Is(err, errs.ErrCrossShard):
		if u.done = true; !u.exec {
			w.t.Errorf("refused: %s: %v", u.name, err)
		}
	case err != nil && w.calm && w.next == nil && u.id.Exists() && !(u.exec && errors.Is(err, errs.ErrOutcomeUnknown)):
		w.t.Errorf("no answer: %s: %v", u.name, err)
	}
	u.done = u.done || !u.id.Exists() || u.exec && w.calm
	return q, err
}

// of returns a write of some ids.
func of(name string, id dedup.RequestID, ids ...uint64) *growingWrite {
	return &growingWrite{
		name: name, id: id, ids: ids, names: map[int64][4]uint32{},
		floored: make([]bool, len(ids)), counted: make([]int, len(ids)), acked: make([]bool, len(ids)),
	}
}

// draw returns a new write. Its rows have numbers that begin at 100 times number.
func (w *growingKeyspace) draw(number int) *growingWrite {
	w.mu.Lock()
	defer w.mu.Unlock()
	u := &growingWrite{name: fmt.Sprint("write ", number), names: map[int64][4]uint32{}}
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
	u.floored, u.counted, u.acked = make([]bool, len(u.ids)), make([]int, len(u.ids)), make([]bool, len(u.ids))
	for i := range u.floored {
		u.floored[i] = w.r.IntN(4) == 0
	}
	return u
}

// The writer counts each op at most once, whatever shards split meanwhile, and each acknowledged op
// once. It never reports an op as refused that may have been applied, and answers in calm times.
func TestWritesWhileShardsSplit(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
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
		wait := 30 * time.Millisecond // enough for one try
		if step%3 > 0 {
			wait = 120 * time.Millisecond
		}
		if _, _ = w.write(open[i], wait); open[i].done {
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
			_, _ = w.write(u, eventuallyMax)
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
