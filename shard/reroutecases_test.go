package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
)

// growingKey returns a key that a shard judges once its parent has split.
func growingKey(shard int) dedup.RequestID {
	for i := 0; ; i++ {
		name := fmt.Appendf(nil, "key%d", i)
		if id := dedup.ByKey(name, name); id.Shard(growingParents*growingFactor) == shard {
			return id
		}
	}
}

// newGrowing returns a keyspace without random faults. The node leads the groups of some shards.
func newGrowing(t *testing.T, n *Node, led ...int) *growingKeyspace {
	w := newGrowingKeyspace(t, n, 0)
	w.calm = true
	for s, g := range w.replicas {
		w.led[g.number] = slices.Contains(led, s)
		if g.replica.Store(nil); w.machines[g.number] != nil {
			w.lead(g)
		}
	}
	return w
}

// splitNow splits a parent.
func (w *growingKeyspace) splitNow(parent int, known bool) {
	w.split(parent)
	if w.behind = 0; known {
		w.follow()
	}
}

// losesAndSplits makes the answer of a parent to its first call lost, and then splits the parent. Its
// parts then fail. lost is set with the first call.
func (w *growingKeyspace) losesAndSplits(parent int, fails growingFate) (lost *atomic.Bool) {
	lost = new(atomic.Bool)
	w.next = func(g *shardReplica) growingFate {
		switch {
		case g.shard >= growingParents:
			return fails
		case g.shard != parent:
			return fateApplied
		}
		if !lost.Swap(true) {
			return fateUnknown
		}
		w.splitNow(parent, true)
		return fateApplied // the parent refuses the old route
	}
	return lost
}

// count returns how often the ops of a write were counted.
func (u *growingWrite) count() (n int) {
	for _, count := range u.counted {
		n += count
	}
	return n
}

const soonOver = 300 * time.Millisecond // long enough for some tries

// If the answer of a parent was lost, no later answer of its parts is a refusal.
func TestUnknownOutlivesASplit(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
	producer := dedup.ByProducer([]byte("p"), 1)
	for name, c := range map[string]struct {
		write *growingWrite
		exec  bool
		fails growingFate
	}{
		"an op, and its part has no leader":            {of("write", producer, 2), false, fateRefused},
		"an op, and its part refuses it":               {of("write", producer, 2), false, fateDiskFull},
		"an op beside the judge, which has no leader":  {of("write", growingKey(2), 4), false, fateRefused},
		"an op beside the judge, which refuses":        {of("write", growingKey(2), 4), false, fateDiskFull},
		"an EXEC that then is on several shards":       {of("write", producer, 2, 4), true, fateApplied},
		"a judge without ops, and its part refuses it": {of("write", growingKey(2), 1), false, fateDiskFull},
	} {
		for _, led := range [][]int{nil, {0, 1, 2, 3, 4, 5}} {
			t.Run(fmt.Sprint(name, led), func(t *testing.T) {
				t.Parallel()
				for wait := soonOver; ; wait *= 2 {
					w, u := newGrowing(t, n, led...), of("write", c.write.id, c.write.ids...)
					u.exec = c.exec
					lost := w.losesAndSplits(0, c.fails)
					_, err := w.write(u, wait)
					if !lost.Load() && wait < hinderedMax { // too short for the first try on a busy machine
						continue
					}
					if !errors.Is(err, errs.ErrOutcomeUnknown) {
						t.Errorf("got %v", err)
					}
					return
				}
			})
		}
	}
}

