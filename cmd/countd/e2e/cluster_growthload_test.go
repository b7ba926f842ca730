package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	unrestPause   = 500 * time.Millisecond // longest pause between two orders of an unrest
	drainFor      = 3 * time.Second        // longest time for which an unrest drains a node
	redisRows     = 24                     // number of rows to which pipelines write
	pipelineOps   = 40                     // number of plain increments in a pipeline
	pipelineTries = 5 * time.Second        // bounds a pipeline
	quietFor      = 10 * time.Second       // time for which the load is measured before a growth
)

// unrest moves replicas of all keyspaces and drains nodes, in random order, while shards grow.
type unrest struct {
	c                      *proctest.Cluster
	moved, drained, denied atomic.Int64
	stop                   chan struct{}
	running                sync.WaitGroup
}

// startUnrest starts an unrest, until end.
func startUnrest(c *proctest.Cluster, seed uint64) *unrest {
	u := &unrest{c: c, stop: make(chan struct{})}
	rng := rand.New(rand.NewPCG(chaosSeed, seed))
	u.running.Go(func() { // ends with end
		for {
			nodes := c.Nodes()
			rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			if rng.IntN(10) == 0 {
				u.drain(nodes[0], nodes[1], time.Duration(rng.Int64N(int64(drainFor))))
			} else {
				u.move(nodes, rng)
			}
			select {
			case <-u.stop:
				return
			case <-time.After(time.Duration(rng.Int64N(int64(unrestPause)))):
			}
		}
	})
	return u
}

func (u *unrest) move(nodes []*proctest.Member, rng *rand.Rand) {
	placed := nodes[0].Placed() // without those of the catalog and the board, which are everywhere
	if len(placed) == 0 {
		return
	}
	p := placed[rng.IntN(len(placed))]
	var from, to *proctest.Member
	for _, n := range nodes {
		if slices.Contains(p.Target, n.Name) {
			from = n
		} else {
			to = n
		}
	}
	switch {
	case from == nil || to == nil:
	case nodes[0].OrderMove(p.ID, from, to) == "":
		u.moved.Add(1)
	default:
		u.denied.Add(1) // the group is frozen, for example
	}
}

// drain drains a node through another one, and ends the drain.
func (u *unrest) drain(victim, at *proctest.Member, span time.Duration) {
	order := func(what string) bool {
		status, err := at.Call(http.MethodPost, "/v1/admin/nodes/"+victim.Name+"/"+what, nil, nil)
		return err == nil && status == http.StatusOK
	}
	if order("drain") {
		u.drained.Add(1)
	}
	time.Sleep(span)
	for !order("undrain") { // an unanswered drain may have happened too
		at = u.c.Nodes()[rand.IntN(len(u.c.Nodes()))]
		time.Sleep(unrestPause)
	}
}

func (u *unrest) end() {
	close(u.stop)
	u.running.Wait()
}

func (u *unrest) String() string {
	return fmt.Sprintf("%d moves ordered, %d denied, %d drains", u.moved.Load(), u.denied.Load(), u.drained.Load())
}

// pipelines write to posts by the Redis protocol, through all nodes. Plain increments are sent once. Those with a key
// are repeated until they are answered. Each reply is a count, which must be above all counts of the row that were
// replied before its command was sent. So a lost increment shows at the next reply.
type pipelines struct {
	t            *testing.T
	first        uint64
	acked, tried [redisRows]atomic.Int64
	seen         [redisRows]atomic.Int64 // highest count in a reply
	sent, failed atomic.Int64
	silent       atomic.Int64 // commands without a reply and without an error
	partial      atomic.Int64 // commands with a key that were answered for some shards only
	stop         chan struct{}
	running      sync.WaitGroup
}

// startPipelines starts a writer for each node, until end.
func startPipelines(t *testing.T, c *proctest.Cluster) *pipelines {
	t.Helper()
	p := &pipelines{t: t, first: rand.Uint64N(1 << 60), stop: make(chan struct{})}
	clients := make([]*redis.Client, len(c.Nodes()))
	for i, n := range c.Nodes() {
		clients[i] = redis.NewClient(&redis.Options{
			Addr: n.Redis, Protocol: 2 + i%2, MaxRetries: -1, Dialer: n.Dial, DialerRetries: 1, ContextTimeoutEnabled: true,
		})
		t.Cleanup(func() { clients[i].Close() })
	}
	for i := range clients {
		p.running.Go(func() { // ends with end
			for number := 0; ; number++ {
				select {
				case <-p.stop:
					return
				case <-time.After(faultPace):
				}
				if number%4 == 0 {
					p.keyed(clients, i, fmt.Sprintf("writer-%d-%d", i, number))
				} else {
					p.plain(clients[i])
				}
			}
		})
	}
	return p
}

func (p *pipelines) key(row int) string { return fmt.Sprintf("posts:%d:repost", p.first+uint64(row)) }

