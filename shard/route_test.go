package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// A keyspace reports its sharding, keeps it over a restart, and accepts no other.
func TestKeyspaceIsSpreadByHash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	few := map[string]int{"posts": 1, "users": 1}
	n := openNode(t, dir, few)
	ask := Keyspace{Name: "x", Columns: []string{"a"}, Shards: 3, Sharding: ShardingHash}
	made, err := n.CreateKeyspace(t.Context(), ask)
	if err != nil || made.Sharding != ShardingHash {
		t.Fatalf("made %+v, %v", made, err)
	}
	for _, other := range []string{"", ShardingHash, ShardingModulo} {
		ask.Sharding = other
		if _, err := n.CreateKeyspace(t.Context(), ask); (err == nil) != (other != ShardingModulo) {
			t.Errorf("sharding %q: %v", other, err)
		}
	}
	ask.Sharding = "range"
	if _, err := n.CreateKeyspace(t.Context(), ask); err == nil {
		t.Error("a word that means nothing is taken")
	}
	mustDo(t, n.Write(made, &Write{Ops: counters.Ops{addTo(5, 0, 7), addTo(1<<64-1, 0, 8)}, Deadline: soon()}))
	mustStop(t, n)
	n = openNode(t, dir, few)
	ks := n.Keyspace("x")
	if got := mustGet(t, n, ks, ReadOptions{}, 5, 1<<64-1); fmt.Sprint(got) != "[7 8]" || ks.Sharding != ShardingHash {
		t.Errorf("after a restart %v of %+v", got, ks)
	}
}

// Creating an even number of shards for ids that end in zeros returns a warning.
func TestEvenShardsAreWarnedOf(t *testing.T) {
	t.Parallel()
	n := &Node{}
	n.cfg.Cold.Layouts = map[string]tiering.IDLayout{"x": tiering.LayoutTwitter}
	for _, c := range []struct {
		k    Keyspace
		want bool
	}{
		{Keyspace{Name: "x", Kind: kinds.Counters, Shards: 4}, true},
		{Keyspace{Name: "x", Kind: kinds.Counters, Shards: 7}, false},
		{Keyspace{Name: "x", Kind: kinds.Counters, Shards: 4, Sharding: ShardingHash}, false},
		{Keyspace{Name: "y", Kind: kinds.Counters, Shards: 4}, false},
		{Keyspace{Name: "x", Kind: kinds.Unread, Shards: 4}, false},
	} {
		if got := n.SkewWarning(&c.k); (got != "") != c.want {
			t.Errorf("%+v: %q", c.k, got)
		}
	}
}