// A split may separate the ids of an EXEC:
//
//  1. without an identity, nothing is applied, and the error says so;
//  2. a repeat of an EXEC that an earlier call has counted is not refused.
func TestExecThatASplitSeparates(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
	for _, known := range []bool{false, true} { // the node knows the new route before the write
		w, u := newGrowing(t, n), of("write", dedup.RequestID{}, 2, 4)
		u.exec = true
		w.splitNow(0, known)
		if _, err := w.write(u, hinderedMax); !errors.Is(err, errs.ErrCrossShard) || u.count() != 0 {
			t.Errorf("route known %v: without identity: %v, counted %v", known, err, u.counted)
		}
		w, u = newGrowing(t, n), of("write", dedup.ByProducer([]byte("p"), 1), 2, 4)
		u.exec = true
		_, err := w.write(u, hinderedMax)
		mustDo(t, err)
		w.splitNow(0, known)
		if _, err := w.write(u, hinderedMax); !errors.Is(err, errs.ErrOutcomeUnknown) || u.count() != 2 {
			t.Errorf("route known %v: a repeat: %v, counted %v", known, err, u.counted)
		}
	}
}

// All parts of a write state the name under which a judge that has split judges its key, whether the
// judge is here or the node forwards its part.
func TestNamesOfTheJudgeAreForwarded(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
	for _, led := range [][]int{nil, {0}} {
		w, u := newGrowing(t, n, led...), of("write", growingKey(0), 1)
		w.splitNow(0, true)
		_, err := w.write(u, hinderedMax)
		mustDo(t, err)
		if len(u.names) != 1 {
			t.Errorf("uses %v", u.names)
		}
		for _, names := range u.names {
			if names[0] != growingNames {
				t.Errorf("led %v: the part names judge %v, want %d", led, names, growingNames)
			}
		}
	}
}

// A judge that moves, and states no names, is named in the other parts by the number of its new group.
func TestCarryNamesTheNewJudge(t *testing.T) {
	t.Parallel()
	w := &Write{ID: growingKey(0)}
	use := dedup.Use{Met: 9, Floor: 3}
	ps := &parts{moved: true, byShard: []part{{group: &shardReplica{number: 7}, used: true, judges: true, settled: true}, {group: &shardReplica{number: 8}, used: true}}, spaces: []partSpace{{ks: &Keyspace{}}}}
	ps.judged = w.ID.JudgedBy(6, dedup.Use{})
	p := &ps.byShard[1]
	p.route = codec.Route{Modulus: 6, Residue: 1}
	p.writer.Reset(nil, p.route, &ps.judged)
	ps.carry(w, use)
	var want raftfsm.RequestWriter
	id := w.ID.JudgedBy(7, use)
	want.Reset(nil, p.route, &id)
	if !bytes.Equal(p.writer.Section(), want.Section()) {
		t.Errorf("section %x, want %x", p.writer.Section(), want.Section())
	}
}

// A queue that is full refuses the whole write if a split moves its parts before the judge has
// answered. After that it refuses a part, and a repeat completes the write.
func TestAFullQueueAfterASplit(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
	for name, c := range map[string]struct {
		id      dedup.RequestID
		led     int
		split   bool // before the write
		partial bool // some ops are counted
		next    func(w *growingKeyspace, g *shardReplica) growingFate
	}{
		"before the judge": {id: growingKey(2), led: 4, next: func(w *growingKeyspace, g *shardReplica) growingFate {
			if g.shard == 0 && w.machines[w.replicas[4].number] == nil {
				w.splitNow(0, true)
				w.fill(w.replicas[4])
			}
			return fateApplied
		}},
		"between the judge and its names": {id: growingKey(2), led: 1, split: true, partial: true, next: func(w *growingKeyspace, g *shardReplica) growingFate {
			if g.shard == 2 && w.full == nil {
				w.fill(w.replicas[1])
			}
			return fateApplied
		}},
		"between two tries": {id: dedup.ByProducer([]byte("p"), 1), led: 0, partial: true, next: func(w *growingKeyspace, g *shardReplica) growingFate {
			if g.shard == 0 {
				return fateRefused
			}
			for w.full == nil { // until shard 0 has answered
				if q, err := w.replicas[0].replica.Load().proposer.Load().Reserve(nil, propose.QueueOpsMax, false, 0); err == nil {
					w.full = append(w.full, q)
				}
				w.mu.Unlock()
				time.Sleep(time.Millisecond)
				w.mu.Lock()
			}
			return fateApplied
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, u := newGrowing(t, n, c.led), of("write", c.id, 2, 4, 1)
			if c.split {
				w.splitNow(0, true)
			}
			filled := false
			w.next = func(g *shardReplica) growingFate {
				if filled {
					return fateApplied
				}
				fate := c.next(w, g)
				filled = w.full != nil
				return fate
			}
			_, err := w.write(u, hinderedMax)
			partial, is := errors.AsType[*PartialError](err)
			if !errors.Is(err, errs.ErrOverloaded) || is != c.partial || !filled {
				t.Errorf("got %v, filled %v, %+v", err, filled, partial)
			}
			if (u.count() > 0) != c.partial {
				t.Errorf("counted %v", u.counted)
			}
			if q, err := w.write(u, hinderedMax); err != nil || !c.partial && q.Duplicate {
				t.Errorf("a repeat: %v", err)
			}
		})
	}
}