// plain sends a pipeline of increments, some of them in a transaction on one row.
func (p *pipelines) plain(client *redis.Client) {
	rows, before := make([]int, pipelineOps), make([]int64, pipelineOps)
	one := rand.IntN(redisRows)
	send, addr := client.Pipelined, client.Options().Addr
	if rand.IntN(4) == 0 {
		send = client.TxPipelined
	} else {
		one = -1
	}
	for i := range rows {
		if rows[i] = one; one < 0 {
			rows[i] = rand.IntN(redisRows)
		}
		p.tried[rows[i]].Add(1)
		before[i] = p.seen[rows[i]].Load()
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), pipelineTries)
	defer cancel()
	commands, failed := send(ctx, func(pipe redis.Pipeliner) error {
		for _, row := range rows {
			pipe.Incr(ctx, p.key(row))
		}
		return nil
	})
	p.sent.Add(1)
	for i, command := range commands {
		switch count := command.(*redis.IntCmd).Val(); {
		case !p.answered(command.Err()):
		case count == 0: // the client got no reply, because it could not begin a connection, and sets no error
			p.failed.Add(1)
			p.silent.Add(1)
			if failed == nil {
				p.t.Errorf("%s replied 0 to an increment of row %d", addr, rows[i])
			}
		default:
			p.acked[rows[i]].Add(1)
			p.counted(addr, rows[i], count, before[i]+1)
		}
	}
}

// counted notes a reply, which must be at least the given count.
func (p *pipelines) counted(addr string, row int, count, least int64) {
	if count < least {
		p.t.Errorf("%s replied %d for row %d at %s, and %d is the least", addr, count, row, time.Now().UTC().Format(time.StampMilli), least)
	}
	for seen := p.seen[row].Load(); seen < count && !p.seen[row].CompareAndSwap(seen, count); {
		seen = p.seen[row].Load()
	}
}

// keyed sends one command that adds to all rows, until a node answers it. A repeat may add nothing.
func (p *pipelines) keyed(clients []*redis.Client, at int, key string) {
	args := []any{"COUNTD.INCR"}
	for row := range redisRows {
		args = append(args, p.key(row), 1)
		p.tried[row].Add(1)
	}
	args = append(args, "KEY", key)
	began, repeat := time.Now(), int64(0)
	for ; ; at++ {
		var before [redisRows]int64
		for row := range before {
			before[row] = p.seen[row].Load() + 1 - repeat
		}
		client := clients[at%len(clients)]
		ctx, cancel := context.WithTimeout(p.t.Context(), pipelineTries)
		replies, err := client.Do(ctx, args...).Slice()
		cancel()
		p.sent.Add(1)
		whole := p.answered(err)
		for _, reply := range replies { // a shard without a leader has an error in the place of its counts
			if told, is := reply.(error); is {
				whole = p.answered(told) && whole
			}
		}
		if whole {
			for row, reply := range replies {
				p.acked[row].Add(1)
				p.counted(client.Options().Addr, row, reply.(int64), before[row])
			}
			return
		}
		if err == nil {
			p.partial.Add(1)
			err = errors.New("some counts have errors")
		}
		if waited := time.Since(began); waited > must.BecomeMax || p.t.Context().Err() != nil {
			p.t.Errorf("a command with a key was not answered in %v: %v", waited, err)
			return
		}
		repeat = 1
		time.Sleep(faultPace)
	}
}

// answered reports whether a command was acknowledged. It fails the test for an error that no fault explains.
func (p *pipelines) answered(err error) bool {
	if err == nil {
		return true
	}
	p.failed.Add(1)
	if told, is := errors.AsType[redis.Error](err); is && !slices.ContainsFunc([]string{"LEADERLESS", "UNKNOWN", "OVERLOADED", "DRAINING"}, func(code string) bool {
		return strings.HasPrefix(told.Error(), code)
	}) {
		p.t.Errorf("a good command was answered %v", told)
	}
	return false
}

// end stops the writers, and compares the rows at each node with what was acknowledged and tried.
func (p *pipelines) end(nodes []*proctest.Member) {
	p.t.Helper()
	close(p.stop)
	p.running.Wait()
	var ids []string
	for row := range redisRows {
		ids = append(ids, fmt.Sprint(p.first+uint64(row)))
	}
	var counted, unsure int64
	for _, n := range nodes {
		counted, unsure = 0, 0
		for row, r := range n.Rows("posts", ids) {
			got, acked, tried := r.Counts["repost"], p.acked[row].Load(), p.tried[row].Load()
			if seen := p.seen[row].Load(); got < max(acked, seen) || got > tried {
				p.t.Errorf("%s reads %d of row %d, %d increments were acknowledged and %d sent, and a reply was %d", n.Name, got, row, acked, tried, seen)
			}
			counted, unsure = counted+got, unsure+tried-acked
		}
	}
	if counted == 0 {
		p.t.Error("no increment of a pipeline was counted")
	}
	p.t.Logf("redis: %d pipelines, %d failed commands, %d of them without an error, %d answers in part; %d increments counted, %d more at most", p.sent.Load(), p.failed.Load(), p.silent.Load(), p.partial.Load(), counted, unsure)
}
