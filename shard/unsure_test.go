package shard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
)

// unsureGroup refuses some entries, loses others, and loses the answers to others. It also proposes
// copies of earlier entries late.
type unsureGroup struct {
	propose.Group

	mu struct {
		sync.Mutex
		entries [][]byte
	}
}

func (g *unsureGroup) Apply(entry []byte) raft.ApplyFuture {
	g.mu.Lock()
	g.mu.entries = append(g.mu.entries, slices.Clone(entry))
	late := g.mu.entries[rand.IntN(len(g.mu.entries))]
	g.mu.Unlock()
	switch rand.IntN(8) {
	case 0:
		return failedFuture{raft.ErrNotLeader}
	case 1:
		return failedFuture{raft.ErrLeadershipLost}
	case 2:
		_ = g.Group.Apply(entry).Error()
		return failedFuture{raft.ErrLeadershipLost}
	case 3:
		_ = g.Group.Apply(late).Error()
	}
	return g.Group.Apply(entry)
}

// unsureWrite is a write with rows that no other write changes.
type unsureWrite struct {
	id     dedup.RequestID
	spaces []*Keyspace // the keyspaces of the ops; nil if the field on is the keyspace of all ops
	on     *Keyspace
	ops    []engine.Op
	in     []uint8
	acked  bool
}

// send repeats the write until it is acknowledged or refused for good.
func (u *unsureWrite) send(t *testing.T, n *Node) {
	for {
		w := &Write{Ops: counters.Ops(u.ops), Spaces: u.spaces, In: u.in, ID: u.id, Deadline: time.Now().Add(time.Duration(50+rand.IntN(300)) * time.Millisecond)}
		switch err := n.Write(u.on, w); {
		case err == nil:
			u.acked = true
			return
		case errors.Is(err, errs.ErrConflict), errors.Is(err, errs.ErrExpired):
			return
		case errors.Is(err, errs.ErrOutcomeUnknown), errors.Is(err, errs.ErrNoLeader), errors.Is(err, errs.ErrOverloaded):
		default:
			t.Errorf("%v", err)
			return
		}
	}
}

// Entries are refused, lost or repeated, and answers are lost. An acknowledged write counts once on
// each shard, and any other write at most once. Of two writes with one key and different bodies, at
// most one counts. The log times of all shards advance quickly. One keyspace forgets its keys all
// the time, which is harmless because it judges the key of no write.
func TestWritesThroughUnsureGroupsCountOnce(t *testing.T) {
	t.Parallel()
	n, keyspaces := shardedNode(t, 3)
	posts, solo, pair, forgets := n.Keyspace(kinds.KeyspacePosts), keyspaces[0], keyspaces[1], keyspaces[2]
	began, stop := time.Now(), make(chan struct{})
	var leaps, clients sync.WaitGroup
	for _, g := range n.registry.groups.Load().all {
		if g.kind != codec.KindCounters {
			continue
		}
		group, step, steps := g.replica.Load().group, LimitsDefault.KeyHorizon/10, 8
		if g.keyspace == forgets.Name {
			step, steps = LimitsDefault.KeyHorizon*11/10, 10_000
		}
		reconfigure(n, g, func(cfg *propose.Config) { cfg.Group = &unsureGroup{Group: cfg.Group} })
		leaps.Go(func() {
			for i := range steps {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				at := began.Add(step * time.Duration(i))
				entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 0), at, LimitsDefault)
				if err := group.Apply(codec.AppendChecksum(entry)).Error(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	const callers, each = 8, 40
	writes := make([][2]unsureWrite, callers*each)
	for i := range writes {
		for body := range 2 {
			u, name := &writes[i][body], fmt.Append(nil, "key", i)
			u.on = []*Keyspace{posts, solo, pair}[i%3]
			if i%4 == 0 {
				u.on, u.spaces = posts, []*Keyspace{posts, solo, pair, forgets}
			}
			if u.id = dedup.ByKey(name, []byte{byte(body)}); i%5 == 0 {
				u.id = dedup.ByProducer(name, uint64(body))
			}
			for op := range uint64(6) {
				u.ops = append(u.ops, addTo(uint64(i*100+body*10)+op, 0, 1))
				u.in = append(u.in, uint8(op)%4)
			}
		}
	}
	for caller := range callers {
		clients.Go(func() {
			for i := caller * each; i < (caller+1)*each; i++ {
				var both sync.WaitGroup
				for body := range 2 {
					both.Go(func() { writes[i][body].send(t, n) })
				}
				both.Wait()
			}
		})
	}
	clients.Wait()
	close(stop)
	leaps.Wait()
	acked, counted := 0, 0
	for i := range writes {
		var sums [2]int64
		for body := range 2 {
			u := &writes[i][body]
			for op, o := range u.ops {
				ks := u.on
				if u.spaces != nil {
					ks = u.spaces[u.in[op]]
				}
				count := mustGet(t, n, ks, ReadOptions{}, o.ID)[0]
				if count > 1 || u.acked && count != 1 {
					t.Errorf("write %d, body %d, op %d: count %d, acknowledged %v", i, body, op, count, u.acked)
				}
				sums[body] += count
			}
			if u.acked {
				acked++
			}
			counted += int(sums[body])
		}
		if sums[0] > 0 && sums[1] > 0 && writes[i][0].id.Keyed() {
			t.Errorf("write %d: the bodies counted %v", i, sums)
		}
	}
	if acked < len(writes)*9/10 {
		t.Errorf("%d of %d keys are acknowledged", acked, len(writes))
	}
	t.Logf("%d writes are acknowledged, %d ops counted", acked, counted)
}