// After a split, the lists of an answer name the ops by their indexes in the request, as they do before.
func TestListsOfAnAnswerAfterASplit(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
	for name, c := range map[string]struct {
		before, between bool
		unknown         []int // of a repeat
	}{
		"no split":               {unknown: []int{0, 1, 2, 4, 5, 6}},
		"before the write":       {before: true, unknown: []int{0, 2, 5}}, // only of the part that has refused ops
		"between it and another": {between: true, unknown: []int{0, 1, 2, 4, 5, 6}},
	} {
		for _, led := range [][]int{nil, {0, 1, 2, 3, 4, 5}} {
			w := newGrowing(t, n, led...)
			w.unchecked = true
			write := func(splits bool) *Write {
				q := &Write{ID: dedup.ByProducer([]byte("p"), 1), Width: 1, Rows: make([]int64, 7), Deadline: soon()}
				q.Ops = counters.Ops{
					addTo(4, 0, math.MaxInt64), floored(2, 0, -3, 0), addTo(4, 0, 1), addTo(1, 0, 5), floored(0, 0, 7, 0), floored(4, 0, 9, 0), floored(2, 0, -1, 0),
				}
				w.mu.Lock()
				if w.calls = append(w.calls, &growingCall{of: of("lists", q.ID)}); splits {
					w.splitNow(0, false)
				}
				w.mu.Unlock()
				mustDo(t, w.wr.apply(w.ks, q))
				if want := []int64{math.MaxInt64, 0, math.MaxInt64, 5, 7, math.MaxInt64, 0}; !slices.Equal(q.Rows, want) {
					t.Errorf("%s: rows %v, want %v", name, q.Rows, want)
				}
				return q
			}
			q := write(c.before)
			if want := []engine.Cut{{Op: 1}, {Op: 6}}; !slices.Equal(q.Cuts, want) || q.Duplicate {
				t.Errorf("%s: cuts %v, want %v, duplicate %v", name, q.Cuts, want, q.Duplicate)
			}
			if len(q.Overflows) != 2 || q.Overflows[0].Op != 2 || q.Overflows[1].Op != 5 || len(q.Unknown) > 0 {
				t.Errorf("%s: overflows %v, unknown %v", name, q.Overflows, q.Unknown)
			}
			q = write(c.between)
			if !q.Duplicate || !q.Repeated || len(q.Cuts)+len(q.Overflows) > 0 || !slices.Equal(q.Unknown, c.unknown) {
				t.Errorf("%s: a repeat: duplicate %v, cuts %v, overflows %v, unknown %v, want %v", name, q.Duplicate, q.Cuts, q.Overflows, q.Unknown, c.unknown)
			}
		}
	}
}

// Before the first EXEC of several ids, the node marks the keyspace in the catalog.
func TestExecMarksItsKeyspace(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("posts")
	exec := func(ids ...uint64) (marked bool) {
		w := &Write{Deadline: soon(), Whole: [][2]int{{0, len(ids)}}}
		for _, id := range ids {
			w.Ops = append(rowOps(w), addTo(id, 0, 1))
		}
		mustDo(t, n.Write(ks, w))
		return n.Catalog().Keyspaces[ks.Name].Exec
	}
	if exec(1, 1) {
		t.Error("an EXEC of one id has marked its keyspace")
	}
	if !exec(1, 2) {
		t.Error("an EXEC of several ids has not marked its keyspace")
	}
	applied := n.Catalog().Applied
	exec(3, 4)
	if now := n.Catalog().Applied; now != applied {
		t.Errorf("a second EXEC has changed the catalog: it was at %d and is at %d", applied, now)
	}
}

