package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// A producer that writes all the time, but to one shard only, is not refused
// when it comes back to the others.
func TestProducerIdleOnOneShardGoesOn(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	limits := LimitsDefault
	limits.ProducerIdle = time.Millisecond
	for _, g := range n.registry.groups.Load().all {
		reconfigure(n, g, func(cfg *propose.Config) { cfg.Limits = func() dedup.Limits { return limits } }) // before its first write
	}
	ks, seq := n.Keyspace("posts"), uint64(0)
	send := func(ops ...engine.Op) {
		t.Helper()
		seq++
		w := &Write{Ops: counters.Ops(ops), ID: dedup.ByProducer([]byte("p"), seq), Deadline: soon()}
		if mustDo(t, n.Write(ks, w)); w.Duplicate {
			t.Errorf("number %d is called a duplicate", seq)
		}
	}
	send(addTo(0, 0, 1), addTo(1, 0, 1))
	for began := time.Now(); time.Since(began) < 10*limits.ProducerIdle; {
		send(addTo(0, 0, 1))
	}
	send(addTo(0, 0, 1), addTo(1, 0, 1))
	if got := mustGet(t, n, ks, ReadOptions{}, 0, 1); got[0] != int64(seq) || got[4] != 2 {
		t.Errorf("%d writes to both, or to the first: counts %v", seq, got)
	}
}

// A retry that completes a batch is a duplicate by its key, but not by its producer; a
// later repeat is a duplicate by both.
func TestARetryThatCompletesABatch(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	key := dedup.ByKey([]byte("k"))
	for tries := 0; key.Shard(4) == 1; tries++ { // which is out of reach
		key = dedup.ByKey(fmt.Append(nil, "k", tries))
	}
	for name, test := range map[string]struct {
		id       dedup.RequestID
		complete bool // whether the retry is a duplicate
	}{"key": {key, true}, "producer": {dedup.ByProducer([]byte("p"), 1), false}} {
		t.Run(name, func(t *testing.T) {
			w := &Write{Ops: counters.Ops{addTo(0, 0, 1), addTo(1, 0, 1), addTo(2, 0, 1), addTo(3, 0, 1)}, ID: test.id}
			before := mustGet(t, n, ks, ReadOptions{}, 0, 1, 2, 3)
			hinder(n, ks, 1, heldGroup{err: raft.ErrNotLeader})
			for try := 100 * time.Millisecond; ; try *= 2 { // until the others had enough time
				w.Deadline = time.Now().Add(try)
				partial := (*PartialError)(nil)
				if err := n.Write(ks, w); errors.As(err, &partial) && len(partial.Applied) == 3 {
					break
				} else if try > eventuallyMax {
					t.Fatalf("it is not told in part: %v", err)
				}
			}
			hinder(n, ks, 1, heldGroup{})
			for round, want := range []bool{test.complete, true, true} {
				w.Deadline = soon()
				mustDo(t, n.Write(ks, w))
				if w.Duplicate != want {
					t.Errorf("round %d: duplicate %v, want %v", round, w.Duplicate, want)
				}
			}
			after := mustGet(t, n, ks, ReadOptions{}, 0, 1, 2, 3)
			for i := 0; i < len(after); i += 5 {
				if after[i] != before[i]+1 {
					t.Errorf("id %d: count %d, want %d", i/5, after[i], before[i]+1)
				}
			}
		})
	}
}

// The judging shard still remembers a keyed batch. A retry of the batch does not count again on a
// shard whose log is ahead and has forgotten the key. A first try counts there.
func TestRetryOnAShardWhoseLogIsAhead(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	ks := n.Keyspace("posts")
	key := dedup.ByKey([]byte("k"))
	for tries := 0; key.Shard(2) != 0; tries++ {
		key = dedup.ByKey(fmt.Append(nil, "k", tries))
	}
	ahead := n.registry.groups.Load().byFirst[ks.FirstGroup].all[1].replica.Load()
	stamp := func(by time.Duration) {
		entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 0), time.Now().Add(by), LimitsDefault)
		mustDo(t, ahead.group.Apply(codec.AppendChecksum(entry)).Error())
	}
	write := func() error {
		return n.Write(ks, &Write{Ops: counters.Ops{addTo(0, 0, 1), addTo(1, 0, 1)}, ID: key, Deadline: soon()})
	}
	stamp(LimitsDefault.KeyHorizon * 2)
	mustDo(t, write())
	mustDo(t, write())
	stamp(LimitsDefault.KeyHorizon * 4)
	if err := write(); !errors.Is(err, errs.ErrExpired) {
		t.Errorf("the retry is told %v", err)
	}
	if got := mustGet(t, n, ks, ReadOptions{}, 0, 1); got[0] != 1 || got[4] != 1 {
		t.Errorf("three tries counted %v", got)
	}
}