// A keyspace that is spread by hash is restored, shard by shard, over its existing rows.
func TestKeyspaceSpreadByHashIsRestored(t *testing.T) {
	t.Parallel()
	n := openMembers(t, 1)[0]
	ks, err := n.CreateKeyspace(t.Context(), Keyspace{Name: "x", Columns: []string{"a"}, Shards: 3, Sharding: ShardingHash})
	mustDo(t, err)
	ids := make([]uint64, 30)
	for i := range ids {
		ids[i] = uint64(i) << 22
		mustDo(t, n.Write(ks, &Write{Ops: counters.Ops{addTo(ids[i], 0, int64(i))}, Deadline: soon()}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	var streams [][]byte
	for shard := range ks.Shards {
		stream, _ := taken(t, []*Node{n}, ks.FirstGroup+uint32(shard))
		streams = append(streams, stream)
	}
	mustDo(t, n.Write(ks, &Write{Ops: counters.Ops{addTo(ids[3], 0, 70), addTo(5, 0, 1)}, Deadline: soon()}))
	for shard, stream := range streams {
		if _, err := RestoreShard(ctx, n, ks.FirstGroup+uint32(shard), bytes.NewReader(stream), true, nil); err != nil {
			t.Fatalf("shard %d: %v", shard, err)
		}
	}
	for i, count := range mustGet(t, n, ks, ReadOptions{Consistency: Linearizable}, append(ids, 5)...) {
		if want := int64(i % 30); count != want {
			t.Errorf("id %d has %d, want %d", i, count, want)
		}
	}
	if _, err := RestoreShard(ctx, n, ks.FirstGroup, bytes.NewReader(streams[1]), true, nil); !errors.Is(err, ErrBadSnapshot) {
		t.Errorf("a shard from another one's snapshot: %v", err)
	}
}

// A node refuses writes and reads that another node routed over another number of shards. The
// refusal names that cause and promises that nothing changed, so that the sender may route anew.
func TestCallsOfAnotherRouteAreRefused(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 2)
	ks := mustMake(t, all[0], "songs", 2, "plays")
	eventually(t, "all know the keyspace", func() bool { return all[0].Keyspace("songs") != nil && all[1].Keyspace("songs") != nil })
	mustDo(t, all[0].Write(ks, &Write{Ops: counters.Ops{addTo(1, 0, 5)}, Deadline: soon()}))
	g := all[0].newShardReplica(&Keyspace{Name: "songs", Kind: kinds.Counters, Shards: 6, Groups: slices.Concat(ks.Groups, make([]uint32, 4))}, 1, codec.Route{Modulus: 6, Residue: 1}) // id 1 is in shard 1 of either
	var w raftfsm.RequestWriter
	id := dedup.ByProducer([]byte("p"), 1)
	w.Reset(nil, g.first, &id)
	op := addTo(1, 0, 1)
	counters.Ops{op}.AppendTo(&w, 0, 0)
	for _, n := range all {
		ctx, cancel := context.WithDeadline(t.Context(), soon())
		defer cancel()
		led := n.registry.shardOf(g.number)
		if _, err := led.led(); err != nil {
			continue
		}
		from := all[0]
		if n == from {
			from = all[1]
		}
		for _, method := range []string{methodPropose, methodRelay} {
			settled, err := from.writer.sendParts(ctx, g, n.cfg.NodeKey, method, []*propose.ForwardedPart{{Section: w.Section(), Ops: 1}})
			if err == nil {
				err = settled[0].Err
			}
			if !errors.Is(err, errs.ErrNoLeader) || !strings.Contains(err.Error(), "shard 1 of 6, and the replica is of shard 1 of 2") || !mayTryAgain(rpc.Fate(err), false) || rpc.ModulusOf(rpc.Fate(err)) != 2 {
				t.Errorf("%s: %v", method, err)
			}
		}
		for name, q := range map[string]raftfsm.Query{
			"counts": &rows.Query{Width: 1}, "a scan": &rows.Scan{Width: 1, Limit: 10}, "a list of members": &counters.MembersQuery{},
		} {
			read := newRemoteRead(q, &raftfsm.Part{Route: g.first, Keys: []uint64{0}}, g, &ReadOptions{})
			eventually(t, name+" is refused", func() bool { // a busy machine may let the call end, or another node lead for a moment
				answers, err := from.reader.sendReads(n.cfg.NodeKey)(ctx, []*sentRead{{message: read.appendTo(nil)}})
				if err == nil {
					err = answers[0].err
				}
				if errors.Is(err, errs.ErrMisrouted) && rpc.ModulusOf(err) == 2 {
					return true
				}
				if err == nil {
					t.Fatalf("%s is answered", name)
				}
				t.Logf("%s: %v", name, err)
				return false
			})
		}
		// An entry of a leader that had checked nothing, as the log may have one.
		q2, err := led.replica.Load().proposer.Load().Submit(w.Section(), 1, true, 1)
		mustDo(t, err)
		if err := q2.Wait(time.NewTimer(eventuallyMax)); !errors.Is(err, errs.ErrMisrouted) || rpc.ModulusOf(err) != 2 {
			t.Errorf("an entry: %v", err)
		}
		w.Reset(nil, led.first, &id)
		counters.Ops{op}.AppendTo(&w, 0, 0)
		settled, err := from.writer.sendParts(ctx, led, n.cfg.NodeKey, methodPropose, []*propose.ForwardedPart{{Section: w.Section(), Ops: 1, Width: 1}})
		if err != nil || settled[0].Err != nil || settled[0].Outcome() != dedup.Applied || settled[0].Row(0, 1)[0] != 6 {
			t.Errorf("by its own route: %+v, %v", settled, err)
		}
		return
	}
	t.Error("nobody leads the shard")
}