// staleParts returns parts of an attempt to split a parent that the catalog has abandoned, although the catalog of
// this node still has them. Another node answers that their groups were dropped; asked is called before.
func (w *growingKeyspace) staleParts(parent int, asked func()) (all []*shardReplica) {
	all = slices.Clone(w.replicas)
	for s := range all {
		if s < growingParents {
			continue
		}
		g := &shardReplica{number: w.replicas[s].number + 1, shard: s, kind: codec.KindCounters, parent: w.replicas[parent].number}
		g.forward = rpc.NewBatcher(rpc.BatcherConfig[*propose.ForwardedPart, *propose.Proposal]{
			Send: func(_ context.Context, parts []*propose.ForwardedPart) ([]*propose.Proposal, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				asked()
				return nil, errs.ErrUnknownKeyspace
			},
			Size: func(f *propose.ForwardedPart) int { return len(f.Section) }, InFlight: 4, Items: 1000, Bytes: 1 << 20, CallItems: 10, CallBytes: 1 << 20,
		})
		w.t.Cleanup(g.forward.Close)
		all[s] = g
	}
	return all
}

// A node takes the parts of an abandoned attempt for those of a later one, because its catalog is behind. Its
// writes reach the right parts once the catalog has them, even if it first has neither. No write is told that the
// keyspace does not exist.
func TestWriteToAnAbandonedPart(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
	moduli := slices.Repeat([]uint32{growingParents}, growingParents)
	route := raftfsm.NewRoute(growingParents, growingParents*growingFactor, false).Growing(moduli)
	for _, between := range []bool{false, true} { // the catalog of the node shows the abandon without the next attempt
		for _, id := range []dedup.RequestID{{}, dedup.ByProducer([]byte("p"), 1), growingKey(2)} {
			w, asked := newGrowing(t, n), 0
			w.split(0)
			w.behind = 1 << 30
			stale := w.staleParts(0, func() {
				switch asked++; {
				case asked == 3 && between:
					w.behind = 3
					w.wr.registry.publish(growingTable(route, append(slices.Clone(w.replicas[:growingParents]), make([]*shardReplica, 4)...)))
				case asked == 3:
					w.behind = 0
					w.follow()
				}
			})
			w.wr.registry.publish(growingTable(route, stale))
			u := of("write", id, 1, 2, 4)
			if _, err := w.write(u, hinderedMax); err != nil || u.count() != 3 || asked < 3 {
				t.Errorf("between %v, %v: %v, counted %v, %d calls to an abandoned part", between, id, err, u.counted, asked)
			}
		}
	}
}

// A read that another node refuses, because it knows no such group, is routed anew once this node's catalog has
// no such group either.
func TestReadOfAnAbandonedPart(t *testing.T) {
	t.Parallel()
	n := growingNode(t)
	w := newGrowing(t, n)
	g, other := w.staleParts(0, func() {})[2], "n2.0"
	g.hint.Store(&other)
	rd := &reader{router: w.wr.router}
	w.wr.registry.groups.Store(&groupTable{byNumber: map[uint32]*shardReplica{g.number: g}})
	asked := 0
	ctx, cancel := context.WithTimeout(t.Context(), hinderedMax)
	defer cancel()
	err := rd.ask(ctx, g, nil, &ReadOptions{}, nil, func(context.Context, string) error {
		if asked++; asked == 3 {
			w.wr.registry.groups.Store(&groupTable{})
		}
		return errs.ErrUnknownKeyspace
	})
	if !hasSplit(err) || asked != 3 {
		t.Errorf("%v after %d calls", err, asked)
	}
}