// The judging shard has forgotten a key, but a shard whose log is behind still remembers the key. A
// write counts on that shard only once it has forgotten the key too. Until then the write is not
// reported as counted.
func TestKeyUsedAgainOnAShardWhoseLogIsBehind(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	ks := n.Keyspace("posts")
	key := dedup.ByKey([]byte("k"))
	for tries := 0; key.Shard(2) != 0; tries++ {
		key = dedup.ByKey(fmt.Append(nil, "k", tries))
	}
	behind := n.registry.groups.Load().byFirst[ks.FirstGroup].all[1].replica.Load()
	stamp := func(by time.Duration, section []byte) {
		entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 0), time.Now().Add(by), LimitsDefault)
		mustDo(t, behind.group.Apply(codec.AppendChecksum(append(entry, section...))).Error())
	}
	var earlier raftfsm.RequestWriter
	earlier.Reset(nil, n.registry.groups.Load().byFirst[ks.FirstGroup].all[1].first, &key)
	op := addTo(1, 0, 1)
	counters.Ops{op}.AppendTo(&earlier, 0, 0)
	stamp(LimitsDefault.KeyHorizon/5-LimitsDefault.KeyHorizon, earlier.Section())

	w := &Write{Ops: counters.Ops{addTo(0, 0, 1), op}, ID: key}
	for try := 100 * time.Millisecond; ; try *= 2 { // until the judge had enough time
		w.Deadline = time.Now().Add(try)
		err, partial := n.Write(ks, w), (*PartialError)(nil)
		if err == nil {
			t.Fatalf("it is told as counted, and the shard behind has %v", mustGet(t, n, ks, ReadOptions{}, 1))
		}
		if errors.As(err, &partial) && errors.Is(err, errs.ErrOverloaded) && slices.Equal(partial.Applied, []uint64{0}) {
			break
		}
		if try > eventuallyMax {
			t.Fatalf("it is told %v", err)
		}
	}
	stamp(LimitsDefault.KeyHorizon/4, nil)
	for range 2 {
		w.Deadline = soon()
		mustDo(t, n.Write(ks, w))
	}
	if got := mustGet(t, n, ks, ReadOptions{}, 0, 1); got[0] != 1 || got[4] != 2 {
		t.Errorf("a use on one shard, and one on both, counted %v", got)
	}
}

// A node sends the use of a key only to a node that asks for it. The first request and its repeats
// get the same use.
func TestUsesTravel(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1})
	g := n.registry.shardOf(n.Keyspace("posts").FirstGroup)
	id := dedup.ByKey([]byte("k"))
	op := addTo(1, 0, 1)
	began := time.Now().UnixMilli()
	var first dedup.Use
	for round, asks := range []bool{true, true, false} {
		var writer raftfsm.RequestWriter
		writer.Reset(nil, g.first, &id)
		counters.Ops{op}.AppendTo(&writer, 1, 0)
		f := &propose.ForwardedPart{Section: writer.Section(), Judges: asks, Ops: 1}
		if got := propose.ParsePart(&wire.Reader{Rest: propose.AppendPart(nil, f)}); got.Judges != asks {
			t.Errorf("round %d: %+v", round, got)
		}
		request := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(g.number)), 1)
		ctx, cancel := context.WithDeadline(t.Context(), soon())
		answer, err := n.writer.serveParts(ctx, propose.AppendPart(request, f))
		cancel()
		mustDo(t, err)
		settled, err := propose.ParseOutcomes(answer, []*propose.ForwardedPart{f})
		mustDo(t, err)
		use := settled[0].Use()
		if round == 0 {
			first = use
		}
		if !asks && use != (dedup.Use{}) || asks && (use.Met != first.Met || use.Met < began || use.Met > time.Now().UnixMilli() || use.Floor < first.Floor) {
			t.Errorf("round %d: %+v, began at %d", round, use, began)
		}
	}
}

// If copies of a keyed batch are sent at once, one of them is no duplicate.
func TestOneOfManyCopiesIsFirst(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 4)
	ks := keyspaces[3]
	const rounds, copies = 10, 30
	for round := range rounds {
		var first atomic.Int32
		var all sync.WaitGroup
		for range copies {
			all.Go(func() {
				w := &Write{ID: dedup.ByKey(fmt.Append(nil, "k", round)), Deadline: soon()}
				for id := range uint64(4) {
					w.Ops = append(rowOps(w), addTo(id, 0, 1))
				}
				if err := n.Write(ks, w); err != nil {
					t.Error(err)
				} else if !w.Duplicate {
					first.Add(1)
				}
			})
		}
		if all.Wait(); first.Load() != 1 {
			t.Errorf("round %d: %d of %d copies are no duplicates", round, first.Load(), copies)
		}
	}
}

// If a key is refused because of its own time, the error tells whether that time is ahead.
func TestRefusedKeysTellTheirTime(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2})
	for name, c := range map[string]struct {
		born  time.Duration // from now
		ahead bool
	}{"old": {-time.Hour, false}, "ahead": {time.Hour, true}} {
		t.Run(name, func(t *testing.T) {
			key := fmt.Sprintf("%012x70008000000000000000", time.Now().Add(c.born).UnixMilli())
			w := &Write{Ops: counters.Ops{addTo(0, 0, 1)}, ID: dedup.ByKey([]byte(key)), Deadline: soon()}
			if err := n.Write(n.Keyspace("posts"), w); !errors.Is(err, errs.ErrExpired) || errors.Is(err, errs.ErrKeyAhead) != c.ahead {
				t.Errorf("told %v", err)
			}
		})
	}
	w := &Write{Ops: counters.Ops{addTo(0, 0, 1)}, ID: dedup.ByKey([]byte("00000000-0000-7000-8000-000000000000")), Deadline: soon()}
	if err := n.Write(n.Keyspace("posts"), w); !errors.Is(err, errs.ErrExpired) || errors.Is(err, errs.ErrKeyAhead) {
		t.Errorf("one of 1970: %v", err)
	}
}
