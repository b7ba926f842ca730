package shard

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// A token that no write returned is refused at once: no read could ever satisfy it.
func TestBadTokens(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2, "users": 1})
	ks := n.Keyspace("posts")
	w := mustWrite(t, n, ks, addTo(2, 0, 1), addTo(3, 0, 1))
	next := Token{Cluster: w.Token.Cluster, At: []GroupIndex{{Group: w.Token.At[0].Group, Index: w.Token.At[0].Index + 1}}}
	for name, token := range map[string]Token{
		"the next":             next,
		"far beyond":           {Cluster: w.Token.Cluster, At: []GroupIndex{{Group: w.Token.At[0].Group, Index: 1 << 63}}},
		"of another cluster":   {Cluster: w.Token.Cluster + 1, At: w.Token.At},
		"of no group of these": {Cluster: w.Token.Cluster + 1, At: []GroupIndex{{Group: 99, Index: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, level := range []Consistency{Stale, Bounded, Linearizable} {
				opt := &ReadOptions{Consistency: level, Token: token, Deadline: soon()}
				rows := make([]int64, 2)
				if err := n.Get(ks, []uint64{2}, 1, opt, rows); !errors.Is(err, errs.ErrBadToken) {
					t.Errorf("level %d, one id: %v", level, err)
				}
				if err := n.Get(ks, []uint64{2, 3}, 1, opt, rows); !errors.Is(err, errs.ErrBadToken) {
					t.Errorf("level %d, a page: %v", level, err)
				}
				if _, err := n.Scan(ks, 0, false, 10, 1, opt); !errors.Is(err, errs.ErrBadToken) {
					t.Errorf("level %d, a scan: %v", level, err)
				}
			}
		})
	}
	// A read does not wait for groups that it does not ask.
	rows := make([]int64, 1)
	if err := n.Get(ks, []uint64{3}, 1, &ReadOptions{Token: next, Deadline: soon()}, rows); err != nil || rows[0] != 1 {
		t.Errorf("of the other shard: %v, %v", rows, err)
	}
	foreign := Token{Cluster: w.Token.Cluster, At: []GroupIndex{{Group: 99, Index: 1 << 40}, w.Token.At[1]}}
	if got := mustGet(t, n, ks, ReadOptions{Token: foreign}, 2, 3); got[0] != 1 {
		t.Errorf("rows %v", got)
	}
	if got := mustGet(t, n, ks, ReadOptions{Token: Token{Cluster: 5}}, 2); got[0] != 1 {
		t.Errorf("with a token of nothing: rows %v", got)
	}
}

// Any node of a cluster refuses a token of another cluster's writes, also for shards that
// it neither leads nor has.
func TestAnyNodeTellsABadToken(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	ks := all[0].Keyspace("posts")
	w := mustWrite(t, all[0], ks, addTo(0, 0, 1), addTo(1, 0, 1), addTo(2, 0, 1))
	bad := Token{Cluster: w.Token.Cluster}
	for _, e := range w.Token.At {
		bad.At = append(bad.At, GroupIndex{Group: e.Group, Index: e.Index + 1000})
	}
	for _, n := range all {
		for id := range uint64(3) {
			opt := &ReadOptions{Token: bad, Deadline: soon()}
			if err := n.Get(ks, []uint64{id}, 1, opt, make([]int64, 1)); !errors.Is(err, errs.ErrBadToken) {
				t.Errorf("%s, id %d: %v", n.cfg.NodeName, id, err)
			}
			if _, err := n.Scan(ks, 0, false, 10, 1, opt); !errors.Is(err, errs.ErrBadToken) {
				t.Errorf("%s, a scan: %v", n.cfg.NodeName, err)
			}
		}
	}
}

// A call that a read gave up may still run. The call must have its own copy of the ids and the query, because
// another request reuses the read's memory.
func TestReadThatWasGivenUpKeepsItsKeys(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	n := all[3]
	g := n.registry.groups.Load().byFirst[n.Keyspace("posts").FirstGroup].all[0]
	sent := make(chan *sentRead, 1)
	for _, node := range n.router.holders(g.number) {
		b := *n.reader.batchers(node)
		b.memory = rpc.NewBatcher(rpc.BatcherConfig[*sentRead, readAnswer]{
			Send: func(ctx context.Context, reads []*sentRead) ([]readAnswer, error) {
				select {
				case sent <- reads[0]:
				default:
				}
				<-ctx.Done()
				return nil, ctx.Err()
			},
			InFlight: 1, Items: 1, CallItems: 1,
		})
		n.reader.mu.Lock()
		n.reader.mu.batchers[node] = &b
		n.reader.mu.Unlock()
	}
	keys := []uint64{1, 2, 3}
	opt := &ReadOptions{Deadline: time.Now().Add(hinderedMax)}
	q := &rows.Query{Width: 1}
	if err := n.reader.fetch(q, &raftfsm.Part{Route: g.first, Keys: keys}, g, nil, opt); !errors.Is(err, errs.ErrNoQuorum) {
		t.Fatal(err)
	}
	copy(keys, []uint64{7, 8, 9})
	*q = rows.Query{Width: 4}
	read := parseRead(&wire.Reader{Rest: (<-sent).message})
	if !slices.Equal(read.keys, []uint64{1, 2, 3}) || !slices.Equal(read.query, []byte{0, 1}) {
		t.Errorf("it asks for %d now, by the query %x", read.keys, read.query)
	}
}

// A scan on a single node waits for its replica, like a get, if the replica has not applied
// everything that is committed.
func TestScanWaitsForABusyReplica(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := n.Keyspace("posts")
	mustWrite(t, n, ks, addTo(2, 0, 1), addTo(3, 0, 1))
	groups, err := n.router.groupsOf(ks)
	mustDo(t, err)
	fresh, asked := &groups[0].replica.Load().fresh, 0
	ask := fresh.Ask
	fresh.Ask = func(ctx context.Context) (uint64, error) {
		index, err := ask(ctx)
		if asked++; asked == 1 {
			index++ // an entry that is still to come
		}
		return index, err
	}
	r, err := n.Scan(ks, 0, false, 10, 4, &ReadOptions{Consistency: Linearizable, Deadline: soon()})
	if err != nil || !slices.Equal(r.IDs, []uint64{2, 3}) || asked < 2 {
		t.Errorf("asked %d times, %+v, %v", asked, r, err)
	}
}
